"""Number of examples that Hypothesis tries of a law."""

import hypothesis

_NIGHTLY_FACTOR = 10


def settings(max_examples, nightly=None, **others):
    """Settings of one law: `make nightly` tries more examples.

    Args:
        max_examples: int, in `make test`.
        nightly: int, in `make nightly`; default: ten times as many.
        **others: of `hypothesis.settings`.

    Returns:
        A `hypothesis.settings`, for use as a decorator.
    """
    if hypothesis.settings.get_current_profile_name() == "nightly":
        max_examples = nightly or _NIGHTLY_FACTOR * max_examples
    return hypothesis.settings(max_examples=max_examples, **others)
