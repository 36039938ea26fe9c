"""What Keras can do in a model or a step, it does the same under a strategy."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import nightly
from tests.strategies.twins import assert_same
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


def test_fit_evaluate_predict():
    def train(scope):
        with scope():
            model = compiled(perceptron(), "adam")
        history = _fit(model, validation_split=0.25)
        one = model.train_on_batch(X[:6], Y[:6])
        return (
            history,
            one,
            model.evaluate(X, Y, verbose=0),
            model.test_on_batch(X, Y),
            model.predict(X, verbose=0),
            model.predict_on_batch(X[:3]),
            traces(model),
        )

    history = assert_trains_the_same(train)[0]
    assert set(history) == {"loss", "accuracy", "val_loss", "val_accuracy"}


class Either(keras.Model):
    """Has an input that may be missing."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(3)

    def call(self, inputs):
        x, other = inputs
        return self.dense(x if other is None else x + other)


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


@pytest.mark.parametrize(
    "make",
    [
        lambda: ((X, Y), {"batch_size": 6}),
        lambda: ((tf.constant(X), tf.constant(Y)), {"batch_size": 6}),
        lambda: ((tf.data.Dataset.from_tensor_slices((X, Y)).batch(6),), {}),
        lambda: ((_Sequence(),), {}),
        lambda: ((_generator(),), {"steps_per_epoch": 4}),
    ],
    ids=["numpy", "tensors", "tf.data", "PyDataset", "generator"],
)
def test_inputs(make):
    def train(scope):
        with scope():
            model = compiled(perceptron())
        data, arguments = make()
        history = model.fit(
            *data, epochs=2, shuffle=False, verbose=0, **arguments
        )
        return history.history, traces(model)

    found = assert_trains_the_same(train)
    # Four batches in each of two epochs, whatever they came from.
    assert found[1]["optimizer"][0] == 8


@pytest.mark.nightly
def test_shuffled_numpy_arrays_have_the_same_order():
    _assert_fits_the_same(lambda: compiled(perceptron()), shuffle=True)


@pytest.mark.nightly
def test_steps_per_execution():
    """With 4 batches an epoch, 3 leaves an execution that is cut short."""
    found = _assert_fits_the_same(
        lambda: compiled(perceptron(), "adam", steps_per_execution=3)
    )
    assert found[1]["optimizer"][0] == 8


@pytest.mark.nightly
def test_last_batch_is_smaller():
    _assert_fits_the_same(lambda: compiled(perceptron()), X[:20], Y[:20])


@pytest.mark.nightly
def test_class_and_sample_weights():
    found = _assert_fits_the_same(
        lambda: compiled(perceptron()), class_weight={0: 0.1, 1: 2.0, 2: 1.0}
    )
    plain = _assert_fits_the_same(lambda: compiled(perceptron()))
    assert found[0]["loss"] != plain[0]["loss"]
    weights = np.linspace(0.0, 2.0, len(X)).astype("float32")
    _assert_fits_the_same(
        lambda: compiled(perceptron(), weighted_metrics=["accuracy"]),
        sample_weight=weights,
    )


@pytest.mark.parametrize(
    "constraint",
    nightly.also(
        [keras.constraints.MinMaxNorm(0.4, 0.6, rate=0.5)],
        [keras.constraints.MaxNorm(0.3)],
    ),
    ids=lambda constraint: type(constraint).__name__,
)
def test_constraints(constraint):
    found = _assert_fits_the_same(
        lambda: compiled(perceptron(kernel_constraint=constraint), "adam")
    )
    if isinstance(constraint, keras.constraints.MaxNorm):
        norms = np.linalg.norm(found[1]["weights"][0], axis=0)
        assert np.all(norms <= 0.3 + 1e-6) and np.any(norms > 0.29)


@pytest.mark.nightly
def test_regularizers():
    _assert_fits_the_same(
        lambda: compiled(
            perceptron(
                kernel_regularizer=keras.regularizers.L1L2(0.01, 0.02),
                activity_regularizer="l2",
            )
        )
    )


