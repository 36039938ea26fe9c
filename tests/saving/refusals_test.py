"""What cannot be left to the chief is refused before a file is touched."""

import importlib
import inspect
import os
import pickle

import keras
import pytest
import tensorflow as tf

from tests.saving import clusters
import tfdist
from tfdist import private_keras_variables
from tfdist.saving import refusals


@pytest.fixture(scope="module")
def strategy():
    """The strategy of a worker that is not the chief, without its cluster."""
    made = tfdist.AsyncStrategy()
    made._runtime.files = clusters.files_of()
    refusals.refuse_to_open()
    return made


def build():
    """A functional model, whose layers are built before there is a model."""
    inputs = keras.Input([3])
    return keras.Model(inputs, keras.layers.Dense(2)(inputs))


@pytest.fixture(name="model", scope="module")
def model_fixture(strategy):
    with strategy.scope():
        return build()


_REFUSED = {
    "save_model": lambda model, path: keras.saving.save_model(
        model, path / "a.keras"
    ),
    "models.save_model": lambda model, path: keras.models.save_model(
        model, path / "a.keras"
    ),
    "directory": lambda model, path: keras.saving.save_model(
        model, path, zipped=False
    ),
    "a model that was never seen": lambda model, path: model.save(
        path / "a.keras"
    ),
    "Checkpoint.save": lambda model, path: tf.train.Checkpoint(
        model=model
    ).save(path / "a"),
    "Checkpoint.write": lambda model, path: tf.train.Checkpoint(
        model=model
    ).write(path / "a"),
    "CheckpointManager": lambda model, path: tf.train.CheckpointManager(
        tf.train.Checkpoint(model=model), path, max_to_keep=1
    ).save(),
    "saved_model": lambda model, path: tf.saved_model.save(model, path),
}


@pytest.mark.parametrize("way", _REFUSED)
def test_functions_are_refused_before_a_file_is_touched(
    tmp_path, strategy, model, way
):
    (tmp_path / "a.keras").write_text("before")
    with pytest.raises(RuntimeError, match="if strategy.cluster.is_chief"):
        _REFUSED[way](model, tmp_path)
    # TensorFlow makes directories first.
    found = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert found == [tmp_path / "a.keras"]
    assert found[0].read_text() == "before"
    with strategy.own_files():
        _REFUSED[way](model, tmp_path)
    files = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    assert files != {tmp_path / "a.keras": b"before"}


@pytest.mark.parametrize("ending", [".weights.h5", ".h5"])
def test_hdf5_is_refused_as_well_if_late(tmp_path, model, ending):
    """Its library opens files by itself; the program ends all the same."""
    save = keras.saving.save_model
    if "weights" in ending:
        save = keras.saving.save_weights
    with pytest.raises(RuntimeError, match="if strategy.cluster.is_chief"):
        save(model, tmp_path / f"a{ending}")


def test_models_of_no_strategy_are_saved_as_ever(tmp_path, strategy):
    build().save(tmp_path / "a.keras")
    assert os.listdir(tmp_path) == ["a.keras"]


def test_reading_and_copying_is_allowed(model):
    assert len(model.get_weights()) == 2
    assert type(pickle.loads(pickle.dumps(model))) is type(build())


def test_restoring_is_allowed(tmp_path, strategy, model):
    with strategy.own_files():
        path = tf.train.Checkpoint(model=model).write(tmp_path / "a")
    tf.train.Checkpoint(model=model).read(path).assert_consumed()


def test_a_model_of_a_loop_of_ones_own_is_left_to_the_chief(tmp_path, strategy):
    with strategy.scope():
        model = build()
        optimizer = keras.optimizers.SGD()
        optimizer.build(model.trainable_variables)

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    strategy.run(step, (tf.ones([2, 3]),))
    model.save(tmp_path / "a.keras")
    assert not os.listdir(tmp_path)


def test_a_compiled_model_is_left_to_the_chief_before_it_is_fitted(
    tmp_path, strategy
):
    with strategy.scope():
        model = build()
        model.compile("adam", "mse")
    model.save(tmp_path / "a.keras")
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("where", private_keras_variables.SAVING_CALLS)
def test_what_saves_has_the_names_that_are_looked_for(where):
    module, name = where
    found = importlib.import_module(module)
    if name == "save":
        found = found.TrackableSaver
    function = inspect.unwrap(getattr(found, name))
    assert function.__code__.co_name == name
    assert function.__module__ == module
    argument = private_keras_variables.SAVING_CALLS[where][1]
    assert argument in inspect.signature(function).parameters
