"""Programs about what one training step may do."""

import gc

import keras
import numpy as np
import tensorflow as tf

from tests.all_reduce import programs
from tests.all_reduce.programs import batches
from tests.all_reduce.programs import linear
from tests.all_reduce.programs import weight_of
from tests.multi_process import tasks

# By worker, the gradients of its batches. Their means: 4.5, 9, 4.
GRADIENTS = [1, 2, 4], [8, 16]


def rows_of_a_large_table(strategy, worker):
    """Few rows, rows twice, no batch on one worker, NaN, and most rows."""
    settings = {
        "float32": {},
        "float64": {"dtype": "float64"},
        "mixed_float16": {"dtype": "mixed_float16"},
        "compiled": {"jit_compile": True},
        "clipped": {"global_clipnorm": 1e6},
        "accumulated": {"gradient_accumulation_steps": 2},
    }
    return {
        name: _table_after_training(strategy, worker, **each)
        for name, each in settings.items()
    }


# Of each call of `fit`, each worker's batches: ids, and a weight.
_BATCHES = [
    [[([3, 3, 5], 1)], [([5, 69_999, 5], 1)]],
    [[([0, 1, 2], 1), ([7, 7, 7], 1)], [([2, 2, 2], 1)]],
    [[([8, 8], 1)], [([8, 9], np.nan)]],
    [[(range(60_000), 1)], [(range(10_000, 70_000), 1)]],
    [[([4], 1)], [([4], 1)]],
]


def _table_after_training(
    strategy, worker, dtype="float32", jit_compile=False, **settings
):
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input([None], dtype="int32"),
                keras.layers.Embedding(
                    70_000, 4, embeddings_initializer="zeros", dtype=dtype
                ),
                Total(dtype=dtype),
            ]
        )
        optimizer = keras.optimizers.SGD(1.0, **settings)
        model.compile(optimizer, programs.Mean(), jit_compile=jit_compile)
    sent = []
    for one in _BATCHES:
        data = tf.data.Dataset.from_generator(
            lambda mine=one[worker]: (
                ([list(ids)], [[1.0]], [weight]) for ids, weight in mine
            ),
            output_signature=(
                tf.TensorSpec([1, None], tf.int32),
                tf.TensorSpec([1, 1], tf.float32),
                tf.TensorSpec([1], tf.float32),
            ),
        )
        strategy.journal.read_new()
        model.fit(tasks.unshared(data), verbose=0)
        sent.append(
            [record.bytes_sent for record in strategy.journal.read_new()]
        )
    table = model.get_weights()[0]
    shown = table[[*range(10), 30_000, 65_000, 69_999]]
    return {"rows": shown.tolist(), "sum": float(table.sum()), "sent": sent}


class Total(keras.layers.Layer):
    """The sum over all but the first axis."""

    def call(self, x):
        """Returns it."""
        return keras.ops.sum(x, (1, 2))[:, None]


class Statistics(keras.Model):
    """State that a step assigns before and after the optimizer's step."""

    def __init__(self):
        """Makes it."""
        super().__init__()
        self.dense = keras.layers.Dense(
            1, use_bias=False, kernel_initializer="zeros"
        )

        def state(name, dtype="float32"):
            return self.add_weight(
                shape=(),
                name=name,
                dtype=dtype,
                initializer="zeros",
                trainable=False,
            )

        self.before, self.after = state("before"), state("after")
        self.count = state("count", "int32")

    def call(self, x):
        """Adds up what it sees."""
        self.before.assign_add(tf.reduce_mean(x))
        self.count.assign_add(1)
        return self.dense(x)

    def train_step(self, data):
        """Adds up weights, after Keras's step."""
        logs = super().train_step(data)
        self.after.assign(self.after + self.dense.kernel[0, 0])
        return logs


def state_assigned_in_a_step(strategy, worker):
    """Becomes the mean of those that have a batch."""
    with strategy.scope():
        model = Statistics()
        model.compile(keras.optimizers.SGD(1.0), programs.Mean())
    model.fit(batches(GRADIENTS[worker]), verbose=0)
    return [float(v.numpy()) for v in (model.before, model.count, model.after)]


class OnlyState(keras.Model):
    """A step without an optimizer."""

    def __init__(self):
        """Makes the state."""
        super().__init__()
        self.sum = self.add_weight(
            shape=(), name="sum", initializer="zeros", trainable=False
        )

    def call(self, x):
        """Returns its input."""
        return x

    def train_step(self, data):
        """Adds up what it sees."""
        self.sum.assign_add(tf.reduce_mean(data[0]))
        return {"sum": self.sum.value}


def a_step_without_an_optimizer(strategy, worker):
    """Its state is shared all the same."""
    with strategy.scope():
        model = OnlyState()
        model.compile()
    model.fit(batches(GRADIENTS[worker]), verbose=0)
    return float(model.sum.numpy())


def a_loop_without_an_optimizer(strategy, worker):
    """Trains a variable by hand; one worker has a batch more."""
    with strategy.scope():
        weight = tf.Variable(0.0)

    def train(x):
        with tf.GradientTape() as tape:
            loss = x * weight
        weight.assign_sub(tape.gradient(loss, weight))

    @tf.function
    def step(x):
        strategy.run(train, args=(x,))

    for gradient in GRADIENTS[worker]:
        step(tf.constant(float(gradient)))
    strategy.barrier()
    return float(weight.numpy())


