"""What the task of a cluster does whose messages are counted."""

import collections

import keras
import numpy as np
from tensorflow.python.eager import context

from tests.multi_process import handshake
import tfdist

ROWS, WIDTH, IDS = 64, 4, 5


def count(table):
    """Takes a step; reports, by pair of tasks, the tensors that were sent.

    Args:
        table: whether the model has a table on servers.
    """
    strategy = tfdist.AsyncStrategy(table_bytes=1 if table else None)
    with strategy.scope():
        inputs = keras.Input((IDS,), dtype="int32")
        hidden = keras.layers.Embedding(ROWS, WIDTH)(inputs)
        hidden = keras.layers.GlobalAveragePooling1D()(hidden)
        model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
        model.compile("adam", "mse")
    x = np.arange(4 * IDS).reshape(4, IDS).astype("int32")
    y = np.ones([4, 1], "float32")
    model.fit(x, y, batch_size=2, verbose=0)
    # TensorFlow has no public way to the graphs that have run.
    context.enable_run_metadata()
    model.train_on_batch(x, y)
    found = context.export_run_metadata().function_graphs
    (step,) = [f for f in found if len(f.partition_graphs) > 1]
    sent = collections.Counter(
        " ".join(
            "/".join(part.rpartition(":")[2] for part in device.split("/")[1:4])
            for device in (
                node.attr["send_device"].s.decode(),
                node.attr["recv_device"].s.decode(),
            )
        )
        for graph in step.partition_graphs
        for node in graph.node
        if node.op == "_Recv"
    )
    handshake.report(sent=dict(sent))
