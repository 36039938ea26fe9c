"""Line searches on functions of one variable."""

import math

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from tests import laws
from tfdist.sandblaster import line_search


def run(search, function, first):
    """Runs a search.

    Returns:
      The step that it returns, and all that it has tried.
    """
    steps = []
    found = search.search(*function(0.0), first)
    step = next(found)
    while True:
        steps.append(step)
        try:
            step = found.send(function(step))
        except StopIteration as end:
            assert end.value in (None, steps[-1])
            return end.value, steps


def wavy(coefficients):
    """A function with several minima that grows far away, and its slope."""
    a, b, c = coefficients

    def function(x):
        return (
            a * (x - 2) ** 2 + b * math.sin(c * x),
            2 * a * (x - 2) + b * c * math.cos(c * x),
        )

    return function


@laws.settings(80, deadline=None)
@given(
    st.floats(0.1, 10),
    st.floats(0, 5),
    st.floats(0.1, 5),
    st.floats(1e-3, 1e3),
    st.sampled_from([0.1, 0.5, 0.9]),
)
def test_strong_wolfe_finds_what_satisfies_both_conditions(
    a, b, c, first, curvature
):
    function = wavy((a, b, c))
    value, slope = function(0.0)
    if slope >= -1e-3:
        return
    search = line_search.StrongWolfe(1e-4, curvature, max_evaluations=60)
    step, _ = run(search, function, first)
    found, slope_there = function(step)
    assert found <= value + 1e-4 * step * slope + 1e-7 * abs(value)
    assert abs(slope_there) <= -curvature * slope


@laws.settings(50, deadline=None)
@given(
    st.floats(0.1, 10), st.floats(0, 5), st.floats(0.1, 5), st.floats(1e-3, 1e3)
)
def test_armijo_finds_what_decreases_enough(a, b, c, first):
    function = wavy((a, b, c))
    value, slope = function(0.0)
    if slope >= -1e-3:
        return
    step, _ = run(line_search.Armijo(max_evaluations=60), function, first)
    bound = value + 1e-4 * step * slope
    assert function(step)[0] <= bound + 1e-7 * abs(value)


def test_the_minimum_of_a_cubic_is_found_at_once():
    """x^3 - 3 x has its minimum, of slope 0, at 1."""

    def function(x):
        return x**3 - 3 * x, 3 * x**2 - 3

    search = line_search.StrongWolfe(1e-4, 0.1)
    step, steps = run(search, function, 2.0)
    np.testing.assert_allclose(step, 1.0, atol=1e-12)
    assert len(steps) == 2


@pytest.mark.parametrize(
    "search", [line_search.StrongWolfe(), line_search.Armijo()]
)
@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_a_value_that_is_not_finite_means_too_far(search, bad):
    def function(x):
        return (bad, bad) if x > 0.3 else ((x - 0.2) ** 2, 2 * (x - 0.2))

    step, steps = run(search, function, 8.0)
    assert steps[0] == 8.0
    assert 0 < step <= 0.3


@pytest.mark.parametrize(
    "search", [line_search.StrongWolfe(), line_search.Armijo()]
)
def test_there_is_no_step_where_nothing_decreases(search):
    step, steps = run(search, lambda x: (abs(x), -1.0 if x == 0 else 1.0), 1.0)
    assert step is None
    assert len(steps) <= 20


@pytest.mark.parametrize(
    "search", [line_search.StrongWolfe(), line_search.Armijo()]
)
def test_where_rounding_hides_the_decrease_the_slope_tells(search):
    """All values are the same, one of them by chance a bit higher."""

    def function(x):
        return np.float32(5.0 + 1e-12 * (x - 1) ** 2) + 2e-7 * (x > 0), (
            2e-12 * (x - 1)
        )

    assert run(search, function, 1.0) == (1.0, [1.0])


def test_a_search_that_may_not_go_on_takes_the_best_step():
    """With 4 evaluations no minimum so narrow is found."""

    def function(x):
        return (x - 3) ** 2, 2 * (x - 3)

    search = line_search.StrongWolfe(1e-4, 1e-3, max_evaluations=1)
    step, steps = run(search, function, 1.0)
    assert step == 1.0
    assert steps == [1.0]


def test_settings_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="decrease=0.95"):
        line_search.StrongWolfe(decrease=0.95)
    with pytest.raises(ValueError, match="shrink="):
        line_search.Armijo(shrink=(0.5, 0.1))
    with pytest.raises(ValueError, match="max_evaluations=0"):
        line_search.Armijo(max_evaluations=0)


def test_searches_with_the_same_settings_are_equal():
    assert line_search.Armijo() == line_search.Armijo(1e-4)
    assert line_search.Armijo() != line_search.StrongWolfe()
