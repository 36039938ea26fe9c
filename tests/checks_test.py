"""What is refused is named, with what was received and what is allowed."""

import math

import pytest

from tfdist import checks


@pytest.mark.parametrize("value", [0, -1, 1.0, True, None, "1"])
def test_what_is_no_count_is_refused(value):
    with pytest.raises(ValueError) as error:
        checks.count("steps", value)
    assert str(error.value) == (
        f"steps must be an integer of at least 1. Received: {value!r}."
    )


def test_what_is_allowed_is_returned():
    assert checks.count("steps", 0, least=0) == 0
    assert checks.positive("seconds", 2) == 2.0
    assert checks.not_negative("seconds", 0) == 0.0
    checks.one_of("method", "etf", ("chain", "etf"))


@pytest.mark.parametrize("value", [-1, math.inf, math.nan, True, "1", None])
def test_what_is_no_finite_number_is_refused(value):
    for check in (checks.positive, checks.not_negative):
        with pytest.raises(ValueError, match="^seconds must be a finite num"):
            check("seconds", value)


def test_zero_is_not_positive():
    with pytest.raises(ValueError, match="above 0. Received: 0.$"):
        checks.positive("seconds", 0)


def test_names_that_there_are_are_said():
    with pytest.raises(ValueError, match="one of chain, etf. Received: 'x'"):
        checks.one_of("method", "x", ("chain", "etf"))
