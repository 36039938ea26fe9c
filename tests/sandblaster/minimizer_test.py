"""L-BFGS on shards, against L-BFGS on whole vectors and SciPy."""

import json

import numpy as np
import pytest
import scipy.optimize

from tests.sandblaster import functions
from tfdist.sandblaster import commands
from tfdist.sandblaster import line_search
from tfdist.sandblaster import minimizer

SEARCHES = {
    "strong_wolfe": line_search.StrongWolfe(),
    "armijo": line_search.Armijo(),
}
ROSENBROCK_START = np.array([-1.2, 1.0, -0.5, 2.0, 1.5])


def minimize(
    function, start, iterations, *, number=1, memory=5, points=None, **settings
):
    """Runs up to `iterations`.

    Returns:
      The last point, and the list of all `Iteration`.
    """
    made = functions.make_shards(start, number, memory)
    settings.setdefault("line_search", SEARCHES["strong_wolfe"])
    settings.setdefault("gradient_tolerance", 0.0)
    settings.setdefault("value_tolerance", -1.0)
    one = minimizer.Minimizer(made, memory, **settings)
    evaluate = functions.evaluator(function, made)
    found = []
    for _ in range(iterations):
        found.append(one.iterate(evaluate))
        if points is not None:
            points.append(made.fetch(one.point).numpy())
        if found[-1].outcome is not minimizer.Outcome.MOVED:
            break
    return made.fetch(one.point).numpy(), found


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("number", "search"),
    [(3, "strong_wolfe"), (2, "armijo"), (4, "strong_wolfe")],
)
def test_the_trajectory_is_that_of_whole_vectors(number, search):
    points = []
    minimize(
        functions.rosenbrock,
        ROSENBROCK_START,
        25,
        number=number,
        memory=3,
        points=points,
        line_search=SEARCHES[search],
    )
    expected = functions.trajectory(
        functions.rosenbrock, ROSENBROCK_START, 3, SEARCHES[search], len(points)
    )
    assert len(points) == 25
    np.testing.assert_allclose(points, expected[1:], atol=1e-6)


@pytest.mark.nightly
def test_n_steps_find_the_minimum_of_a_quadratic():
    """With exact line searches, as L-BFGS is then conjugate gradients."""
    number = 9
    function = functions.Quadratic(number)
    x, _ = minimize(
        function,
        np.zeros(number),
        number,
        memory=number,
        line_search=line_search.StrongWolfe(1e-9, 1e-8, max_evaluations=60),
    )
    np.testing.assert_allclose(x, function.minimum, atol=1e-6)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("damping", "search"),
    [
        (False, "strong_wolfe"),
        (False, "armijo"),
        (True, "strong_wolfe"),
        (True, "armijo"),
    ],
)
def test_rosenbrock_ends_in_the_valley(search, damping):
    x, found = minimize(
        functions.rosenbrock,
        ROSENBROCK_START,
        300,
        line_search=SEARCHES[search],
        damping=damping,
        gradient_tolerance=1e-8,
    )
    scipys = scipy.optimize.minimize(
        functions.rosenbrock, ROSENBROCK_START, jac=True, method="L-BFGS-B"
    )
    assert found[-1].outcome is minimizer.Outcome.CONVERGED
    assert found[-1].gradient_norm <= 1e-8
    np.testing.assert_allclose(x, scipys.x, atol=1e-4)
    assert len(found) < 3 * scipys.nit


def test_a_minimum_is_recognised():
    function = functions.Quadratic(3)
    _, found = minimize(function, function.minimum, 5, gradient_tolerance=1e-9)
    assert [one.outcome for one in found] == [minimizer.Outcome.CONVERGED]
    assert found[0].evaluations == 1


@pytest.mark.nightly
def test_a_small_decrease_is_convergence():
    _, found = minimize(
        functions.Quadratic(20), np.zeros(20), 99, value_tolerance=1e-3
    )
    assert found[-1].outcome is minimizer.Outcome.CONVERGED
    values = [one.value for one in found]
    assert values[-2] - values[-1] <= 1e-3 * max(1, abs(values[-2]))
    assert values[-3] - values[-2] > 1e-3


@pytest.mark.nightly
def test_where_no_direction_decreases_it_is_stuck():
    def wrong(x):
        return float(np.sum(x**2)), -2 * x

    x, found = minimize(wrong, np.ones(3), 5)
    assert [one.outcome for one in found] == [minimizer.Outcome.STUCK]
    np.testing.assert_array_equal(x, np.ones(3))


@pytest.mark.nightly
def test_a_direction_of_no_use_restarts_the_memory():
    made = functions.make_shards(np.ones(8), 1, 5)
    evaluate = functions.evaluator(functions.Quadratic(8), made)
    one = minimizer.Minimizer(made, 5, line_search.Armijo(max_evaluations=4))
    for _ in range(5):
        one.iterate(evaluate)
    # Its directions now lead uphill.
    one._memory.products[:6, 6:] *= -1
    one._memory.products[6:, :6] *= -1
    found = one.iterate(evaluate)
    assert found.restarted
    assert found.outcome is minimizer.Outcome.MOVED


def test_what_is_not_finite_at_first_is_refused():
    with pytest.raises(ValueError, match="The loss of .* nan"):
        minimize(lambda x: (np.nan, x), np.ones(2), 1)
    with pytest.raises(ValueError, match="The gradient of the loss .* nan"):
        minimize(lambda x: (1.0, x * np.nan), np.ones(2), 1)