def a_batch_with_nan(strategy, worker):
    """Is left out by all alike; one that all have, as a whole."""
    with strategy.scope():
        model = linear(keras.optimizers.SGD(1.0, momentum=0.5))
    nan, dropped = np.nan, strategy.push_counts()["dropped"]
    gradients = [[1, nan, 4, nan, 2], [8, 16, nan, nan]][worker]
    model.fit(batches(gradients), verbose=0)
    return (
        weight_of(model),
        int(model.optimizer.iterations.numpy()),
        strategy.push_counts()["dropped"] - dropped,
    )


def a_reduction_of_the_users_own(strategy, worker):
    """Is refused."""

    class Reduces(programs.Codebook):
        def train_step(self, data):
            context = tf.distribute.get_replica_context()
            return {"sum": context.all_reduce("SUM", tf.reduce_sum(data[0]))}

    with strategy.scope():
        model = Reduces()
        model.compile("sgd")
    model.fit(batches(np.ones(2)), verbose=0)


def an_optimizers_step_outside_of_a_step(strategy, worker):
    """Is refused: it would be this worker's alone."""
    with strategy.scope():
        model = linear()
    model.optimizer.apply([tf.ones([1, 1])], model.trainable_variables)


def other_models(strategy, worker):
    """Are refused, by the first variable that differs."""
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input([1]), keras.layers.Dense(1 + worker)]
        )
        model.compile("sgd", "mse")
    model.fit(batches(np.ones(2)), verbose=0)


def other_optimizers(strategy, worker):
    """Settings that differ are refused; a rate that does is the chief's."""
    with strategy.scope():
        model = linear(keras.optimizers.SGD(1.0, nesterov=worker == 1))
    model.fit(batches(np.ones(2)), verbose=0)


def a_loop_without_a_step_on_one_worker(strategy, worker):
    """After a `fit`, the other worker alone has batches, and then stops."""
    with strategy.scope():
        model = linear()
    model.fit(batches([1.0]), verbose=0)
    for _ in range(2 * worker):
        model.train_on_batch(np.ones([1, 1]), np.ones([1, 1]))
    strategy.barrier()

    def stop(epoch, logs=None):
        model.stop_training = worker == 1

    # The chief, whose loop had ended before, still decides.
    call = keras.callbacks.LambdaCallback(on_epoch_end=stop)
    model.fit(batches([1.0]), epochs=3, verbose=0, callbacks=[call])
    return weight_of(model), int(model.optimizer.iterations.numpy())


_KEPT = []


def a_model_that_one_worker_keeps(strategy, worker):
    """A loop of another model ends as it does where all have freed it."""
    with strategy.scope():
        model = linear()
    model.fit(batches([1.0]), verbose=0)
    if worker == 1:
        _KEPT.append(model)
    del model
    gc.collect()
    with strategy.scope():
        model = linear()
    for _ in range(1 + 2 * worker):
        model.train_on_batch(np.ones([1, 1]), np.ones([1, 1]))
    strategy.barrier()
    return weight_of(model)


def weights_set_on_one_worker_of_a_loop(strategy, worker):
    """Are seen at the barrier; after a barrier, until the next step, not."""
    with strategy.scope():
        model = linear()
    x = np.ones([1, 1], "float32")
    model.train_on_batch(x, x)
    strategy.barrier()
    if worker == 1:
        model.set_weights([np.array([[7.0]])])
    strategy.barrier()
    model.set_weights([np.array([[7.0]])])
    model.train_on_batch(x, x)
    if worker == 1:
        model.set_weights([np.array([[5.0]])])
    try:
        strategy.barrier()
        return "not seen"
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"
    finally:
        model.set_weights([np.array([[5.0]])])


def dropout_masks(strategy, worker):
    """Differ from worker to worker, though all have one seed."""
    with strategy.scope():
        layer = keras.layers.Dropout(0.5)
    return (layer(np.ones([1, 64]), training=True).numpy() > 0).tolist()


def float16_variables(strategy, worker):
    """Gradients of float16 are summed up in float32."""
    with strategy.scope():
        layer = keras.layers.Dense(
            1, use_bias=False, kernel_initializer="zeros", dtype="float16"
        )
        model = keras.Sequential([keras.Input([1]), layer])
        model.compile(keras.optimizers.SGD(2.0**-10), programs.Mean())
    # The sum of both would overflow.
    model.fit(batches(np.full([1], 60000.0)), verbose=0)
    return weight_of(model)


def many_steps(strategy, worker):
    """200 steps of uneven data with a NaN, statistics, and dropout."""
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input([16]),
                keras.layers.Dense(32, activation="relu"),
                keras.layers.BatchNormalization(),
                keras.layers.Dropout(0.3),
                keras.layers.Dense(10),
            ]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("adam", loss)
    random = np.random.default_rng(worker)
    x = random.normal(size=[(200 - 17 * worker) * 8, 16]).astype("float32")
    x[worker * 80, 3] = np.nan
    y = random.integers(10, size=len(x))
    dropped = strategy.push_counts()["dropped"]
    model.fit(batches(x, y, 8), verbose=0)
    return {
        "bits": programs.bits(model),
        "iterations": int(model.optimizer.iterations.numpy()),
        "dropped": strategy.push_counts()["dropped"] - dropped,
    }
