"""A search for hyperparameters by KerasTuner."""

import gc

import keras
import keras_tuner
import numpy as np
import pytest

import tfdist

pytestmark = pytest.mark.nightly

TRIALS = 10
ROWS = np.random.default_rng(0).normal(size=(64, 8)).astype("float32")


def test_a_search_keeps_no_more_than_a_model_or_two(tmp_path):
    strategy = tfdist.AsyncStrategy()
    left = []

    def build(parameters):
        gc.collect()
        strategy.commit()
        left.append(len(list(strategy._runtime.store.variables)))
        units = parameters.Int("units", 4, 32)
        rate = parameters.Float("rate", 1e-3, 1e-1, sampling="log")
        model = keras.Sequential(
            [
                keras.Input((8,)),
                keras.layers.Dense(units, activation="relu"),
                keras.layers.Dense(1),
            ]
        )
        model.compile(keras.optimizers.Adam(rate), "mse")
        return model

    tuner = keras_tuner.RandomSearch(
        build,
        objective="val_loss",
        max_trials=TRIALS,
        seed=1,
        distribution_strategy=strategy,
        directory=tmp_path,
        project_name="search",
    )
    y = ROWS[:, :1]
    data = {"validation_data": (ROWS, y), "epochs": 2, "verbose": 0}
    tuner.search(ROWS, y, batch_size=16, **data)
    trials = tuner.oracle.get_best_trials(TRIALS)
    assert len(trials) == TRIALS
    assert all(np.isfinite(trial.score) for trial in trials)
    made = len(strategy._runtime.store.variables)
    # Four weights, two slots of each, and a counter.
    assert made >= TRIALS * 13
    assert max(left) <= 2 * 13
    (best,) = tuner.get_best_models(1)
    loss = best.evaluate(ROWS, y, verbose=0)
    np.testing.assert_allclose(loss, trials[0].score, rtol=1e-4)
