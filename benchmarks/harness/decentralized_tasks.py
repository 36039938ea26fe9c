"""Small tasks on which methods with and without servers are compared."""

import dataclasses
import itertools

import keras
import numpy as np

from tfdist.simulation import tasks


@dataclasses.dataclass
class Task:
    """Data, and a network that is a stack of dense layers.

    Attributes:
        name: of the task.
        widths: of the dense layers, the input's first.
        activation: of the hidden ones.
        embedding: (characters, elements), or None.
        arrays: x and y of all examples.
        sizes: examples for training, validation and the test.
        batch_size: examples of one gradient.
        epochs: passes over the data.
        evaluations: per epoch.
        target: test accuracy whose time is taken.
    """

    name: str
    widths: tuple
    activation: str
    embedding: tuple | None
    arrays: tuple
    sizes: tuple
    batch_size: int
    epochs: int
    evaluations: float
    target: float

    def split(self, seed):
        """Pairs (x, y) for training, validation and the test."""
        order = np.random.default_rng([seed, 7]).permutation(
            len(self.arrays[0])
        )
        ends = np.cumsum(self.sizes)
        parts = np.split(order[: ends[-1]], ends[:-1])
        return [tuple(array[part] for array in self.arrays) for part in parts]

    def model(self, seed):
        """A compiled model with first weights of a seed."""
        keras.utils.set_random_seed(seed)
        layers = keras.layers
        stack = [keras.Input(self.arrays[0].shape[1:])]
        if self.embedding:
            stack += [layers.Embedding(*self.embedding), layers.Flatten()]
        for width in self.widths[1:-1]:
            stack.append(layers.Dense(width, activation=self.activation))
        stack.append(layers.Dense(self.widths[-1]))
        model = keras.Sequential(stack)
        model.compile(
            keras.optimizers.SGD(0.1),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
        return model

    def accuracy(self, weights, x, y):
        """Share of right answers of the network with a vector of weights."""
        at = 0
        if self.embedding:
            at = int(np.prod(self.embedding))
            table = weights[:at].reshape(self.embedding)
            x = table[x].reshape(len(x), -1)
        last = len(self.widths) - 2
        for layer, (rows, columns) in enumerate(
            itertools.pairwise(self.widths)
        ):
            kernel = weights[at : at + rows * columns].reshape(rows, columns)
            at += rows * columns
            x = x @ kernel + weights[at : at + columns]
            at += columns
            if layer < last:
                x = np.tanh(x) if self.activation == "tanh" else x * (x > 0)
        return float((x.argmax(1) == y).mean())


def make(name):
    """The `Task` of that name."""
    if name == "digits":
        task = tasks.digits()
        parts = zip(task.train, task.validation, strict=True)
        x, y = (np.concatenate(pair) for pair in parts)
        return Task(
            name,
            (64, 128, 128, 10),
            "relu",
            None,
            (x.reshape(len(x), 64), y),
            (1024, 400, 373),
            batch_size=16,
            epochs=20,
            evaluations=1.0,
            target=0.9,
        )
    task = tasks.text(num_examples=16_000, num_validation=4_000)
    parts = zip(task.train, task.validation, strict=True)
    characters = int(max(task.train[0].max(), task.train[1].max())) + 1
    return Task(
        name,
        (80, 192, characters),
        "tanh",
        (characters, 8),
        tuple(np.concatenate(pair) for pair in parts),
        (12_288, 2_712, 5_000),
        batch_size=32,
        epochs=4,
        evaluations=2.0,
        target=0.28,
    )
