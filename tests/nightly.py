"""Cases that `make test` leaves to `make nightly`."""

import pytest


def also(cases, others):
    """Values for `pytest.mark.parametrize`.

    Args:
        cases: those of `make test`.
        others: those that only `make nightly` runs.
    """
    marked = [
        pytest.param(*_values(case), marks=pytest.mark.nightly)
        for case in others
    ]
    return [*cases, *marked]


def _values(case):
    return case if isinstance(case, tuple) else (case,)
