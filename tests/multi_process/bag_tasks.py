"""What the tasks of clusters do whose features share a table."""

import keras
import numpy as np
import tensorflow as tf

from tests.multi_process import handshake
import tfdist
from tfdist.layers import DynamicEmbedding
from tfdist.layers import EmbeddingBag

ROWS, WIDTH, EXAMPLES, BATCH, EPOCHS = 500, 2, 60, 4, 2


def examples():
    """Bags of ids with weights, and one id each, of all workers.

    Returns:
        Ragged ids and weights `(EXAMPLES, None)`, ids `(EXAMPLES,)`.
    """
    random = np.random.default_rng(2)
    lengths = random.integers(0, 6, EXAMPLES)

    def ragged(values):
        return tf.RaggedTensor.from_row_lengths(values, lengths)

    total = lengths.sum()
    # Sums of such weights are exact.
    weights = random.choice([0.5, 1.0, -2.0], total).astype("float32")
    return (
        ragged(random.zipf(1.3, total) * 37 % ROWS),
        ragged(weights),
        random.integers(0, 20, EXAMPLES),
    )


def train(dynamic, sparse):
    """Pushes the weight of each id as its gradient; reports all rows.

    Args:
        dynamic: whether ids get their rows in training.
        sparse: whether the bags are sparse; else they are ragged.
    """
    strategy = tfdist.AsyncStrategy(
        table_bytes=1,
        fault_tolerance=tfdist.FaultTolerance(
            start_timeout=60.0, server_timeout=60.0
        ),
    )
    kind = {"sparse": True} if sparse else {"ragged": True}
    width = 5 if sparse else None
    with strategy.scope():
        if dynamic:
            table = DynamicEmbedding(WIDTH, ROWS, initializer=0.0)
        else:
            table = keras.layers.Embedding(ROWS, WIDTH, "zeros")
        seen = keras.Input((width,), dtype="int64", **kind)
        weights = keras.Input((width,), **kind)
        item = keras.Input((), dtype="int64")
        bag = EmbeddingBag(table, "sum")
        vectors = bag({"seen": seen, "item": item}, {"seen": weights})
        both = keras.layers.Add()(list(vectors.values()))
        outputs = keras.layers.Lambda(
            lambda x: keras.ops.sum(x, 1, keepdims=True)
        )(both)
        model = keras.Model([seen, weights, item], outputs)
        model.compile(
            keras.optimizers.SGD(1.0), lambda _, sums: keras.ops.sum(sums)
        )
    ids, given, items = examples()
    if sparse:
        ids, given = ids.to_sparse(), given.to_sparse()
    data = tf.data.Dataset.from_tensor_slices(
        ((ids, given, items), np.zeros((EXAMPLES, 1), "float32"))
    )
    model.fit(data.batch(BATCH), epochs=EPOCHS, verbose=0)
    strategy.barrier()
    handshake.report(
        rows=np.asarray(table(np.arange(ROWS))).tolist(),
        updates=strategy.updates_applied(),
    )
