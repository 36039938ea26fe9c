"""Canaries: the call stack of Keras shows who makes and saves variables.

As `private_keras_calls_test`, for `tfdist.private_keras_variables`.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import private_names
from tfdist import private_keras_variables


def test_every_look_has_a_canary():
    assert not private_names.without_a_canary(private_keras_variables, __file__)


def test_this_keras_is_known():
    private_keras_variables.check.cache_clear()
    private_keras_variables.check()


RENAMED = {
    "a method of a variable": (
        "_VALUES",
        {"_gone": ()},
        "`keras.Variable._gone`",
    ),
    "a local variable of it": (
        "_VALUES",
        {"_initialize_with_initializer": ("gone",)},
        "the local variable `gone` of "
        "`keras.Variable._initialize_with_initializer`",
    ),
    "a module that saves": (
        "_SAVING",
        ("keras.src.gone.",),
        "the module `keras.src.gone`",
    ),
    "a function that saves": (
        "SAVING_CALLS",
        {("keras.src.saving.saving_lib", "gone"): ("", "filepath")},
        "`gone` of `keras.src.saving.saving_lib` with `filepath`",
    ),
    "an argument of it": (
        "SAVING_CALLS",
        {("tensorflow.python.checkpoint.checkpoint", "save"): ("", "gone")},
        "`save` of `tensorflow.python.checkpoint.checkpoint` with `gone`",
    ),
}


@pytest.mark.parametrize("renamed", RENAMED)
def test_a_strategy_refuses_a_keras_without(renamed, monkeypatch):
    private_names.check_refusal(
        monkeypatch, private_keras_variables, *RENAMED[renamed]
    )


def test_models_whose_methods_are_under_way_are_found():
    class Looks(keras.Model):
        def __init__(self):
            super().__init__()
            assert private_keras_variables.layers_under_way(keras.Model) == [
                self
            ]

    Looks()
    assert private_keras_variables.layers_under_way(keras.Model) == []


class Looks(keras.layers.Dense):
    """Looks when its variables are saved."""

    def save_own_variables(self, store):
        """As Keras's."""
        assert private_keras_variables.is_saving()
        self.seen = private_keras_variables.saving_call()
        super().save_own_variables(store)


@pytest.mark.parametrize(
    "name, call",
    [
        ("a.keras", "keras.saving.save_model"),
        ("a.weights.h5", "keras.saving.save_weights"),
    ],
)
def test_it_is_known_what_keras_saves_and_where_to(tmp_path, name, call):
    layer, path = Looks(1), tmp_path / name
    model = keras.Sequential([keras.Input([3]), layer])
    assert not private_keras_variables.is_saving()
    model.save(path) if call.endswith("model") else model.save_weights(path)
    assert isinstance(layer.seen, private_keras_variables.SavingCall)
    assert layer.seen.name == call
    assert str(layer.seen.path) == str(path)
    assert all(
        any(own is variable for own in layer.seen.variables)
        for variable in model.variables
    )


@pytest.mark.parametrize("how", ["checkpoint", "saved_model"])
def test_it_is_known_what_tensorflow_saves(tmp_path, how):
    assert ("tensorflow.python.checkpoint.checkpoint", "save") in (
        private_keras_variables.SAVING_CALLS
    )
    seen = []

    class Read(tf.Module):
        def _serialize_to_tensors(self):
            seen.append(private_keras_variables.saving_call())
            return {"value": tf.constant(1.0)}

        def _restore_from_tensors(self, restored_tensors):
            del restored_tensors

    path = str(tmp_path / "a")
    if how == "checkpoint":
        tf.train.Checkpoint(read=Read()).save(path)
    else:
        tf.saved_model.save(Read(), path)
    assert seen
    assert seen[-1].name == "tf.train.Checkpoint.save"
    assert str(seen[-1].path).startswith(path)