def saddle(x):
    """Negative curvature along the first axis until far from 0."""
    a, b = x
    value = np.cos(a) + 0.01 * a**2 + 5 * b**2
    return value, np.array([-np.sin(a) + 0.02 * a, 10 * b])


@pytest.mark.nightly
@pytest.mark.parametrize("damping", [False, True])
def test_pairs_of_negative_curvature_are_left_out_or_damped(damping):
    made = functions.make_shards(np.array([0.3, 1.0]), 1, 3)
    one = minimizer.Minimizer(made, 3, line_search.Armijo(), damping)
    evaluate = functions.evaluator(saddle, made)
    for _ in range(60):
        if one.iterate(evaluate).outcome is not minimizer.Outcome.MOVED:
            break
        for slot in one._memory.slots:
            s, y = one._memory.rows_of(slot)
            products = one._memory.products
            # What is said of the pairs is what the shards hold.
            history = [
                made.run([commands.Combine("row", "history", np.eye(8)[k])])
                or made.fetch("row").numpy()
                for k in (s, y)
            ]
            np.testing.assert_allclose(
                products[s, y], history[0] @ history[1], rtol=1e-9
            )
            assert products[s, y] > 0
    assert abs(saddle(made.fetch(one.point).numpy())[1]).max() < 1e-4


@pytest.mark.nightly
@pytest.mark.parametrize("is_complete", [False, True])
def test_another_coordinator_goes_on_with_the_state(is_complete):
    def start():
        made = functions.make_shards(ROSENBROCK_START, 1, 4)
        return made, minimizer.Minimizer(
            made, 4, line_search.StrongWolfe(), gradient_tolerance=1e-8
        )

    made, one = start()
    evaluate = functions.evaluator(functions.rosenbrock, made)
    for _ in range(7):
        one.iterate(evaluate)
    state = json.loads(json.dumps(one.state()))
    if not is_complete:
        # The first one has done all but say so.
        one.iterate(evaluate)
    other = minimizer.Minimizer(
        made, 4, line_search.StrongWolfe(), gradient_tolerance=1e-8
    )
    other.restore(state, is_complete)
    before = functions.rosenbrock(made.fetch(other.point).numpy())[0]
    step = other.iterate(evaluate)
    assert step.value < before
    unbroken, same = start()
    again = functions.evaluator(functions.rosenbrock, unbroken)
    for _ in range(8):
        expected = same.iterate(again)
    np.testing.assert_array_equal(
        made.fetch(other.point), unbroken.fetch(same.point)
    )
    assert step.evaluations == expected.evaluations + (not is_complete)


@pytest.mark.nightly
def test_pairs_of_another_function_are_forgotten():
    quadratics = [functions.Quadratic(6), functions.Quadratic(6, seed=1)]
    for function, pairs in zip(quadratics, (4, 1), strict=True):
        made = functions.make_shards(np.ones(6), 1, 5)
        one = minimizer.Minimizer(made, 5, line_search.StrongWolfe())
        for _ in range(3):
            one.iterate(functions.evaluator(quadratics[0], made))
        one.look_again()
        state = json.loads(json.dumps(one.state()))
        one = minimizer.Minimizer(made, 5, line_search.StrongWolfe())
        one.restore(state)
        value, _ = function(made.fetch(one.point).numpy())
        step = one.iterate(functions.evaluator(function, made))
        assert step.value < value
        assert len(one.state()["memory"]["slots"]) == pairs


@pytest.mark.nightly
def test_what_the_coordinator_holds_does_not_grow_with_the_model():
    sizes = []
    for number in (10, 10_000):
        start = np.linspace(-1, 1, number)
        made = functions.make_shards(start, 1, 3)
        one = minimizer.Minimizer(made, 3, line_search.StrongWolfe())

        def ellipsoid(x):
            factors = 1 + np.arange(len(x)) % 7
            return float(factors @ x**2), 2 * factors * x

        for _ in range(5):
            one.iterate(functions.evaluator(ellipsoid, made))
        sizes.append(sum(map(np.size, one._known)))
        sizes[-1] += one._memory.products.size
    assert sizes == [8 + 3 + 64] * 2


@pytest.mark.nightly
def test_a_search_that_begins_again_writes_over_no_pair_of_before(monkeypatch):
    made = functions.make_shards(ROSENBROCK_START, 1, 3)
    one = minimizer.Minimizer(
        made, 3, SEARCHES["strong_wolfe"], gradient_tolerance=0.0
    )
    evaluate = functions.evaluator(functions.rosenbrock, made)
    for _ in range(6):
        one.iterate(evaluate)
    slots = one.state()["memory"]["slots"]
    assert len(slots) == 3 and 0 in slots
    run, search, written, failed = made.run, one._search, [], []

    def watched(batch):
        written.extend(
            one.index for one in batch if isinstance(one, commands.SetRow)
        )
        return run(batch)

    def fail_first(*args):
        if not failed:
            failed.append(args)
            return None, 0, 0.0
        return search(*args)

    monkeypatch.setattr(made, "run", watched)
    monkeypatch.setattr(one, "_search", fail_first)
    assert one.iterate(evaluate).restarted
    # An iteration that is interrupted goes on with the pairs of before.
    assert len(written) == 2
    assert not {row % 4 for row in written} & set(slots)
