"""Programs of two workers that were wrong, or died, in an earlier engine.

Gradients are the data where nothing else is said, so that the weight tells
which batches counted. Each function of a strategy and a worker's number is a
program, and returns what `main.run` reports under its name.
"""

import contextlib
import pathlib

import keras
import numpy as np
import tensorflow as tf

from tests.multi_process import tasks


class Mean(keras.losses.Loss):
    """The mean prediction, whose gradient is the data."""

    def call(self, y_true, y_pred):
        """Returns it, for each example."""
        return keras.ops.mean(y_pred, -1)


def batches(x, y=None, size=1):
    """This worker's own data, a batch of `size` rows after the other."""
    x = np.asarray(x, "float32")
    x = x[:, None] if x.ndim == 1 else x
    y = x if y is None else y
    data = tf.data.Dataset.from_tensor_slices((x, y))
    return tasks.unshared(data.batch(size, drop_remainder=True))


def linear(optimizer=None, before=(), **settings):
    """A weight that begins with 0, whose gradient is the data.

    Args:
        optimizer: SGD with the rate 1 by default.
        before: layers that the data goes through.
        **settings: of `compile`.
    """
    layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    model = keras.Sequential([keras.Input([1]), *before, layer])
    optimizer = optimizer or keras.optimizers.SGD(1.0)
    model.compile(optimizer, Mean(), **settings)
    return model


def weight_of(model):
    """The only weight of a `linear` model."""
    return model.get_weights()[0].item()


def one_step(strategy):
    """Takes a step with an optimizer and a variable that nothing else has.

    Returns:
        The optimizer.
    """
    with strategy.scope():
        optimizer = keras.optimizers.SGD()
        variable = keras.Variable([1.0])
    strategy.run(optimizer.apply, ([tf.ones([1])], [variable]))
    return optimizer


def on(**functions):
    """A Keras callback of functions."""
    return keras.callbacks.LambdaCallback(**functions)


def data_that_ends_first_on_another_worker_in_each_fit(strategy, worker):
    """Batches 3 | 1 in the first `fit`, 1 | 3 in the second."""
    with strategy.scope():
        model = linear()
    for number in ([3, 1][worker], [1, 3][worker]):
        model.fit(batches(np.ones(number)), verbose=0)
    return weight_of(model), int(model.optimizer.iterations.numpy())


def accumulated_gradients_over_fits(strategy, worker):
    """`gradient_accumulation_steps=2`, fits of 3, 1, 1, 1 batches."""
    with strategy.scope():
        model = linear(keras.optimizers.SGD(1.0, gradient_accumulation_steps=2))
    seen = []
    for number in (3, 1, 1, 1):
        model.fit(batches(np.ones(number)), verbose=0)
        seen.append(weight_of(model))
    return seen


class Codebook(keras.Model):
    """A trainable weight that the training step assigns itself."""

    def __init__(self):
        """Makes it."""
        super().__init__()
        self.code = self.add_weight(shape=(), name="code", initializer="zeros")

    def call(self, x):
        """Returns its input."""
        return x

    def train_step(self, data):
        """Moves the code towards the data."""
        mean = tf.reduce_mean(data[0])
        self.code.assign(0.9 * self.code + 0.1 * mean)
        return {"code": self.code.value}


def rate_lowered_by_a_plateau(strategy, worker):
    """`ReduceLROnPlateau` sees another loss on each worker."""
    with strategy.scope():
        model = linear(keras.optimizers.SGD(1.0))
    # The chief's loss falls with each epoch, the other's does not.
    plateau = keras.callbacks.ReduceLROnPlateau(
        "val_loss", factor=0.5, patience=1, min_delta=0.0
    )
    x = np.ones([3 - worker])
    validation = batches([[1.0, -1.0][worker]])
    model.fit(
        batches(x),
        epochs=4,
        verbose=0,
        validation_data=validation,
        callbacks=[plateau],
    )
    return weight_of(model), float(model.optimizer.learning_rate.numpy())


def rate_set_by_one_worker(strategy, worker):
    """The chief's counts, from its next step on."""
    with strategy.scope():
        model = linear()

    def set_rate(batch, logs=None):
        if worker == (batch > 2):
            model.optimizer.learning_rate = 0.5 ** (batch + 1)

    callback = on(on_train_batch_begin=set_rate)
    model.fit(batches(np.ones(6)), verbose=0, callbacks=[callback])
    return weight_of(model)


class Wrapper(keras.optimizers.Optimizer):
    """An optimizer that leaves steps, and its rate, to one that it holds."""

    def __init__(self, fast):
        """Makes one.

        Args:
            fast: that takes the steps.
        """
        super().__init__(learning_rate=0.0)
        self.fast = fast

    def build(self, variables):
        """Builds both."""
        if not self.built:
            super().build(variables)
            self.fast.build(variables)

    @property
    def variables(self):
        """Those of both."""
        return [*super().variables, *self.fast.variables]

    @property
    def learning_rate(self):
        """That of the other."""
        return self.fast.learning_rate

    @learning_rate.setter
    def learning_rate(self, rate):
        self.fast.learning_rate = rate

    def apply(self, grads, trainable_variables=None):
        """Takes a step of the other."""
        self.fast.apply(grads, trainable_variables)
        self._iterations.assign_add(1)


class Squaring(keras.optimizers.SGD):
    """Squares gradients before Keras's step."""

    def apply_gradients(self, grads_and_vars):
        """Takes Keras's step with the squares."""
        return super().apply_gradients([(g * g, v) for g, v in grads_and_vars])


def gradients_that_an_optimizer_squares(strategy, worker):
    """Of the chief alone in the second step."""
    with strategy.scope():
        model = linear(Squaring(1.0))
    model.fit(batches([[1.0, 3.0], [5.0]][worker]), verbose=0)
    return weight_of(model)


