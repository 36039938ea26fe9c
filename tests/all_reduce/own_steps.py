"""Programs whose training steps are the user's own, over two calls of `fit`."""

import keras
import numpy as np
import tensorflow as tf

from tests.all_reduce import programs
from tests.all_reduce.programs import batches
from tests.all_reduce.steps import GRADIENTS


class Decorated(keras.Sequential):
    """Its step is a `tf.function`."""

    @tf.function
    def train_step(self, data):
        """Makes Keras's step."""
        return super().train_step(data)


def a_decorated_step(strategy, worker):
    """One worker has a batch more; the chief stops the second `fit`."""
    with strategy.scope():
        layer = keras.layers.Dense(
            1, use_bias=False, kernel_initializer="zeros"
        )
        model = Decorated([keras.Input([1]), layer])
        model.compile(keras.optimizers.SGD(1.0), programs.Mean())
    model.fit(batches(GRADIENTS[worker]), verbose=0)

    def stop(epoch, logs):
        model.stop_training = True

    stops = [programs.on(on_epoch_end=stop)] if worker == 0 else []
    model.fit(batches(GRADIENTS[worker]), epochs=3, verbose=0, callbacks=stops)
    return programs.weight_of(model)


class Taught(keras.Model):
    """Half of a teacher is the newest student."""

    def __init__(self):
        """Makes both, which begin with 0."""
        super().__init__()
        self.student, self.teacher = (
            keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
            for _ in range(2)
        )
        self.teacher.trainable = False

    def build(self, shape):
        """Builds both."""
        self.student.build(shape)
        self.teacher.build(shape)

    def call(self, x):
        """Returns what the student says."""
        return self.student(x)

    def train_step(self, data):
        """Moves the teacher after the optimizer's step."""
        result = super().train_step(data)
        mine, other = self.teacher.kernel, self.student.kernel
        mine.assign(0.5 * mine + 0.5 * other)
        return result


def a_teacher(strategy, worker):
    """Is the same on all workers."""
    with strategy.scope():
        model = Taught()
        model.compile(keras.optimizers.SGD(1.0), programs.Mean())
    found = []
    for _ in range(2):
        model.fit(batches(GRADIENTS[worker]), verbose=0)
        found += [model.student.kernel, model.teacher.kernel]
        found[-2:] = [float(one.numpy().item()) for one in found[-2:]]
    return found


def a_normalized_kernel(strategy, worker):
    """Keeps the norm 1 on all workers, whose data differ."""
    with strategy.scope():
        layer = keras.layers.SpectralNormalization(
            keras.layers.Dense(3, use_bias=False)
        )
        model = keras.Sequential([keras.Input([4]), layer])
        model.compile(keras.optimizers.SGD(0.0), programs.Mean())
    x = np.random.default_rng(worker).normal(size=[[30, 20][worker], 4])
    for _ in range(2):
        model.fit(batches(x), verbose=0)
    kernel = layer.layer.kernel.numpy()
    norm = float(np.linalg.norm(kernel, 2))
    return {"norm": norm, "bits": programs.bits(model)}


class Pair(keras.Model):
    """Two weights, each with an optimizer that scales the loss."""

    def __init__(self):
        """Makes the weights."""
        super().__init__()
        self.pair = [
            self.add_weight(shape=(), initializer="zeros") for _ in range(2)
        ]

    def compile(self, pair):
        """Keeps both optimizers."""
        super().compile(loss=programs.Mean())
        self.optimizers = pair

    def call(self, x):
        """Returns the sum of both products."""
        return x * (self.pair[0] + self.pair[1])

    def train_step(self, data):
        """The batch is the gradient of both; the second sees its root."""
        x = tf.reduce_mean(data[0])
        for optimizer, weight, gradient in zip(
            self.optimizers, self.pair, (x, tf.sqrt(x)), strict=True
        ):
            scale = optimizer.scale_loss(tf.ones([]))
            optimizer.apply([scale * gradient], [weight])
        return {"x": x}


def scaled_steps_of_two_optimizers(strategy, worker):
    """In the third step, that of the first overflows on one worker."""
    with strategy.scope():
        model = Pair()
        pair = [
            keras.optimizers.LossScaleOptimizer(
                keras.optimizers.SGD(1.0), initial_scale=2.0**10
            )
            for _ in range(2)
        ]
        model.compile(pair)
    x = np.ones([4], "float32")
    x[2] = [1.0, 2.0**120][worker]
    model.fit(batches(x), verbose=0)
    return [
        *(float(one.numpy()) for one in model.pair[:1]),
        *(int(one.iterations.numpy()) for one in pair),
        *(float(one.dynamic_scale.numpy()) for one in pair),
    ]
