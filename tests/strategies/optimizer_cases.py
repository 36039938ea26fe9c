"""Optimizers by name, and one small model that each of them trains.

Run as a script under `tfdist launch`, it trains every case with one strategy,
one model after another, and writes what it has seen to a directory.
"""

import contextlib
import functools
import inspect

import keras
import numpy as np
import tensorflow as tf

from tests.strategies import trained_on_servers

BATCH, STEPS_PER_EPOCH, EPOCHS = 8, 4, 2
STEPS = STEPS_PER_EPOCH * EPOCHS
# Up to here nothing reads the optimizer's state, which a read refreshes.
UNREAD_STEPS = 4

_optimizers = keras.optimizers
_schedules = keras.optimizers.schedules


def _multi_optimizer():
    return _optimizers.MultiOptimizer(
        _optimizers.OptimizerMap(
            _optimizers.Adam(0.01), {"dense.*": _optimizers.SGD(0.1, 0.9)}
        )
    )


# Those that cannot be made with a learning rate alone.
_WRAPPERS = {
    "LossScaleOptimizer": lambda: _optimizers.LossScaleOptimizer(
        _optimizers.Adam(0.01), initial_scale=2.0**10, dynamic_growth_steps=3
    ),
    "MultiOptimizer": _multi_optimizer,
}


def _discovered():
    """Every optimizer that Keras has, so that a new one is tested too."""
    found = {}
    for name, member in sorted(vars(_optimizers).items()):
        if not inspect.isclass(member) or member is _optimizers.Optimizer:
            continue
        if not issubclass(member, _optimizers.Optimizer):
            continue
        found[name] = _WRAPPERS.get(name) or (
            lambda cls=member: cls(learning_rate=0.01)
        )
    return found


EVERY_OPTIMIZER = _discovered()

OPTIONS = {
    "SGD momentum": lambda: _optimizers.SGD(0.1, momentum=0.9),
    "SGD nesterov": lambda: _optimizers.SGD(0.1, 0.9, nesterov=True),
    "RMSprop centered": lambda: _optimizers.RMSprop(
        0.01, momentum=0.5, centered=True
    ),
    "Adam amsgrad": lambda: _optimizers.Adam(0.01, amsgrad=True),
    "Ftrl l1 l2": lambda: _optimizers.Ftrl(
        0.1,
        l1_regularization_strength=0.01,
        l2_regularization_strength=0.01,
        l2_shrinkage_regularization_strength=0.01,
    ),
    "Adafactor absolute": lambda: _optimizers.Adafactor(
        0.01, relative_step=False, clip_threshold=0.5
    ),
    "polynomial": lambda: _optimizers.Nadam(
        _schedules.PolynomialDecay(0.05, 3, 0.001, power=2.0, cycle=True)
    ),
    "inverse time": lambda: _optimizers.Adagrad(
        _schedules.InverseTimeDecay(0.1, 1, 0.5)
    ),
    "loss scale": lambda: _optimizers.SGD(0.1, loss_scale_factor=64.0),
    "loss scale overflows": lambda: _optimizers.LossScaleOptimizer(
        _optimizers.SGD(0.1, 0.9), initial_scale=2.0**22, dynamic_growth_steps=2
    ),
    # Together, what all have: schedules, decay, clipping, averages and
    # accumulation.
    "all at once": lambda: _optimizers.AdamW(
        _schedules.CosineDecay(0.01, 6, warmup_target=0.05, warmup_steps=2),
        weight_decay=0.05,
        global_clipnorm=0.1,
        use_ema=True,
        ema_momentum=0.7,
        ema_overwrite_frequency=5,
        loss_scale_factor=8.0,
    ),
    "accumulation and all": lambda: _optimizers.SGD(
        _schedules.PiecewiseConstantDecay([2, 5], [0.2, 0.1, 0.05]),
        momentum=0.9,
        weight_decay=0.05,
        clipnorm=0.1,
        use_ema=True,
        ema_momentum=0.7,
        ema_overwrite_frequency=2,
        gradient_accumulation_steps=2,
    ),
    "loss scale and all": lambda: _optimizers.LossScaleOptimizer(
        _optimizers.Adam(
            _schedules.ExponentialDecay(0.05, 2, 0.5),
            weight_decay=0.05,
            clipvalue=0.1,
            use_ema=True,
            ema_momentum=0.7,
        ),
        dynamic_growth_steps=3,
    ),
}

