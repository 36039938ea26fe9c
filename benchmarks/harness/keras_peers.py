"""Workers that train a Keras model, under tfdist's strategies and TensorFlow's.

Each function builds a worker and returns a callable that takes so many steps
and gives the moment at which each ended; see `children.Child`.
"""

import json
import os
import time

from harness import fit_clock
from harness import own_batches
from harness import peer_models
import tfdist

# Method -> what makes the strategy of a worker, or serves and does not return.
STRATEGIES = {
    "async": lambda: tfdist.AsyncStrategy(),
    "sync": lambda: tfdist.ParameterServerStrategy(
        synchronization=tfdist.synchronization.Sync()
    ),
    "all_reduce": tfdist.AllReduceStrategy,
    "averaging": lambda: tfdist.ParameterAveragingStrategy(
        1, communication="ring"
    ),
}


def serve(method):
    """Runs a parameter server of tfdist; does not return."""
    STRATEGIES[method]()


def of_tfdist(shape, method):
    """`model.fit` under a strategy of tfdist.

    Args:
        shape: a `peer_models.Shape`.
        method: a key of `STRATEGIES`.
    """
    return _fitting(shape, STRATEGIES[method]())


def plain(shape):
    """`model.fit` in one process, without a strategy of anybody's."""
    import tensorflow as tf

    return _fitting(shape, tf.distribute.get_strategy())


def mirrored(shape):
    """A loop under `tf.distribute.MultiWorkerMirroredStrategy`."""
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    model = _compiled(shape, strategy)
    data = dataset(shape, worker_number())
    step = own_batches.mirrored_step(strategy, model, data)

    def train(steps):
        ends = []
        for _ in range(steps):
            step()
            ends.append(time.monotonic())
        return ends

    return train


def coordinator(shape, workers):
    """A loop under `tf.distribute.ParameterServerStrategy`.

    Keras 3's optimizers do not run there; TensorFlow's own Adam does, and is
    one fused kernel per variable. The coordinator does not see when a step
    ends, but when all have: between the first and the last they count as
    evenly spread.

    Args:
        shape: a `peer_models.Shape`.
        workers: number of workers.
    """
    import numpy as np
    import tensorflow as tf

    strategy = tf.distribute.ParameterServerStrategy(
        tf.distribute.cluster_resolver.TFConfigClusterResolver()
    )
    driver = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        model = build_model(shape)
        optimizer = tf.compat.v1.train.AdamOptimizer(peer_models.LEARNING_RATE)
    variables = [v.value for v in model.trainable_variables]

    def apply(gradients):
        optimizer.apply_gradients(zip(gradients, variables, strict=True))

    def train_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            logits = model(x, training=True)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
            loss = tf.reduce_mean(losses)
        apply(tape.gradient(loss, variables))

    @tf.function
    def step(iterator):
        strategy.run(train_step, args=(next(iterator),))

    # Outside of the step: the slots are made with the first gradients.
    strategy.run(apply, args=([tf.zeros_like(v) for v in variables],))
    iterator = iter(driver.create_per_worker_dataset(lambda: dataset(shape, 0)))

    def train(steps):
        begin = time.monotonic()
        for _ in range(workers * steps):
            driver.schedule(step, args=(iterator,))
        driver.join()
        end = time.monotonic()
        return np.linspace(begin, end, workers * steps + 1).tolist()

    return train


def worker_number():
    """This task's number, of `TF_CONFIG`."""
    return json.loads(os.environ["TF_CONFIG"])["task"]["index"]


def dataset(shape, worker):
    """The batches of a worker again and again, a `tf.data.Dataset`."""
    import tensorflow as tf

    batches = tf.data.Dataset.from_tensor_slices(
        peer_models.batches(shape, worker)
    )
    return own_batches.whole(batches.repeat())


def _fitting(shape, strategy):
    model = _compiled(shape, strategy)
    return fit_clock.ends_of(model, dataset(shape, worker_number()))


def _compiled(shape, strategy):
    import keras

    with strategy.scope():
        model = build_model(shape)
        model.compile(
            keras.optimizers.Adam(peer_models.LEARNING_RATE),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            jit_compile=False,
        )
    return model


def build_model(shape):
    import keras

    keras.utils.set_random_seed(1)
    return keras.Sequential(
        [
            keras.Input([shape.features]),
            *(
                keras.layers.Dense(units, activation="relu")
                for units in shape.hidden
            ),
            keras.layers.Dense(shape.classes),
        ]
    )
