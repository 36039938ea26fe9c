"""A model whose gradients can be written down: linear regression.

The loss of a batch is the mean of `(x w - y)^2`, so that the gradient is
`2 / n * x^T (x w - y)`.
"""

import keras
import numpy as np

SIZE, EXAMPLES, BATCH, RATE = 3, 48, 4, 0.05
_stream = np.random.default_rng(7)
X = _stream.standard_normal((EXAMPLES, SIZE)).astype("float32")
Y = (X @ [1.0, -2.0, 0.5] + 0.3 * _stream.standard_normal(EXAMPLES)).astype(
    "float32"
)
START = np.linspace(-1, 1, SIZE).astype("float32")


def model_fn(optimizer=None):
    """What makes the model, for `simulate`.

    Args:
      optimizer: Callable that makes the optimizer; default: plain SGD.
    """

    def build():
        model = keras.Sequential(
            [
                keras.Input((SIZE,)),
                keras.layers.Dense(1, use_bias=False),
                keras.layers.Reshape(()),
            ]
        )
        model.set_weights([START[:, None]])
        made = keras.optimizers.SGD(RATE) if optimizer is None else optimizer()
        model.compile(made, "mse")
        return model

    return build


def fit(model, epochs):
    """Trains a model as `simulate` does, with Keras's own `fit`."""
    model.fit(X, Y, batch_size=BATCH, epochs=epochs, shuffle=False, verbose=0)


def gradient(weights, rows):
    """Of the mean squared error of the examples `rows`, a vector."""
    x, y = X[rows].astype("float64"), Y[rows].astype("float64")
    return 2 / len(rows) * x.T @ (x @ weights - y)


def rows_of(batch):
    """The examples of a batch, where nothing is shuffled."""
    first = batch % (EXAMPLES // BATCH) * BATCH
    return np.arange(first, first + BATCH)


def weights_of(history):
    """The trained weights, a vector."""
    return history.model.get_weights()[0][:, 0]
