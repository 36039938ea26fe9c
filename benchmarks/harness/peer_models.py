"""The models and the batches that all peers train, whatever their library."""

import dataclasses

import numpy as np

BATCH_SIZE = 32
NUM_BATCHES = 16  # Made once, and then repeated.
LEARNING_RATE = 1e-3


@dataclasses.dataclass(frozen=True)
class Shape:
    """A multi-layer perceptron: dense layers with ReLU, the last without.

    Attributes:
        features: numbers of an example.
        hidden: units of the layers before the last, a tuple.
        classes: units of the last layer.
    """

    features: int
    hidden: tuple[int, ...]
    classes: int = 10

    @property
    def layers(self):
        """(inputs, units) of each layer, a list."""
        widths = (self.features, *self.hidden, self.classes)
        return list(zip(widths[:-1], widths[1:], strict=True))

    @property
    def num_variables(self):
        """Of trainable variables: a kernel and a bias per layer."""
        return 2 * len(self.layers)

    @property
    def num_parameters(self):
        """Of the elements of all variables."""
        return sum((inputs + 1) * units for inputs, units in self.layers)


MODELS = {
    "small": Shape(64, (128,)),
    "medium": Shape(64, (64,) * 60),
    "large": Shape(2048, (4096, 2048)),
}


def batches(shape, worker):
    """Random data of one worker.

    Args:
        shape: a `Shape`.
        worker: its number.

    Returns:
        A tuple: `(NUM_BATCHES, BATCH_SIZE, features) float32` and labels,
        `(NUM_BATCHES, BATCH_SIZE) int64`.
    """
    random = np.random.default_rng(worker)
    size = (NUM_BATCHES, BATCH_SIZE)
    return (
        random.standard_normal((*size, shape.features), np.float32),
        random.integers(shape.classes, size=size, dtype=np.int64),
    )