class Maker(keras.layers.Layer):
    """A layer that makes a variable in each way that there is."""

    def build(self, input_shape):
        """Makes a weight, and a variable by hand."""
        self.weight = self.add_weight(shape=(), name="weight")
        self.by_hand = keras.Variable(0.0, name="by_hand", trainable=False)

    def call(self, x):
        """Uses it."""
        return x * self.weight


class PutOff(keras.Model):
    """A model whose layers Keras makes while it traces `call`."""

    def __init__(self):
        """Makes the layer."""
        super().__init__()
        self.layer = keras.layers.Dense(1, use_bias=False)

    def call(self, x):
        """Calls the layer."""
        return self.layer(x)


def test_the_maker_of_a_variable_is_found():
    makers, layers = {}, {}

    def note(next_creator, **kwargs):
        name = kwargs["name"].rsplit("/", 1)[-1]
        makers[name] = private_keras_variables.variable_maker()
        layers[name] = private_keras_variables.layers_under_way()
        return next_creator(**kwargs)

    with tf.variable_creator_scope(note):
        optimizer = keras.optimizers.SGD()
        layer = Maker()
        layer.build([None, 1])
        model = PutOff()
        model(keras.Input([1]))
    assert makers["iteration"] is optimizer
    assert makers["weight"] is layer
    assert makers["by_hand"] is None
    assert makers["kernel"] is model.layer.kernel
    assert layers["weight"][0] is layer
    assert model in layers["kernel"]


def test_the_keras_variable_of_a_value_is_found():
    seen = []

    def creator(next_creator, **kwargs):
        seen.append(private_keras_variables.variable_being_made())
        return next_creator(**kwargs)

    layer = keras.layers.Dense(1, use_bias=False, trainable=False)
    with tf.variable_creator_scope(creator):
        variable = keras.Variable(1.0)
        layer.build([None, 1])
        tf.Variable(1.0)
    for found, expected in zip(
        seen, (variable, layer.kernel, None), strict=True
    ):
        assert found is expected
    # Once the other one is False, too, it need not be looked for.
    assert not layer.kernel.trainable
    assert layer.kernel.value.trainable


def test_an_optimizer_that_reduces_is_found(monkeypatch):
    seen = []

    def all_reduce(self, reduce_op, value, options=None):
        seen.append(private_keras_variables.optimizer_under_way())
        return value

    monkeypatch.setattr(tf.distribute.ReplicaContext, "all_reduce", all_reduce)
    tf.distribute.get_replica_context().all_reduce("SUM", tf.constant(0.0))
    optimizer, variable = keras.optimizers.SGD(), keras.Variable(0.0)
    optimizer.apply([tf.constant(1.0)], [variable])
    assert seen == [None, optimizer]


def test_spectral_normalization_is_found_where_it_assigns(monkeypatch):
    kind, seen = keras.layers.SpectralNormalization, []
    layer = kind(keras.layers.Dense(1))
    layer.build([None, 1])

    def assign(self, value):
        del self, value
        seen.append(private_keras_variables.layers_under_way(kind)[0])

    monkeypatch.setattr(keras.Variable, "assign", assign)
    layer(tf.ones([1, 1]), training=True)
    assert seen == [layer, layer]
    assert private_keras_variables.layers_under_way(kind) == []


class Creators:
    """Notes what is known of each variable that is made."""

    def __init__(self):
        self.found = []

    def __call__(self, next_creator, **kwargs):
        """Makes it as without."""
        self.found.append(private_keras_variables.making())
        return next_creator(**kwargs)


def test_variable_in_the_making_is_known_with_its_initializer():
    creators = Creators()
    with tf.variable_creator_scope(creators):
        layer = keras.layers.Embedding(
            5, 2, embeddings_initializer="ones", name="items"
        )
        layer.build()
        keras.Variable(np.ones([3]))
    making, of_value = creators.found
    assert isinstance(making, private_keras_variables.Making)
    assert making.variable is layer.embeddings
    assert making.variable.path == "items/embeddings"
    assert making.variable.shape == (5, 2)
    assert isinstance(making.initializer, keras.initializers.Ones)
    assert of_value is None