CASES = {**EVERY_OPTIMIZER, **OPTIONS}
# On servers, where a server does what the process itself does else: state of
# each shape and type, control flow, and the options that all have, together.
ON_SERVERS = [
    "Adafactor",
    "Ftrl",
    "MultiOptimizer",
    "Muon",
    "Nadam",
    "ScheduleFreeAdamW",
    "loss scale overflows",
    "all at once",
    "accumulation and all",
    "loss scale and all",
]
# Cases that compute in 16 bits.
MIXED = ("loss scale overflows", "loss scale and all")
# Keras itself cannot divide the sparse gradients of an embedding by a factor.
DENSE = ("loss scale", "all at once")
# Built in the training step, as Keras does without a strategy, it would set
# its momentum back to the variables in every step.
BUILT_AHEAD = ("ScheduleFreeAdamW",)


def build_model(dense):
    """Variables of 1, 2 and 4 dimensions, and rows that have no gradient.

    Nothing in it has a gradient of zero but for rounding, which optimizers
    that divide by the gradient's size would make large.
    """
    ids = keras.Input((3,), dtype="int32")
    image = keras.Input((4, 4, 2))
    if dense:
        words = keras.ops.one_hot(ids, 9)
        words = keras.layers.Dense(2, use_bias=False)(words)
    else:
        words = keras.layers.Embedding(9, 2)(ids)
    words = keras.layers.Flatten()(words)
    filtered = keras.layers.Conv2D(3, 2, use_bias=False)(image)
    filtered = keras.layers.BatchNormalization(momentum=0.8)(filtered)
    filtered = keras.layers.Activation("tanh")(filtered)
    filtered = keras.layers.GlobalAveragePooling2D()(filtered)
    features = keras.layers.Concatenate()([words, filtered])
    outputs = keras.layers.Dense(4, name="dense_out", dtype="float32")(features)
    return keras.Model([ids, image], outputs)


def data():
    random = np.random.default_rng(0)
    examples = BATCH * STEPS_PER_EPOCH
    ids = random.integers(0, 7, (examples, 3)).astype("int32")
    images = random.normal(size=(examples, 4, 4, 2)).astype("float32")
    labels = random.integers(0, 4, examples).astype("int32")
    dataset = tf.data.Dataset.from_tensor_slices(((ids, images), labels))
    return dataset.batch(BATCH, drop_remainder=True)


class _Recorder(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.seen = {}

    def _note(self, name, values):
        for index, value in enumerate(values):
            self.seen.setdefault(f"{name} {index}", []).append(np.array(value))

    def on_train_batch_end(self, batch, logs=None):
        self._note("loss", [logs["loss"]])
        self._note("weight", self.model.get_weights())
        if len(self.seen["loss 0"]) >= UNREAD_STEPS:
            self._note(
                "state", [v.numpy() for v in self.model.optimizer.variables]
            )

    def on_train_end(self, logs=None):
        # `fit` has put averaged weights in place by now.
        self._note("final weight", self.model.get_weights())


def train(name, scope, dense=False):
    """Trains the model with the optimizer of case `name`.

    Args:
      name: A key of `CASES`.
      scope: Context in which the model is made.
      dense: Whether no gradient is of some rows alone, whatever the case.

    Returns:
      A dict of arrays, one per recorded value, of shape (records, ...).
    """
    keras.utils.set_random_seed(1)
    policy = "mixed_float16" if name in MIXED else "float32"
    keras.config.set_dtype_policy(policy)
    try:
        with scope:
            model = build_model(dense=dense or name in DENSE)
            model.compile(
                CASES[name](),
                keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            )
            if name in BUILT_AHEAD:
                model.optimizer.build(model.trainable_variables)
    finally:
        keras.config.set_dtype_policy("float32")
    recorder = _Recorder()
    model.fit(data(), epochs=EPOCHS, verbose=0, callbacks=[recorder])
    return {key: np.stack(value) for key, value in recorder.seen.items()}


@functools.cache
def plain(name, dense=False):
    """What `train` returns without a strategy."""
    return train(name, contextlib.nullcontext(), dense)


if __name__ == "__main__":
    trained_on_servers.main(train)
