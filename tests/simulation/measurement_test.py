"""Measuring says what a step takes, and leaves the model as it was."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.sandblaster import LBFGS
from tfdist.simulation import Measurement
from tfdist.simulation import Method
from tfdist.simulation import data
from tfdist.simulation import gradients
from tfdist.simulation import measure
from tfdist.simulation import simulate
from tfdist.simulation import traffic
from tfdist.simulation.measurement import Variable
from tfdist.strategies import registry

_STREAM = np.random.default_rng(0)
_X = _STREAM.standard_normal((50, 4)).astype("float32")
_Y = _STREAM.integers(0, 3, 50)


def build(optimizer="adam"):
    """Has all that a step changes: weights, slots, statistics and seeds."""
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((4,)),
            layers.Dense(8),
            layers.BatchNormalization(),
            layers.Dropout(0.5),
            layers.Dense(3),
        ]
    )
    model.compile(
        optimizer,
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def _values(model):
    variables = [*model.variables, *model.optimizer.variables]
    return [variable.numpy() for variable in variables]


@pytest.mark.nightly
@pytest.mark.parametrize("trained", [True, False])
def test_measuring_leaves_the_model_as_it_was(trained):
    model = build()
    if trained:
        model.fit(_X, _Y, batch_size=16, verbose=0)
    model.optimizer.build(model.trainable_variables)
    before = _values(model)
    metrics = [v.numpy() for v in model.metrics_variables]
    result = measure(model, _X, _Y, batch_size=16, steps=4)
    for old, new in zip(before, _values(model), strict=True):
        np.testing.assert_array_equal(old, new)
    assert int(model.optimizer.iterations) == (4 if trained else 0)
    # Those that only the first step makes come last, and begin from nothing.
    there = model.metrics_variables
    metrics += [0.0] * (len(there) - len(metrics))
    for old, new in zip(metrics, there, strict=True):
        np.testing.assert_array_equal(old, new.numpy())

    assert len(result.compute_seconds) == 4
    assert min(result.compute_seconds) > 0
    assert result.compute == np.median(result.compute_seconds)
    assert result.update_seconds > 0 and result.step_seconds > 0
    assert result.examples_per_second == 16 / result.step_seconds
    model.fit(_X, _Y, verbose=0)  # It can still be trained.


@pytest.mark.nightly
def test_a_model_with_lbfgs_is_measured_without_its_steps():
    optimizer = LBFGS(memory=3)
    model = build(optimizer)
    before = model.get_weights()
    result = measure(model, _X, _Y, batch_size=16, steps=1)
    assert result.compute > 0 and result.update_seconds > 0
    assert model.optimizer is optimizer
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


def test_bytes_are_those_of_the_simulator():
    model = build()
    result = measure(model, _X, _Y, batch_size=16, steps=1)
    # Two layers and the scale and offset are pushed and pulled, and the two
    # statistics; the seed of the dropout is the worker's own.
    trainable = 4 * 8 + 8 + 8 + 8 + 8 * 3 + 3
    assert result.pull_bytes == result.push_bytes == 4 * (trainable + 16)
    for servers in (1, 3):
        assert result.traffic(Method(), servers) == traffic.of_exchanges(
            model, Method(), servers, set(), {}
        )


@pytest.mark.nightly
def test_what_is_frozen_is_not_sent():
    layers = keras.layers
    base = keras.Sequential(
        [
            keras.Input((4,)),
            layers.Normalization(mean=0.5, variance=2.0),
            layers.Normalization(),
            layers.Dense(16),
            layers.BatchNormalization(),
        ]
    )
    base.layers[-2].trainable = base.layers[-1].trainable = False
    model = keras.Sequential(
        [base, layers.BatchNormalization(), layers.Dense(3)]
    )

    class WithoutTraining(keras.Sequential):
        def compute_loss(self, x, y, y_pred, sample_weight=None):
            return super().compute_loss(x, y, y_pred, sample_weight)

    model = WithoutTraining(model.layers)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(True))
    result = measure(model, _X, _Y, batch_size=16, steps=1)
    # The other normalization: scale, offset and two statistics.
    sent = 4 * (4 * 16 + 16 * 3 + 3)
    assert result.push_bytes == result.pull_bytes == sent
    history = simulate(lambda: model, (_X, _Y), num_workers=1, batch_size=16)
    assert history.push_bytes == history.pull_bytes == sent


@pytest.mark.nightly
def test_of_an_embedding_the_rows_of_a_batch_are_pushed():
    model = keras.Sequential(
        [
            keras.Input((5,), dtype="int32"),
            keras.layers.Embedding(1000, 4),
            keras.layers.Flatten(),
            keras.layers.Dense(3),
        ]
    )
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(True))
    x = _STREAM.integers(0, 1000, (50, 5)).astype("int32")
    result = measure(model, x, _Y, batch_size=16, steps=1)
    # As a real worker sends them: each row of each example with its number.
    rows = 16 * 5 * (4 * 4 + 4)
    dense = 4 * (5 * 4 * 3 + 3)
    whole = 4 * 1000 * 4 + dense
    assert result.push_bytes == rows + dense
    assert result.pull_bytes == whole
    assert result.scaled(2).push_bytes == 2 * rows + dense

    def pushed(text):
        return result.traffic(registry.method(text).resolve(2), 1)[0]

    assert pushed("sync") == [rows + dense]
    assert pushed("dc_asgd:backups=worker") == [2 * (rows + dense)]
    # These send weights, and a momentum that moves all rows.
    assert pushed("parameter_averaging") == pushed("dana") == [whole]
    history = simulate(lambda: model, (x, _Y), num_workers=1, batch_size=16)
    assert history.push_bytes == result.push_bytes


def test_what_a_step_assigns_is_found_without_a_backward_pass():
    def backward(gradient):
        raise AssertionError(f"It is computed: {gradient}")

    forward_alone = tf.custom_gradient(lambda x: (x, backward))
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(3),
            keras.layers.Lambda(forward_alone),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss)
    assert gradients.assigned(model, data.Data((_X, _Y), 16)) == {0, 1}


def test_another_machines_step_is_not_measured_here():
    result = measure(build(), _X, _Y, batch_size=16, steps=2, step_seconds=5.0)
    assert result.compute_seconds == (5.0,)
    assert result.step_seconds == 5.0
    assert 0 < result.update_seconds < 5


def test_a_larger_batch_computes_for_longer_and_sends_as_much():
    one = Measurement(8, (1.0, 3.0), 0.5, 2.25, [Variable((5,))])
    four = one.scaled(4)
    assert four.batch_size == 32
    assert four.compute_seconds == (4.0, 12.0)
    # The gradient's 2 s become 8 s; the rest is what it was.
    assert four.step_seconds == 8.25
    assert four.update_seconds == one.update_seconds
    assert four.push_bytes == one.push_bytes == 20


@pytest.mark.parametrize(
    "settings, parts",
    [
        ({"batch_size": 51}, ["batch_size", "50", "51"]),
        ({"steps": 0}, ["steps", "at least 1", "0"]),
        ({"step_seconds": 0.0}, ["step_seconds", "above 0"]),
        ({"y": _Y[:3]}, ["labels", "[50, 3]"]),
    ],
)
def test_wrong_arguments_are_refused(settings, parts):
    arguments = {"y": _Y, "batch_size": 16, **settings}
    with pytest.raises(ValueError) as error:
        measure(build("sgd"), _X, **arguments)
    for part in parts:
        assert part in str(error.value)


def test_what_cannot_be_split_is_refused():
    class Own(keras.Sequential):
        def train_step(self, data):
            raise NotImplementedError

    model = Own([keras.Input((4,)), keras.layers.Dense(3)])
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="train_step of its own"):
        measure(model, _X, _Y, batch_size=16)
    with pytest.raises(TypeError, match="keras.Model"):
        measure(3, _X, _Y, batch_size=16)


@pytest.mark.parametrize(
    "name, value",
    [
        ("compute_seconds", ()),
        ("update_seconds", -1.0),
    ],
)
def test_wrong_figures_are_refused(name, value):
    good = {
        "batch_size": 1,
        "compute_seconds": (1.0,),
        "update_seconds": 0.0,
        "step_seconds": 1.0,
        "variables": (),
    }
    with pytest.raises(ValueError, match=name):
        Measurement(**{**good, name: value})
