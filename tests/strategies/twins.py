"""The same training twice: in plain Keras, and under a strategy."""

import contextlib

import keras
import numpy as np
import tensorflow as tf

import tfdist


def assert_same(found, expected, tolerance=1e-6):
    """Compares nested lists, tuples and dicts of numbers and arrays.

    Args:
      found: What came of it under the strategy.
      expected: What came of it without.
      tolerance: Largest difference, relative to the largest element.
    """
    tf.nest.assert_same_structure(found, expected)
    flat = zip(tf.nest.flatten(found), tf.nest.flatten(expected), strict=True)
    for position, (mine, plain) in enumerate(flat):
        size = float(np.max(np.abs(plain), initial=0.0))
        np.testing.assert_allclose(
            mine,
            plain,
            rtol=tolerance,
            atol=tolerance * size,
            err_msg=f"value {position} of {len(tf.nest.flatten(expected))}",
        )


def assert_trains_the_same(train, tolerance=1e-6):
    """Calls `train` twice and compares what it returns.

    Args:
      train: Callable of a function that gives a scope to make models in;
        returns numbers that show how the training went.
      tolerance: See `assert_same`.

    Returns:
      What `train` returned under the strategy.
    """
    keras.utils.set_random_seed(7)
    expected = train(contextlib.nullcontext)
    strategy = tfdist.AsyncStrategy()
    keras.utils.set_random_seed(7)
    found = train(strategy.scope)
    assert_same(found, expected, tolerance)
    return found


def classification(examples=24, features=5, classes=3):
    """Inputs (examples, features) float32 and labels (examples,) int32."""
    random = np.random.default_rng(3)
    x = random.normal(size=(examples, features)).astype("float32")
    y = random.integers(0, classes, examples).astype("int32")
    return x, y


def perceptron(features=5, classes=3, **dense):
    """A model of two dense layers; `dense` goes to the first one."""
    return keras.Sequential(
        [
            keras.Input((features,)),
            keras.layers.Dense(4, activation="tanh", **dense),
            keras.layers.Dense(classes),
        ]
    )


def compiled(model, optimizer="sgd", **compile_arguments):
    """`model`, compiled to classify from logits."""
    model.compile(
        optimizer,
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        **{"metrics": ["accuracy"], **compile_arguments},
    )
    return model


def traces(model):
    """Weights and the optimizer's variables, lists of arrays."""
    return {
        "weights": model.get_weights(),
        "optimizer": [np.array(v) for v in model.optimizer.variables],
    }