def rates_set_in_a_wrapper(strategy, worker):
    """The chief halves its rate after each epoch, another worker quarters."""
    with strategy.scope():
        model = linear(Wrapper(keras.optimizers.SGD(1.0)))

    def set_rate(epoch, logs=None):
        rate = float(model.optimizer.learning_rate)
        model.optimizer.learning_rate = rate * [0.5, 0.25][worker]

    model.fit(
        batches(np.ones(4)),
        epochs=3,
        verbose=0,
        callbacks=[on(on_epoch_end=set_rate)],
    )
    return weight_of(model)


def weights_set_by_one_worker_within_an_epoch(strategy, worker):
    """An error at the end of the epoch names worker and variable."""
    with strategy.scope():
        model = linear()

    def load(batch, logs=None):
        if batch == 2 and worker == 1:
            model.set_weights([np.array([[7.0]])])

    try:
        model.fit(
            batches(np.ones(4)),
            verbose=0,
            callbacks=[on(on_train_batch_end=load)],
        )
    except RuntimeError as error:
        return str(error)
    return "trained on"


def weights_set_while_another_worker_has_failed(strategy, worker):
    """It waits for the others' epochs, at whose ends they set weights."""
    with strategy.scope():
        model = linear()

    def fail(batch, logs=None):
        if worker == 1 and batch == 1:
            raise ZeroDivisionError

    def load(epoch, logs=None):
        model.set_weights([np.array([[7.0 + epoch]])])

    callback = on(on_train_batch_end=fail, on_epoch_end=load)
    with contextlib.suppress(ZeroDivisionError):
        model.fit(
            batches(np.ones(4)), epochs=2, verbose=0, callbacks=[callback]
        )
    strategy.barrier()
    return weight_of(model)


def weights_set_at_the_end_of_an_epoch(strategy, worker):
    """Those that the chief sets count for all, others do not."""
    with strategy.scope():
        model = linear()

    def load(epoch, logs=None):
        if epoch == 0:
            model.set_weights([np.array([[[10.0, 7.0][worker]]])])

    model.fit(
        batches(np.ones(2)),
        epochs=2,
        verbose=0,
        callbacks=[on(on_epoch_end=load)],
    )
    return weight_of(model)


def two_models_of_equal_shapes_in_a_loop(strategy, worker):
    """Their gradients are not mixed."""
    with strategy.scope():
        models = linear(), linear()
    for _ in range(3):
        for scale, model in zip((1.0, 10.0), models, strict=True):
            x = np.full([1, 1], scale * (1 + worker), "float32")
            model.train_on_batch(x, x)
    strategy.barrier()
    return [weight_of(model) for model in models]


def bits(model):
    """All numbers of a model and its optimizer, as hexadecimal bytes."""
    variables = [*model.weights, *model.optimizer.variables]
    return [
        v.numpy().tobytes().hex() for v in variables if "seed" not in v.path
    ]


def one_worker_overflows_in_float16(strategy, worker):
    """All halve the loss scale and go on."""
    with strategy.scope():
        inputs = keras.Input([2])
        policy = keras.mixed_precision.DTypePolicy("mixed_float16")
        x = keras.layers.BatchNormalization(dtype=policy)(inputs)
        outputs = keras.layers.Dense(1, dtype=policy)(x)
        model = keras.Model(inputs, outputs)
        optimizer = keras.optimizers.LossScaleOptimizer(
            keras.optimizers.SGD(0.01), initial_scale=1024.0
        )
        model.compile(optimizer, "mse")
    x = np.ones([8, 2], "float32")
    y = np.ones([8, 1], "float32")
    if worker == 1:
        y[2:4] = 1e30
    model.fit(batches(x, y, 2), verbose=0)
    return {
        "scale": float(optimizer.dynamic_scale.numpy()),
        "iterations": int(optimizer.iterations.numpy()),
        "bits": bits(model),
        "finite": all(np.isfinite(w).all() for w in model.get_weights()),
    }


class Counter(keras.layers.Layer):
    """A layer that assigns state, in inference too."""

    def build(self, input_shape):
        """Makes it."""
        self.count = self.add_weight(
            shape=(), name="count", initializer="zeros", trainable=False
        )

    def call(self, x):
        """Counts, and returns its input."""
        self.count.assign_add(1.0)
        return x


def many_steps(strategy, worker):
    """What they leave behind: threads of the process after 50 and 400."""
    del worker
    with strategy.scope():
        model = linear()
    seen = []
    for number in (50, 350):
        model.fit(batches(np.ones(number)), verbose=0)
        seen.append(len(list(pathlib.Path("/proc/self/task").iterdir())))
    return seen


def the_chief_reads_and_evaluates_alone(strategy, worker):
    """After `fit`, in a loop in which the others only train."""
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input([1]),
                Counter(),
                keras.layers.Dense(
                    1, use_bias=False, kernel_initializer="zeros"
                ),
            ]
        )
        model.compile(keras.optimizers.SGD(1.0), Mean())
    x = np.ones([1, 1], "float32")
    model.fit(batches(np.ones(2)), verbose=0)
    seen = []
    for _ in range(3):
        if worker == 0:
            seen.append(weight_of_last(model))
            model.evaluate(x, x, verbose=0)
        model.train_on_batch(x, x)
    strategy.barrier()
    return seen, weight_of_last(model)


def weight_of_last(model):
    """The weight of the last layer, an eager read."""
    return model.layers[-1].kernel.numpy().item()


def averaged(strategy):
    """A model whose weights are -1, -2 after steps, and averages -1, -1.5."""
    with strategy.scope():
        return linear(keras.optimizers.SGD(1.0, use_ema=True, ema_momentum=0.5))
