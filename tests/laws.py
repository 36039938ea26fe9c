"""Number of examples that Hypothesis tries of a law."""

import hypothesis

_NIGHTLY_FACTOR = 10


def settings(max_examples, **others):
    """Settings of one law: `make nightly` tries ten times the examples.

    Args:
        max_examples: int, in `make test`.
        **others: of `hypothesis.settings`.

    Returns:
        A `hypothesis.settings`, for use as a decorator.
    """
    if hypothesis.settings.get_current_profile_name() == "nightly":
        max_examples *= _NIGHTLY_FACTOR
    return hypothesis.settings(max_examples=max_examples, **others)
