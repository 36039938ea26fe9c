"""Workers that train a recommender's table: look-ups, gradients, one rule.

Each function builds something in a process of its own; see `children.Child`.
"""

import time

from harness import fit_clock
from harness import own_batches

WIDTH, BATCH, FEATURES = 64, 256, 20
RATES = {"sgd": 0.01, "adagrad": 0.001, "rmsprop": 0.001, "adam": 0.001}
TENSORFLOW_RULES = {
    "sgd": "GradientDescentOptimizer",
    "adagrad": "AdagradOptimizer",
    "rmsprop": "RMSPropOptimizer",
    "adam": "AdamOptimizer",
}


def serve():
    """Runs a parameter server; does not return."""
    import tfdist

    tfdist.AsyncStrategy()


def batches(rows, seed):
    """Endless batches of Zipf's ids, `(BATCH, FEATURES)`, and targets."""
    import numpy as np
    import tensorflow as tf

    random = np.random.default_rng(seed)
    ids = random.zipf(1.1, (64 * BATCH, FEATURES)) % rows
    targets = random.integers(0, 2, (64 * BATCH, 1)).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((ids.astype("int32"), targets))
    data = data.repeat().batch(BATCH, drop_remainder=True).prefetch(2)
    return own_batches.whole(data)


def worker(
    optimizer,
    rows,
    table_bytes,
    *,
    dynamic=False,
    method="async",
    in_loop=False,
):
    """Builds a worker of tfdist.

    Args:
        optimizer: a key of `RATES`.
        rows: of the table.
        table_bytes: of the strategy.
        dynamic: whether ids get their rows in training.
        method: name of the strategy's method.
        in_loop: whether the steps are taken in a bare loop instead of `fit`.

    Returns:
        A callable of a number of steps, which takes them; it gives the seconds
        of each.
    """
    import keras

    import tfdist
    from tfdist.strategies import registry

    strategy = tfdist.ParameterServerStrategy(
        **registry.method(method).arguments, table_bytes=table_bytes
    )
    with strategy.scope():
        embedding = (
            tfdist.layers.DynamicEmbedding(WIDTH, rows)
            if dynamic
            else keras.layers.Embedding(rows, WIDTH)
        )
        model = keras.Sequential(
            [
                keras.Input((FEATURES,), dtype="int32"),
                embedding,
                keras.layers.GlobalAveragePooling1D(),
                keras.layers.Dense(64, activation="relu"),
                keras.layers.Dense(1),
            ]
        )
        made = keras.optimizers.get(optimizer)
        made.learning_rate = RATES[optimizer]
        loss = keras.losses.BinaryCrossentropy(from_logits=True)
        model.compile(made, loss)
    data = batches(rows, strategy.cluster.worker_id)
    if in_loop:
        return _bare_loop(strategy, model, loss, data)

    return fit_clock.timed(model, data)


def _bare_loop(strategy, model, loss, data):
    """Returns what `worker` returns, without `fit`."""
    import tensorflow as tf

    def train(ids, targets):
        with tf.GradientTape() as tape:
            value = loss(targets, model(ids, training=True))
        gradients = tape.gradient(value, model.trainable_variables)
        model.optimizer.apply(gradients, model.trainable_variables)

    @tf.function
    def step(iterator):
        strategy.run(train, args=next(iterator))

    with strategy.scope():
        model.optimizer.build(model.trainable_variables)
    iterator = iter(data)

    def measure(steps):
        started = time.perf_counter()
        for _ in range(steps):
            step(iterator)
        return (time.perf_counter() - started) / steps

    return measure


def coordinator(optimizer, rows, ps, workers):
    """Builds the coordinator of TensorFlow's own strategy.

    Args:
        optimizer: a key of `TENSORFLOW_RULES`.
        rows: of the table.
        ps: number of servers; each has a part of the table.
        workers: how many there are.

    Returns:
        A callable of a number of steps: seconds per step of one worker.
    """
    import tensorflow as tf

    strategy = tf.distribute.ParameterServerStrategy(
        tf.distribute.cluster_resolver.TFConfigClusterResolver(),
        tf.distribute.experimental.partitioners.MinSizePartitioner(
            max_shards=ps
        ),
    )
    driver = tf.distribute.coordinator.ClusterCoordinator(strategy)
    rule = getattr(tf.compat.v1.train, TENSORFLOW_RULES[optimizer])
    rule = rule(RATES[optimizer])
    with strategy.scope():
        table = tf.Variable(tf.random.uniform([rows, WIDTH], -0.05, 0.05))
        first = tf.Variable(tf.random.normal([WIDTH, 64], stddev=0.1))
        last = tf.Variable(tf.random.normal([64, 1], stddev=0.1))

    def train(batch):
        ids, targets = batch
        with tf.GradientTape() as tape:
            found = tf.reduce_mean(tf.nn.embedding_lookup(table, ids), 1)
            logits = tf.nn.relu(found @ first) @ last
            loss = tf.reduce_mean(
                tf.nn.sigmoid_cross_entropy_with_logits(targets, logits)
            )
        parameters = [*getattr(table, "variables", [table]), first, last]
        gradients = tape.gradient(loss, parameters)
        rule.apply_gradients(zip(gradients, parameters, strict=True))
        return loss

    @tf.function
    def step(iterator):
        return strategy.run(train, args=(next(iterator),))

    iterator = iter(driver.create_per_worker_dataset(lambda: batches(rows, 0)))

    def measure(steps):
        started = time.perf_counter()
        for _ in range(workers * steps):
            driver.schedule(step, args=(iterator,))
        driver.join()
        return (time.perf_counter() - started) / steps

    return measure
