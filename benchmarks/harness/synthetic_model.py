"""Workers that train a synthetic recommender with many tables.

The smallest of six models that NVIDIA publishes with `distributed-embeddings`
("tiny", version 3): 55 tables, 4.2 GiB, looked up by 58 features, each a sum of
1 or 10 rows; 10 numbers; dense layers of 256, 128 and 1.

Each function builds something in a process of its own; see `children.Child`.
"""

from harness import fit_clock
from harness import own_batches

# Tables, rows of each, width, and how many ids each of its features has.
TABLES = (
    (1, 10_000, 8, (1, 10)),
    (1, 1_000_000, 16, (1, 10)),
    (1, 25_000_000, 16, (1, 10)),
    (1, 25_000_000, 16, (1,)),
    (16, 10, 8, (1,)),
    (10, 1_000, 8, (1,)),
    (4, 10_000, 8, (1,)),
    (2, 100_000, 16, (1,)),
    (19, 1_000_000, 16, (1,)),
)
NUMBERS = 10
DENSE = (256, 128)
# Exponent of the ids' power law.
ALPHA = 1.05
BATCHES = 10
# Smaller tables are on the workers as well.
TABLE_BYTES = 2**20


def features(shrink):
    """Yields (number of the table, rows, width, ids) of each feature.

    Args:
        shrink: what the rows of each table are divided by; at least 10 are
            left.
    """
    number = 0
    for count, rows, width, ids_of_features in TABLES:
        for _ in range(count):
            for ids in ids_of_features:
                yield number, max(rows // shrink, 10), width, ids
            number += 1


def ids_by_power_law(random, shape, rows):
    """Ids below `rows`, whose frequency falls with a power of id + 1."""
    least, most = 1.0, (rows + 1.0) ** (1.0 - ALPHA)
    uniform = random.random(shape)
    drawn = (least + uniform * (most - least)) ** (1.0 / (1.0 - ALPHA))
    return drawn.astype("int64").clip(1, rows) - 1


def batches(batch_size, shrink, seed):
    """Endless batches: a few, made before, again and again."""
    import numpy as np
    import tensorflow as tf

    random = np.random.default_rng(seed)
    size = BATCHES * batch_size
    ids = [
        ids_by_power_law(random, (size, count), rows)
        for _, rows, _, count in features(shrink)
    ]
    numbers = random.uniform(0, 100, (size, NUMBERS)).astype("float32")
    targets = random.integers(0, 2, (size, 1)).astype("float32")
    inputs = {"ids": np.concatenate(ids, 1), "numbers": numbers}
    data = tf.data.Dataset.from_tensor_slices((inputs, targets))
    data = data.batch(batch_size, drop_remainder=True).cache().repeat()
    return own_batches.whole(data.prefetch(2))


def build(shrink):
    """Returns the `keras.Model`."""
    import keras

    width = sum(ids for *_, ids in features(shrink))
    ids = keras.Input((width,), dtype="int64", name="ids")
    numbers = keras.Input((NUMBERS,), name="numbers")
    embeddings, found, at = {}, [], 0
    for table, rows, size, count in features(shrink):
        if table not in embeddings:
            embeddings[table] = keras.layers.Embedding(rows, size)
        rows_of_feature = embeddings[table](ids[:, at : at + count])
        found.append(keras.ops.sum(rows_of_feature, 1))
        at += count
    x = keras.layers.Concatenate()([*found, numbers])
    for size in DENSE:
        x = keras.layers.Dense(size, activation="relu")(x)
    return keras.Model(
        {"ids": ids, "numbers": numbers}, keras.layers.Dense(1)(x)
    )


def worker(batch_size, shrink):
    """Builds a worker.

    Args:
        batch_size: examples of one step of one worker.
        shrink: see `features`.

    Returns:
        As `fit_clock.timed`.
    """
    import keras

    import tfdist

    strategy = tfdist.AsyncStrategy(table_bytes=TABLE_BYTES)
    with strategy.scope():
        model = build(shrink)
        model.compile(
            keras.optimizers.Adagrad(0.001),
            keras.losses.BinaryCrossentropy(from_logits=True),
        )
    data = batches(batch_size, shrink, strategy.cluster.worker_id)
    return fit_clock.timed(model, data)
