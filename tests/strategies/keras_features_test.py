"""What Keras can do in a model or a step, it does the same under a strategy."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.strategies.twins import assert_trains_the_same
from tests.strategies.twins import classification
from tests.strategies.twins import compiled
from tests.strategies.twins import perceptron
from tests.strategies.twins import traces
import tfdist

X, Y = classification()


def _fit(model, x=X, y=Y, **arguments):
    arguments = {"batch_size": 6, "epochs": 2, "shuffle": False, **arguments}
    return model.fit(x, y, verbose=0, **arguments).history


def _assert_fits_the_same(build, *data, **arguments):
    """`build()` makes a compiled model, in the scope."""

    def train(scope):
        with scope():
            model = build()
        history = _fit(model, *data, **arguments)
        return history, traces(model)

    return assert_trains_the_same(train)


@pytest.mark.nightly
def test_fit_evaluate_predict():
    """Of shuffled data with a smaller last batch; then with another rate."""

    def train(scope):
        with scope():
            model = compiled(perceptron(), keras.optimizers.Adam(0.1))
        history = _fit(model, validation_split=0.25, batch_size=5, shuffle=True)
        # An eager operation sees the newest slots, before anything else does.
        slots = [np.asarray(v * 1) for v in model.optimizer.variables]
        model.optimizer.learning_rate = 0.2
        one = model.train_on_batch(X[:6], Y[:6])
        return (
            history,
            slots,
            one,
            model.evaluate(X, Y, verbose=0),
            model.test_on_batch(X, Y),
            model.predict(X, verbose=0),
            model.predict_on_batch(X[:3]),
            traces(model),
        )

    history, slots, *_ = assert_trains_the_same(train)
    assert set(history) == {"loss", "accuracy", "val_loss", "val_accuracy"}
    assert np.any(slots[2])


class Either(keras.Model):
    """Has an input that may be missing."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(3)

    def call(self, inputs):
        x, other = inputs
        return self.dense(x if other is None else x + other)


@pytest.mark.nightly
def test_a_generator_with_nothing_for_an_input():
    def batches():
        for first in range(0, 24, 6):
            yield (X[first : first + 6], None), Y[first : first + 6]

    def train(scope):
        if scope is contextlib.nullcontext:
            # Given a generator, plain Keras trains on the first batch twice.
            dense = keras.layers.Dense(3)
            model = compiled(keras.Sequential([dense]), "adam")
            data = {"x": X, "y": Y, "batch_size": 6}
            history = model.fit(**data, shuffle=False, verbose=0).history
            return history, model.evaluate(**data, verbose=0), traces(model)
        with scope():
            model = compiled(Either(), "adam")
        history = model.fit(batches(), verbose=0).history
        return history, model.evaluate(batches(), verbose=0), traces(model)

    assert_trains_the_same(train)


class _Sequence(keras.utils.PyDataset):
    def __len__(self):
        return len(X) // 6

    def __getitem__(self, index):
        rows = slice(6 * index, 6 * index + 6)
        return X[rows], Y[rows]


