"""What of Keras's own tests does not pass under a strategy, and why."""

EXCEPTIONS = []


def reason(test, strategy):
    """Why a test is not to pass, None if it is.

    Args:
        test: its id in pytest.
        strategy: name of one of `task.STRATEGIES`.
    """
    for end, strategies, why in EXCEPTIONS:
        if test.endswith(end) and (not strategies or strategy in strategies):
            return why
    return None
