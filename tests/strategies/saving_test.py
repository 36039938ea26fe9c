"""What is saved under a strategy is whole, and is taken up again."""

import contextlib
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

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


def _model(optimizer="adam"):
    """A compiled model under a strategy of its own."""
    with tfdist.AsyncStrategy().scope():
        return compiled(perceptron(), optimizer)


def _trained_and_saved(model, path):
    """Trains a model, saves it, and trains on.

    Args:
      model: The model.
      path: Directory for the files.

    Returns:
      An object with the `path`, and the model's `state`, `optimizer` and
      `predictions` when it was saved; then what came of training on: `losses`
      and `end`.
    """
    _fit(model)
    model.save(path / "model.keras")
    model.save_weights(path / "all.weights.h5")
    model.export(path / "exported", verbose=False)
    checkpoint = tf.train.Checkpoint(model=model)
    found = types.SimpleNamespace(
        path=path,
        checkpoint=checkpoint.save(path / "checkpoint"),
        state=traces(model),
        predictions=model.predict(X, verbose=0),
    )
    found.losses, found.end = _fit(model), traces(model)
    return found


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """What was trained and saved under a strategy."""
    keras.utils.set_random_seed(2)
    return _trained_and_saved(_model(), tmp_path_factory.mktemp("saved"))


def _is_as(model, saved):
    assert_same(traces(model), saved.state)
    assert_same(model.predict(X, verbose=0), saved.predictions)


def _goes_on_as(model, saved):
    """A model holds what was saved, and trains on to the same."""
    assert_same(traces(model), saved.state)
    assert_same(_fit(model), saved.losses)
    assert_same(traces(model), saved.end)


@pytest.mark.nightly
def test_model_saved_under_a_strategy_loads_without(saved):
    _is_as(keras.models.load_model(saved.path / "model.keras"), saved)


@pytest.mark.nightly
def test_model_saved_under_a_strategy_loads_under_another(saved):
    with tfdist.AsyncStrategy().scope():
        loaded = keras.models.load_model(saved.path / "model.keras")
    _goes_on_as(loaded, saved)


@pytest.mark.nightly
def test_model_saved_without_a_strategy_loads_under_one(tmp_path):
    keras.utils.set_random_seed(2)
    plain = _trained_and_saved(compiled(perceptron(), "adam"), tmp_path)
    with tfdist.AsyncStrategy().scope():
        loaded = keras.models.load_model(tmp_path / "model.keras")
    _goes_on_as(loaded, plain)


def test_what_is_set_or_loaded_after_training_reaches_the_servers(saved):
    """The next step starts from it, the optimizer's state as well."""
    model = _model()
    _fit(model, epochs=1)
    model.load_weights(saved.path / "all.weights.h5")
    assert_same(model.get_weights(), saved.state["weights"])
    model.optimizer.set_weights(saved.state["optimizer"])
    _goes_on_as(model, saved)
    # So does TensorFlow's checkpoint.
    checkpoint = tf.train.Checkpoint(model=model)
    status = checkpoint.restore(saved.checkpoint)
    status.assert_existing_objects_matched()
    _goes_on_as(model, saved)


@pytest.mark.nightly
def test_tensorflow_checkpoint_loads_before_training_and_without_a_strategy(
    saved,
):
    for scope in (tfdist.AsyncStrategy().scope(), contextlib.nullcontext()):
        with scope:
            model = compiled(perceptron(), "adam")
            model.optimizer.build(model.trainable_variables)
        checkpoint = tf.train.Checkpoint(model=model)
        checkpoint.restore(saved.checkpoint).assert_existing_objects_matched()
        _is_as(model, saved)


def test_exported_model_answers_as_the_model_does(saved):
    loaded = tf.saved_model.load(saved.path / "exported")
    assert_same(loaded.serve(tf.constant(X)).numpy(), saved.predictions)


def test_clone_and_summary():
    model = _model()
    lines = []
    model.summary(print_fn=lines.append)
    assert any("dense" in line for line in lines)
    clone = keras.models.clone_model(model)
    clone.set_weights([w + 1.0 for w in model.get_weights()])
    model.set_weights(clone.get_weights())
    np.testing.assert_allclose(clone(X), model(X), rtol=1e-6)
