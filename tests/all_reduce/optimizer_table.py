"""Optimizers and settings, each over three fits, against Keras on one machine.

Both workers' batches of a step have as many examples, so that the mean of
their gradients is the gradient of both batches together. The oracle takes the
same steps in one process, without a strategy and without `fit`: Keras's own
`apply`, all in float64.
"""

import keras
import numpy as np
import tensorflow as tf

from tests.all_reduce import programs
from tests.multi_process import handshake
import tfdist

# By call of `fit`, the number of batches of each worker.
BATCHES = ((5, 3), (1, 2), (3, 3))
SIZE = 2

OPTIMIZERS = {
    "SGD": {"momentum": 0.9},
    "RMSprop": {"momentum": 0.5, "centered": True},
    "Adam": {"amsgrad": True},
    "AdamW": {},
    "Adadelta": {},
    "Adagrad": {},
    "Adamax": {},
    "Adafactor": {},
    "Nadam": {},
    "Ftrl": {"l1_regularization_strength": 0.01},
    "Lion": {},
    "Lamb": {},
    "Muon": {},
}
SETTINGS = {
    "plain": {},
    "accumulation": {"gradient_accumulation_steps": 2},
    "EMA": {"use_ema": True, "ema_overwrite_frequency": 3},
    "weight_decay": {"weight_decay": 0.1},
    "clipnorm": {"clipnorm": 0.1},
    "loss_scale": {},
}
# Settings are Keras's own code around any rule. Nadam has a number beside its
# slots, and Muon has two rules.
NAMES = [
    *(f"{name}/plain" for name in OPTIMIZERS),
    *(
        f"{name}/{setting}"
        for setting in SETTINGS
        if setting != "plain"
        for name in ("Nadam", "Muon")
    ),
]


def optimizer_of(name):
    """Makes the optimizer of one of `NAMES`."""
    name, setting = name.split("/")
    made = getattr(keras.optimizers, name)(
        0.05, **OPTIMIZERS[name], **SETTINGS[setting]
    )
    if setting == "loss_scale":
        made = keras.optimizers.LossScaleOptimizer(
            made, initial_scale=1024.0, dynamic_growth_steps=4
        )
    return made


def model_of():
    """Makes a small model with the same weights each time."""
    make = keras.initializers.RandomNormal
    return keras.Sequential(
        [
            keras.Input([3]),
            keras.layers.Dense(
                4, activation="tanh", kernel_initializer=make(seed=1)
            ),
            keras.layers.Dense(2, kernel_initializer=make(seed=2)),
        ]
    )


def data_of(fit, worker):
    """A worker's examples of a call of `fit`, `(n, 3)` and `(n, 2)`."""
    random = np.random.default_rng([fit, worker])
    number = BATCHES[fit][worker] * SIZE
    return random.normal(size=[number, 3]), random.normal(size=[number, 2])


def oracle(name):
    """All numbers that Keras alone comes to, a list of arrays."""
    model, optimizer = model_of(), optimizer_of(name)
    variables = model.trainable_variables
    optimizer.build(variables)
    for fit in range(len(BATCHES)):
        data = [data_of(fit, worker) for worker in range(2)]
        for step in range(max(BATCHES[fit])):
            here = slice(step * SIZE, (step + 1) * SIZE)
            x, y = (
                np.concatenate([part[k][here] for part in data])
                for k in range(2)
            )
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x) - y) ** 2)
                loss = optimizer.scale_loss(loss)
            optimizer.apply(tape.gradient(loss, variables), variables)
        optimizer.finalize_variable_values(variables)
    return numbers_of(model, optimizer)


def numbers_of(model, optimizer):
    """Weights, then what the optimizer keeps."""
    kept = [v for v in optimizer.variables if "seed" not in v.path]
    return [v.numpy() for v in [*model.weights, *kept]]


def trained(strategy, worker, name):
    """The same as `oracle` on two workers, by `fit`."""
    with strategy.scope():
        model, optimizer = model_of(), optimizer_of(name)
        model.compile(optimizer, "mse")
    for fit in range(len(BATCHES)):
        x, y = data_of(fit, worker)
        data = tf.data.Dataset.from_tensor_slices((x, y)).batch(SIZE)
        model.fit(programs.unshared(data), verbose=0)
    return numbers_of(model, optimizer)


def run(names):
    """Reports the largest relative difference of each of `names`.

    Args:
        names: some of `NAMES`.
    """
    keras.config.set_floatx("float64")
    strategy = tfdist.AllReduceStrategy(
        seed=1, fault_tolerance=tfdist.FaultTolerance(start_timeout=60.0)
    )
    worker = strategy.cluster.worker_id
    found = {}
    for name in names:
        keras.backend.clear_session()
        here = trained(strategy, worker, name)
        there = oracle(name)
        found[name] = max(
            float(np.max(np.abs(a - b) / np.maximum(1.0, np.abs(b)), initial=0))
            for a, b in zip(here, there, strict=True)
        )
    handshake.report(**found)
