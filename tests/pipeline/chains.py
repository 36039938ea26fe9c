"""Chains of stages that `oracles.train` knows, as pipelines without flushes."""

import keras
import numpy as np
import tensorflow as tf

from tfdist.pipeline import pipelined

RATE, MOMENTUM = 0.125, 0.75  # Exact in the float32 that Keras casts from.
WIDTHS = (3, 4, 5, 4, 2)


def initial(depth, seed=0):
    rng = np.random.default_rng(seed)
    widths = [*WIDTHS[:depth], 2]
    return [
        rng.normal(size=shape)
        for shape in zip(widths[:-1], widths[1:], strict=True)
    ]


def units_of(sizes, seed=1):
    rng = np.random.default_rng(seed)
    return [(rng.normal(size=(n, 3)), rng.normal(size=(n, 2))) for n in sizes]


def chain(weights, optimizer, run_eagerly=False, devices=None, **options):
    """A model as `oracles.train` has it, one stage for each of the weights."""
    last = len(weights) - 1
    model = keras.Sequential([keras.Input((len(weights[0]),))])
    for k, w in enumerate(weights):
        activation = "tanh" if k < last else None
        model.add(
            keras.layers.Dense(
                w.shape[1], activation, use_bias=False, name=f"d{k}"
            )
        )
    model.set_weights(weights)
    stages = [[f"d{k}"] for k in range(len(weights))]
    pipelined.pipeline(model, stages, devices, **options)
    model.compile(optimizer, "mse", run_eagerly=run_eagerly)
    return model


def sgd(momentum=MOMENTUM):
    return keras.optimizers.SGD(RATE, momentum=momentum)


def executor(model):
    return model._tfdist_pipeline.executor


def ticks_of(model):
    (found,) = executor(model)._ticks.values()
    return found


def feed(model, batches):
    """Trains on batches, each in a step, without draining."""
    step = executor(model).train_step
    if not model.run_eagerly:
        step = tf.function(step)
    for x, y in batches:
        step((tf.constant(x), tf.constant(y)))


def batches_of(units, count):
    return [
        [
            np.concatenate(parts)
            for parts in zip(*units[i : i + count], strict=True)
        ]
        for i in range(0, len(units), count)
    ]


def assert_weights(model, expected, atol=1e-12):
    for k, (got, want) in enumerate(
        zip(model.get_weights(), expected, strict=True)
    ):
        np.testing.assert_allclose(got, want, atol=atol, err_msg=f"stage {k}")
