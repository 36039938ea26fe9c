"""A first step after resuming computes gradients where DANA looks ahead."""

import keras
import numpy as np
import pytest

from tests.runtime.checkpoint import runs
import tfdist


def new_run(eagerly, saved=None):
    return runs.Run(
        tfdist.DANAStrategy(variant="zero"),
        lambda: keras.optimizers.SGD(0.02),
        2,
        saved,
        run_eagerly=eagerly,
    )


@pytest.mark.parametrize("eagerly", [True, False], ids=["eagerly", "traced"])
def test_a_first_step_looks_ahead(eagerly):
    whole = new_run(eagerly)
    whole.steps(0, 1, 2)
    resumed = new_run(eagerly, whole.state.read())
    for run in (whole, resumed):
        run.steps(3, 4)
        # To the weights on the servers.
        run.strategy.pull()
    np.testing.assert_allclose(resumed.weights(), whole.weights(), rtol=1e-6)