def test_frozen_layers_stay_and_thawed_ones_move():
    def train(scope):
        with scope():
            model = perceptron()
            model.layers[0].trainable = False
            compiled(model, "adam")
        _fit(model)
        frozen = traces(model)
        with scope():
            model.layers[0].trainable = True
            compiled(model, "adam")
        _fit(model)
        return frozen, traces(model)

    frozen, thawed = assert_trains_the_same(train)
    kernel = frozen["weights"][0]
    assert np.max(np.abs(thawed["weights"][0] - kernel)) > 1e-4


@pytest.mark.nightly
def test_shared_layer_gets_both_gradients():
    def build():
        shared = keras.layers.Dense(3, activation="tanh")
        inputs = keras.Input((5,)), keras.Input((5,))
        merged = keras.layers.Concatenate()([shared(i) for i in inputs])
        outputs = keras.layers.Dense(3)(merged)
        return compiled(keras.Model(inputs, outputs), "adam")

    _assert_fits_the_same(build, (X, X[::-1].copy()), Y)


@pytest.mark.parametrize(
    "layer",
    [
        lambda: keras.layers.Dropout(0.5),
        lambda: keras.layers.GaussianNoise(0.5),
    ],
    ids=["Dropout", "GaussianNoise"],
)
def test_random_layers_draw_the_same_numbers(layer):
    def build():
        return compiled(
            keras.Sequential(
                [
                    keras.Input((5,)),
                    keras.layers.Reshape((5, 1)),
                    layer(),
                    keras.layers.Flatten(),
                    keras.layers.Dense(3),
                ]
            )
        )

    _assert_fits_the_same(build)


def test_batch_normalization_statistics():
    def train(scope):
        with scope():
            model = compiled(
                keras.Sequential(
                    [
                        keras.Input((5,)),
                        keras.layers.Dense(4, use_bias=False),
                        keras.layers.BatchNormalization(momentum=0.7),
                        keras.layers.Activation("tanh"),
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


@pytest.mark.parametrize("optimizer", nightly.also(["ftrl"], ["adam"]))
def test_embedding_with_sparse_gradients(optimizer):
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
            optimizer,
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


@pytest.mark.parametrize("steps", [None, 2])
def test_overwrite_with_gradient(steps):
    found = _assert_fits_the_same(
        lambda: compiled(
            keras.Sequential([keras.Input((5,)), _Scaled()]),
            keras.optimizers.Adam(gradient_accumulation_steps=steps),
        )
    )
    np.testing.assert_allclose(found[1]["weights"][1], np.max(np.abs(X)))


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


def test_eager_operations_see_the_newest_of_optimizers():
    """They would read what this worker has of a slot, and ask no server."""

    def train(scope):
        with scope():
            model = compiled(perceptron(), keras.optimizers.Adam(0.1))
        _fit(model)
        # Before anything else looks at them.
        found = [np.asarray(v * 1) for v in model.optimizer.variables]
        return found, traces(model)

    assert np.any(assert_trains_the_same(train)[0][2])


@pytest.mark.nightly
def test_model_is_built_by_fit():
    """Layers without an input shape get their variables in the first call."""
    _assert_fits_the_same(
        lambda: compiled(
            keras.Sequential(
                [
                    keras.layers.Dense(4, activation="tanh"),
                    keras.layers.Dense(3),
                ]
            ),
            "adam",
        )
    )


def test_learning_rate_can_be_set_between_fits():
    def train(scope):
        with scope():
            model = compiled(perceptron(), "adam")
        _fit(model)
        model.optimizer.learning_rate = 0.1
        _fit(model)
        return traces(model)

    assert_trains_the_same(train)


@pytest.mark.nightly
def test_weights_can_be_set_between_fits():
    def train(scope):
        with scope():
            model = compiled(perceptron(), "sgd")
        _fit(model)
        model.set_weights([0.5 * w for w in model.get_weights()])
        model.layers[0].bias.assign([1.0, 2.0, 3.0, 4.0])
        _fit(model)
        return traces(model)

    assert_trains_the_same(train)


@pytest.mark.nightly
def test_several_models_in_one_strategy():
    strategy = tfdist.AsyncStrategy()
    results = []
    for _ in range(2):
        keras.utils.set_random_seed(7)
        with strategy.scope():
            model = compiled(perceptron(), "adam")
        history = _fit(model)
        results.append((history, traces(model)))
    assert_same(results[1], results[0])
