"""A first step after resuming computes gradients where DANA looks ahead."""

import keras
import numpy as np
import pytest

from tests.runtime.checkpoint import runs
import tfdist
from tfdist import correction


def new_run(eagerly, saved=None, local_steps=None, models=2):
    return runs.Run(
        tfdist.ParameterServerStrategy(
            correction=correction.DANA("zero"), local_steps=local_steps
        ),
        lambda: keras.optimizers.SGD(0.02),
        models,
        saved,
        run_eagerly=eagerly,
    )


@pytest.mark.nightly
@pytest.mark.parametrize("eagerly", [False, True], ids=["traced", "eagerly"])
def test_a_first_step_looks_ahead(eagerly):
    whole = new_run(eagerly)
    whole.steps(0, 1, 2)
    resumed = new_run(eagerly, whole.state.read())
    for run in (whole, resumed):
        run.steps(3, 4)
        # To the weights on the servers.
        run.strategy.pull()
    np.testing.assert_allclose(resumed.weights(), whole.weights(), rtol=1e-6)


@pytest.mark.nightly
def test_local_steps_begin_at_the_look_ahead():
    """Else the first push has all of it, as if steps had brought it."""
    whole = new_run(False, local_steps=2, models=1)
    whole.steps(0, 1, 2, 3)
    saved = whole.state.read()
    resumed = new_run(False, saved, local_steps=2, models=1)
    for run in (whole, resumed):
        run.steps(4, 5, 6, 7)
        run.strategy.pull()
    np.testing.assert_allclose(resumed.weights(), whole.weights(), rtol=1e-5)


@pytest.mark.nightly
@pytest.mark.parametrize("eagerly", [False, True], ids=["traced", "eagerly"])
def test_a_first_push_is_what_local_steps_have_changed(eagerly):
    """Here nothing, so that the momentum alone moves the weights."""
    whole = new_run(False, local_steps=2, models=1)
    whole.steps(0, 1, 2, 3)
    saved = whole.state.read()
    resumed = new_run(eagerly, saved, local_steps=2, models=1)
    for run in (whole, resumed):
        run.models[0].optimizer.learning_rate = 0.0
        run.steps(4, 5)
        run.strategy.pull()
    np.testing.assert_allclose(resumed.weights(), whole.weights(), rtol=1e-5)
