"""Cases that `make test` leaves to `make test-slow`."""

import pytest


def also(cases, slow):
    """Values for `pytest.mark.parametrize`.

    Args:
        cases: those of `make test`.
        slow: those that only `make test-slow` runs.
    """
    marked = [
        pytest.param(*_values(case), marks=pytest.mark.slow) for case in slow
    ]
    return [*cases, *marked]


def _values(case):
    return case if isinstance(case, tuple) else (case,)
