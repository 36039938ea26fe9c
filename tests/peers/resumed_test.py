"""Runs with a codec that are stopped and resumed, in one process."""

import keras
import numpy as np
import pytest

from tests import nightly
from tests.peers import programs
import tfdist
from tfdist import saved_state

WIDTH = 32
X, Y = np.random.default_rng(2).normal(size=[2, 6, WIDTH]).astype(np.float32)


class Run:
    """The models of a script, and its calls of `fit`.

    Args:
        directory: of the checkpoints, of each call its own.
        codec: of the strategy.
    """

    def __init__(self, directory, codec=None):
        codec = codec or tfdist.compression.Threshold(0.5, dense_below=0)
        self.strategy = tfdist.PeerToPeerStrategy(codec)
        self._directory = directory
        self._calls = 0

    def layer(self, width=WIDTH):
        """A layer that begins with zeros."""
        return keras.layers.Dense(
            width, use_bias=False, kernel_initializer="zeros"
        )

    def model(self, *layers):
        """A compiled model: the sum of what layers say."""
        with self.strategy.scope():
            inputs = keras.Input([WIDTH])
            model = keras.Model(inputs, [layer(inputs) for layer in layers])
            self.compile(model, keras.optimizers.SGD(0.125))
        return model

    def compile(self, model, optimizer):
        """Compiles a model."""
        with self.strategy.scope():
            model.compile(optimizer, [programs.Product()] * len(model.outputs))

    def fit(self, model, epochs):
        """Trains up to an epoch, with a checkpoint of its own."""
        name = f"{self._directory}/{self._calls}"
        self._calls += 1
        checkpoint = tfdist.callbacks.ClusterCheckpoint(name)
        targets = [Y[:, : out.shape[-1]] for out in model.outputs]
        model.fit(
            X,
            targets,
            batch_size=2,
            shuffle=False,
            epochs=epochs,
            verbose=0,
            callbacks=[checkpoint],
        )
        return checkpoint.resumed_epoch


def two_towers(directory, epochs, widths):
    """Trains one tower after the other, with one optimizer."""
    run = Run(directory)
    towers = [run.layer(width) for width in widths]
    model = run.model(*towers)
    model.optimizer.build(model.trainable_variables)
    for number, end in enumerate(epochs):
        for k, tower in enumerate(towers):
            tower.trainable = k == number
        run.compile(model, model.optimizer)
        run.fit(model, end)
    return model.get_weights()


@pytest.mark.parametrize(
    "widths", nightly.also([[WIDTH, WIDTH]], [[WIDTH, WIDTH - 1]])
)
def test_each_set_of_variables_has_its_own_residual_again(tmp_path, widths):
    """Also if the first set takes no step in the resumed run."""
    expected = two_towers(tmp_path / "whole", (2, 3), widths)
    two_towers(tmp_path / "parts", (2, 1), widths)
    found = two_towers(tmp_path / "parts", (2, 3), widths)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def two_models(directory, *epochs, made_first=False):
    """Trains a model, then one that may be made after that, and so on."""
    run = Run(directory)
    models = [run.model(run.layer()) for _ in range(2 * made_first)]
    for number, end in enumerate(epochs):
        if number == len(models):
            models.append(run.model(run.layer()))
        run.fit(models[number % 2], end)
    return [model.get_weights()[0] for model in models]


@pytest.mark.parametrize(
    "epochs", nightly.also([[2, 3]], [[2, 2, 1], [2, 2, 1, 3]])
)
@pytest.mark.parametrize("made_first", nightly.also([False], [True]))
def test_each_model_has_its_own_residual_again(tmp_path, epochs, made_first):
    """Also one that is made after a call of `fit` that takes no step."""
    expected = two_models(tmp_path / "whole", *epochs, made_first=made_first)
    two_models(tmp_path / "parts", 2, 1, made_first=made_first)
    found = two_models(tmp_path / "parts", *epochs, made_first=made_first)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.nightly
def test_a_residual_that_has_gone_on_is_not_set_back(tmp_path):
    """By the checkpoint of another model."""

    def train(first):
        run = Run(tmp_path)
        models = [run.model(run.layer()) for _ in range(2)]
        run.fit(models[0], first)
        before = residuals(run.strategy)
        run.fit(models[1], 1)
        return before, residuals(run.strategy)

    train(1)
    before, after = train(2)
    assert before.items() <= after.items()


def residuals(strategy):
    """The residuals, by name, as lists."""
    named = strategy._engine.named
    return {name: variable.numpy().tolist() for name, variable in named.items()}


def test_state_of_another_codec_is_refused(tmp_path):
    def train(rank, epochs):
        run = Run(tmp_path, tfdist.compression.PowerSGD(rank, dense_below=0))
        run.fit(run.model(run.layer()), epochs)

    train(1, 1)
    with pytest.raises(
        saved_state.ModelMismatchError, match="of another codec"
    ):
        train(2, 2)


@pytest.fixture
def with_residual():
    """A saved state with a residual."""
    run = Run("nowhere")
    model = run.model(run.layer())
    model.train_on_batch(X, Y)
    return run.strategy.state.read()


def test_a_residual_with_the_number_of_a_variable_is_refused(with_residual):
    """As earlier versions have saved it."""
    name = "tfdist/local/3/lane0/0/residual"
    variables = [
        *with_residual.header["variables"],
        [name, "float32", [WIDTH**2]],
    ]
    header = {**with_residual.header, "variables": variables}
    run = Run("nowhere")
    run.model(run.layer())
    with pytest.raises(saved_state.ModelMismatchError, match=name):
        run.strategy.state.restore(saved_state.SavedState(header, {}))


@pytest.mark.nightly
def test_a_residual_of_a_state_that_another_replaces_is_not_taken(
    with_residual,
):
    """The state that replaces it was saved before any step."""
    run = Run("nowhere")
    model = run.model(run.layer())
    first = run.strategy.state.read()
    run.strategy.state.restore(with_residual)
    run.strategy.state.restore(first)
    assert run.strategy.state.read().arrays.keys() == first.arrays.keys()
    model.train_on_batch(X, Y)
    expected = Run("nowhere")
    expected.model(expected.layer()).train_on_batch(X, Y)
    assert residuals(run.strategy) == residuals(expected.strategy)
