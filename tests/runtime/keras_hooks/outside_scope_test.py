"""Models that were made outside `strategy.scope()` do not train alone."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.runtime.keras_hooks import outside_scope

X = np.ones([8, 3], np.float32)
Y = np.ones([8, 1], np.float32)


def made(optimizer, **kwargs):
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(optimizer, "mse", **kwargs)
    return model


@pytest.fixture
def refusing():
    """As on a worker of a cluster, for the test alone."""
    outside_scope.refuse_to_fit()
    outside_scope.refuse_to_fit()
    yield
    _, scope = outside_scope._open.popitem()
    scope.__exit__(None, None, None)


@pytest.mark.parametrize(
    "optimizer, metrics", [("adam", None), ("sgd", ["mae"])]
)
def test_a_model_that_no_strategy_knows_of_is_refused(
    refusing, optimizer, metrics
):
    model = made(optimizer, metrics=metrics)
    with pytest.raises(ValueError, match="below `with strategy.scope"):
        model.fit(X, Y, verbose=0)


@pytest.mark.parametrize("compiles_for", ["fit", "evaluate"])
def test_what_makes_no_variable_in_fit_is_seen_soon(
    refusing, caplog, compiles_for
):
    """Plain SGD without metrics, of a model that is built."""
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    getattr(model, compiles_for)(X, Y, verbose=0)
    outside_scope._watch.look()
    trained = compiles_for == "fit"
    assert trained == ("trains on this worker alone" in caplog.text)
    caplog.clear()
    outside_scope._watch.look()
    assert not caplog.text


def test_models_of_a_scope_train(refusing):
    with tfdist.AsyncStrategy().scope():
        model = made("adam")
    model.fit(X, Y, verbose=0)
    with tf.distribute.OneDeviceStrategy("/cpu:0").scope():
        own = made("adam")
    own.fit(X, Y, verbose=0)


@pytest.mark.nightly
def test_a_strategy_made_after_clear_session_refuses_them_as_well(refusing):
    before = outside_scope._open
    _, scope = before.popitem()
    keras.backend.clear_session()
    before[tf.Graph()] = scope
    outside_scope.refuse_to_fit()
    with pytest.raises(ValueError, match="below `with strategy.scope"):
        made("adam").fit(X, Y, verbose=0)


@pytest.mark.nightly
def test_a_model_outside_may_be_used(refusing):
    model = made("adam")
    model(X)
    model.evaluate(X, Y, verbose=0)
    assert model.predict(X, verbose=0).shape == (8, 1)


@pytest.mark.nightly
def test_in_one_process_a_model_outside_trains():
    tfdist.AsyncStrategy()
    made("adam").fit(X, Y, verbose=0)
