"""Local steps that were saved are taken up by the optimizer that took them."""

import keras
import numpy as np
import pytest

from tests.runtime.checkpoint import runs
import tfdist

PERIOD = 4
STRATEGIES = {
    "Downpour": lambda: tfdist.DownpourStrategy(
        PERIOD, PERIOD, outer_optimizer=keras.optimizers.SGD(0.01)
    ),
    "averaging": lambda: tfdist.ParameterAveragingStrategy(PERIOD),
    "elastic averaging": lambda: tfdist.ElasticAveragingStrategy(PERIOD),
}


def new_run(name, number, saved=None, **arguments):
    return runs.Run(
        STRATEGIES[name](),
        lambda: keras.optimizers.SGD(0.02, momentum=0.5),
        number,
        saved,
        **arguments,
    )


def check(run, other):
    """Both have come to the same weights and number of updates."""
    for one in (run, other):
        one.strategy.barrier()
    np.testing.assert_allclose(run.weights(), other.weights(), rtol=1e-6)
    numbers = [one.strategy.updates_applied() for one in (run, other)]
    assert numbers[0] == numbers[1]


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["Downpour", "averaging"])
def test_each_of_two_optimizers_takes_up_its_steps(name):
    whole = new_run(name, 2)
    whole.steps(0, 1, 2)
    resumed = new_run(name, 2, whole.state.read())
    whole.steps(3)
    resumed.steps(3)
    check(resumed, whole)


@pytest.mark.nightly
def test_what_is_not_taken_up_yet_is_saved_again():
    whole = new_run("averaging", 2)
    whole.steps(0, 1, 2)
    between = new_run("averaging", 2, whole.state.read())
    between.step(3, model=0)
    resumed = new_run("averaging", 2, between.state.read())
    resumed.step(3, model=1)
    whole.steps(3)
    check(resumed, whole)


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["averaging", "Downpour", "elastic averaging"])
def test_a_first_step_that_runs_eagerly_goes_on_from_own_weights(name):
    whole = new_run(name, 1, run_eagerly=True)
    whole.steps(0, 1)
    resumed = new_run(name, 1, whole.state.read(), run_eagerly=True)
    whole.steps(2, 3, 4)
    resumed.steps(2, 3, 4)
    check(resumed, whole)
