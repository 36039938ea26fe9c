"""One worker with local steps trains as plain Keras, whatever the period.

The last period is cut short, so what is left has to be pushed in the end.
"""

import contextlib
import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.strategies.twins import assert_same
import tfdist
from tfdist.averaging import ParameterAveraging
from tfdist.synchronization import Sync

BATCH, STEPS, EPOCHS, PERIOD = 6, 4, 2, 3
optimizers = keras.optimizers
schedules = keras.optimizers.schedules


def build(constraint=None):
    """Rows without a gradient, moving statistics, and a constraint."""
    return keras.Sequential(
        [
            keras.Input((3,), dtype="int32"),
            keras.layers.Embedding(9, 2),
            keras.layers.Flatten(),
            keras.layers.Dense(4, use_bias=False, kernel_constraint=constraint),
            keras.layers.BatchNormalization(momentum=0.8),
            keras.layers.Activation("tanh"),
            keras.layers.Dense(3, dtype="float32"),
        ]
    )


def data():
    random = np.random.default_rng(0)
    number = BATCH * STEPS
    ids = random.integers(0, 7, (number, 3)).astype("int32")
    labels = random.integers(0, 3, number).astype("int32")
    return ids, labels


OPTIMIZERS = {
    "adam": lambda: optimizers.Adam(0.01),
    "weight decay, clipping and a schedule": lambda: optimizers.AdamW(
        schedules.CosineDecay(0.01, 6, warmup_target=0.05, warmup_steps=2),
        weight_decay=0.05,
        global_clipnorm=0.1,
    ),
    "loss scale": lambda: optimizers.LossScaleOptimizer(
        optimizers.SGD(0.1, 0.9), initial_scale=2.0**17, dynamic_growth_steps=2
    ),
    "two": lambda: optimizers.MultiOptimizer(
        optimizers.OptimizerMap(
            optimizers.Adam(0.01), {"dense.*": optimizers.SGD(0.1, 0.9)}
        )
    ),
}


def train(
    scope,
    optimizer="adam",
    *,
    end=lambda model: None,
    policy="float32",
    constraint=None,
    others=(),
    **arguments,
):
    """Trains; returns what it has come to."""
    keras.utils.set_random_seed(3)
    keras.config.set_dtype_policy(policy)
    try:
        with scope:
            model = build(constraint)
            model.compile(
                OPTIMIZERS[optimizer](),
                keras.losses.SparseCategoricalCrossentropy(from_logits=True),
                **arguments,
            )
            model.optimizer.build(model.trainable_variables)
    finally:
        keras.config.set_dtype_policy("float32")
    x, y = data()
    fitted = model.fit(
        x, y, batch_size=BATCH, epochs=EPOCHS, shuffle=False, verbose=0
    )
    for size in others:
        batches = tf.data.Dataset.from_tensor_slices((x, y))
        batches = batches.batch(size, drop_remainder=True)
        model.fit(batches, verbose=0)
    end(model)
    return {
        "losses": fitted.history["loss"],
        "weights": model.get_weights(),
        "optimizer": [np.array(v) for v in model.optimizer.variables],
    }


def check(strategy, **arguments):
    """Compares with plain Keras; returns what was found."""
    found = train(
        strategy.scope(), end=lambda model: strategy.barrier(), **arguments
    )
    # Each use of this constraint shrinks weights by 1e-7 / norm, and
    # servers use it once more in each exchange.
    tolerance = 1e-5 if arguments.get("constraint") else 1e-6
    assert_same(found, plain(*sorted(arguments.items())), tolerance)
    return found


@functools.cache
def plain(*arguments):
    """What it comes to without a strategy."""
    return train(contextlib.nullcontext(), **dict(arguments))


max_norm = keras.constraints.MaxNorm(0.3)


@pytest.mark.nightly
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_optimizers(optimizer):
    strategy = tfdist.ParameterServerStrategy(local_steps=PERIOD)
    policy = "mixed_float16" if optimizer == "loss scale" else "float32"
    check(strategy, optimizer=optimizer, policy=policy)
    steps = sum(e.local_steps for e in strategy.journal.read_new())
    if optimizer not in ("loss scale", "two"):
        assert steps == STEPS * EPOCHS
        assert strategy.updates_applied()[0] == 3


@pytest.mark.nightly
def test_batches_of_sizes_for_which_steps_are_traced_anew():
    check(tfdist.ParameterServerStrategy(local_steps=PERIOD), others=(4, 8))


def partitioner(shape, dtype):
    """Everything with more than three rows in two pieces."""
    del dtype
    return [2 if shape[0] > 3 else 1] + [1] * (len(shape) - 1)


AVERAGED = "synchronous, state averaged"
STRATEGIES = {
    AVERAGED: lambda: tfdist.ParameterAveragingStrategy(
        PERIOD, average_optimizer_state=True
    ),
    "never within training": lambda: tfdist.ParameterAveragingStrategy(1000),
    "pieces": lambda: tfdist.ParameterServerStrategy(
        local_steps=PERIOD, variable_partitioner=partitioner
    ),
    "pieces, state averaged": lambda: tfdist.ParameterServerStrategy(
        local_steps=ParameterAveraging(PERIOD, average_optimizer_state=True),
        synchronization=Sync(),
        variable_partitioner=partitioner,
    ),
}


@pytest.mark.nightly
@pytest.mark.parametrize("name", STRATEGIES)
def test_strategies(name):
    """Constraints are of own weights, at each step."""
    strategy = STRATEGIES[name]()
    is_whole = "pieces" not in name
    found = check(
        strategy,
        optimizer="weight decay, clipping and a schedule",
        constraint=max_norm if is_whole else None,
    )
    norms = np.linalg.norm(found["weights"][1], axis=0)
    if is_whole:
        assert np.all(norms <= 0.3 + 1e-6) and np.any(norms > 0.29)
    if name == AVERAGED:
        steps = sum(e.local_steps for e in strategy.journal.read_new())
        assert steps == STEPS * EPOCHS
        assert strategy.updates_applied()[0] == 3