def _generator():
    while True:
        for index in range(len(X) // 6):
            rows = slice(6 * index, 6 * index + 6)
            yield X[rows], Y[rows]


@pytest.mark.nightly
def test_inputs():
    """The same batches, whatever they come from."""
    inputs = [
        ((X, Y), {"batch_size": 6}),
        ((tf.constant(X), tf.constant(Y)), {"batch_size": 6}),
        ((tf.data.Dataset.from_tensor_slices((X, Y)).batch(6),), {}),
        ((_Sequence(),), {}),
        ((_generator(),), {"steps_per_epoch": 4}),
    ]

    def train(scope):
        is_plain = scope is contextlib.nullcontext
        with scope():
            model = compiled(perceptron())
        histories = [
            model.fit(*data, shuffle=False, verbose=0, **arguments).history
            for data, arguments in ([inputs[0]] * 5 if is_plain else inputs)
        ]
        return histories, traces(model)

    _, found = assert_trains_the_same(train)
    # Four batches of each.
    assert found["optimizer"][0] == 4 * len(inputs)


@pytest.mark.nightly
def test_constraints_and_regularizers():
    found = _assert_fits_the_same(
        lambda: compiled(
            perceptron(
                kernel_constraint=keras.constraints.MaxNorm(0.3),
                bias_constraint=keras.constraints.MinMaxNorm(0.4, 0.6, 0.5),
                kernel_regularizer=keras.regularizers.L1L2(0.01, 0.02),
                activity_regularizer="l2",
            ),
            "adam",
        )
    )
    norms = np.linalg.norm(found[1]["weights"][0], axis=0)
    assert np.all(norms <= 0.3 + 1e-6) and np.any(norms > 0.29)


@pytest.mark.nightly
def test_frozen_layers_stay_and_others_move():
    """With one optimizer, which has trained them before."""

    def train(scope):
        with scope():
            model = compiled(perceptron(), "adam")
        _fit(model)
        before = model.get_weights()
        model.layers[0].trainable = False
        with scope():
            compiled(model, model.optimizer)
        _fit(model)
        return before, traces(model)

    before, after = assert_trains_the_same(train)
    moved = [
        np.max(np.abs(a - b))
        for a, b in zip(after["weights"], before, strict=True)
    ]
    assert moved[:2] == [0.0, 0.0] and min(moved[2:]) > 1e-4


def test_layers_with_state_of_their_own():
    """Random layers draw the same numbers, and statistics move alike."""

    def train(scope):
        with scope():
            model = compiled(
                keras.Sequential(
                    [
                        keras.Input((5,)),
                        keras.layers.GaussianNoise(0.5),
                        keras.layers.Dense(4, use_bias=False),
                        keras.layers.BatchNormalization(momentum=0.7),
                        keras.layers.Activation("tanh"),
                        keras.layers.Dropout(0.5),
                        keras.layers.Dense(3),
                    ]
                )
            )
        _fit(model)
        evaluated = model.evaluate(X, Y, verbose=0)
        return evaluated, traces(model)

    _, found = assert_trains_the_same(train)
    mean = found["weights"][3]
    assert np.max(np.abs(mean)) > 1e-3


@pytest.mark.nightly
def test_embedding_with_sparse_gradients():
    random = np.random.default_rng(5)
    # Row 11 never occurs; within a batch, rows occur more than once.
    ids = random.integers(0, 11, (24, 4)).astype("int32")

    def build():
        return compiled(
            keras.Sequential(
                [
                    keras.Input((4,), dtype="int32"),
                    keras.layers.Embedding(12, 3),
                    keras.layers.Flatten(),
                    keras.layers.Dense(3),
                ]
            ),
            "ftrl",
        )

    _assert_fits_the_same(build, ids, Y)


class _Scaled(keras.layers.Layer):
    """Keeps the largest input seen, written as float8 layers do it."""

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], 3), name="kernel")
        self.peak = self.add_weight(shape=(), initializer="zeros", name="peak")
        self.peak.overwrite_with_gradient = True

    def call(self, x):
        @tf.custom_gradient
        def peaked(x, peak):
            largest = tf.maximum(peak, tf.reduce_max(tf.abs(x)))
            return x, lambda upstream: (upstream, largest)

        return peaked(x, tf.convert_to_tensor(self.peak)) @ self.kernel


@pytest.mark.nightly
@pytest.mark.parametrize("steps", [2, None])
def test_overwrite_with_gradient(steps):
    found = _assert_fits_the_same(
        lambda: compiled(
            keras.Sequential([keras.Input((5,)), _Scaled()]),
            keras.optimizers.Adam(gradient_accumulation_steps=steps),
        )
    )
    np.testing.assert_allclose(found[1]["weights"][1], np.max(np.abs(X)))


@pytest.mark.nightly
def test_overwritten_weights_with_local_steps():
    with tfdist.ParameterAveragingStrategy(period=2).scope():
        model = compiled(keras.Sequential([keras.Input((5,)), _Scaled()]))
    _fit(model)
    np.testing.assert_allclose(model.get_weights()[1], np.max(np.abs(X)))


@pytest.mark.nightly
def test_reading_the_count_leaves_accumulating_steps_in_it():
    """A read refreshes the count; the server knows only of whole updates."""

    def train(scope):
        with scope():
            model = compiled(
                perceptron(),
                keras.optimizers.SGD(0.1, gradient_accumulation_steps=3),
            )
        counts = []
        for number in range(1, 9):
            model.train_on_batch(X[:6], Y[:6])
            if number not in (3, 6):
                counts.append(model.optimizer.variables[0].numpy())
        return counts, traces(model)

    assert assert_trains_the_same(train)[0] == [1, 2, 4, 5, 7, 8]
