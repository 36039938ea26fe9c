"""What is saved under a strategy is whole, and is taken up again."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import nightly
from tests.strategies.twins import assert_same
from tests.strategies.twins import classification
from tests.strategies.twins import compiled
from tests.strategies.twins import perceptron
from tests.strategies.twins import traces
import tfdist

X, Y = classification()


def _fit(model, epochs=2):
    return model.fit(
        X, Y, batch_size=6, epochs=epochs, shuffle=False, verbose=0
    ).history


def _trained(scope):
    with scope:
        model = compiled(perceptron(), "adam")
    _fit(model)
    return model


def _strategy_scope():
    return tfdist.AsyncStrategy().scope()


def _goes_on_as(first, second):
    """Both models hold the same, and train on to the same."""
    assert_same(traces(second), traces(first))
    assert_same(second.predict(X, verbose=0), first.predict(X, verbose=0))
    assert_same(_fit(second), _fit(first))
    assert_same(traces(second), traces(first))


def test_model_saved_under_a_strategy_loads_without(tmp_path):
    model = _trained(_strategy_scope())
    model.save(tmp_path / "model.keras")
    _goes_on_as(model, keras.models.load_model(tmp_path / "model.keras"))


def test_model_saved_under_a_strategy_loads_under_another(tmp_path):
    model = _trained(_strategy_scope())
    model.save(tmp_path / "model.keras")
    with _strategy_scope():
        loaded = keras.models.load_model(tmp_path / "model.keras")
    _goes_on_as(model, loaded)


def test_model_saved_without_a_strategy_loads_under_one(tmp_path):
    keras.utils.set_random_seed(2)
    with tf.distribute.get_strategy().scope():
        model = compiled(perceptron(), "adam")
    _fit(model)
    model.save(tmp_path / "model.keras")
    with _strategy_scope():
        loaded = keras.models.load_model(tmp_path / "model.keras")
    _goes_on_as(model, loaded)


@pytest.mark.parametrize("trained_before", nightly.also([True], [False]))
def test_weights_load_before_and_after_training(tmp_path, trained_before):
    """Loaded weights reach the servers: the next step starts from them."""
    source = _trained(_strategy_scope())
    source.save_weights(tmp_path / "all.weights.h5")
    scope = _strategy_scope()
    with scope:
        target = compiled(perceptron(), "sgd")
    if trained_before:
        _fit(target)
    target.load_weights(tmp_path / "all.weights.h5")
    assert_same(target.get_weights(), source.get_weights())
    plain = compiled(perceptron(), "sgd")
    plain.set_weights(source.get_weights())
    _fit(plain)
    _fit(target)
    assert_same(target.get_weights(), plain.get_weights())


@pytest.mark.parametrize("trained_before", nightly.also([True], [False]))
def test_tensorflow_checkpoint(tmp_path, trained_before):
    model = _trained(_strategy_scope())
    path = tf.train.Checkpoint(model=model).save(tmp_path / "checkpoint")
    with _strategy_scope():
        restored = compiled(perceptron(), "adam")
        restored.optimizer.build(restored.trainable_variables)
    if trained_before:
        _fit(restored, epochs=1)
    status = tf.train.Checkpoint(model=restored).restore(path)
    status.assert_existing_objects_matched()
    _goes_on_as(model, restored)


def test_tensorflow_checkpoint_loads_without_a_strategy(tmp_path):
    model = _trained(_strategy_scope())
    path = tf.train.Checkpoint(model=model).save(tmp_path / "checkpoint")
    plain = compiled(perceptron(), "adam")
    plain.optimizer.build(plain.trainable_variables)
    tf.train.Checkpoint(model=plain).restore(path).assert_consumed()
    _goes_on_as(model, plain)


def test_exported_model_answers_as_the_model_does(tmp_path):
    model = _trained(_strategy_scope())
    model.export(tmp_path / "exported", verbose=False)
    loaded = tf.saved_model.load(tmp_path / "exported")
    assert_same(
        loaded.serve(tf.constant(X)).numpy(), model.predict(X, verbose=0)
    )


def test_clone_and_summary():
    scope = _strategy_scope()
    model = _trained(scope)
    lines = []
    model.summary(print_fn=lines.append)
    assert any("dense" in line for line in lines)
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    assert_same(clone.predict(X, verbose=0), model.predict(X, verbose=0))


def test_optimizer_state_is_set_on_the_servers():
    """`set_weights` of an optimizer changes what its next step uses."""
    source = _trained(_strategy_scope())
    target = _trained(_strategy_scope())
    target.set_weights(source.get_weights())
    target.optimizer.set_weights(
        [np.array(v.numpy()) for v in source.optimizer.variables]
    )
    _goes_on_as(source, target)
