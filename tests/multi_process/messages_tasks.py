"""What the task of a cluster does whose messages are counted."""

import collections
import pathlib

import keras
import numpy as np
import tensorflow as tf

from tests.multi_process import handshake
import tfdist

ROWS, WIDTH, IDS = 64, 4, 5


def graphs_run(run, directory):
    """Returns the graphs that functions were run as, by TensorFlow's account.

    Args:
        run: callable without arguments.
        directory: where the account is written.
    """
    with tf.summary.create_file_writer(str(directory)).as_default():
        tf.summary.trace_on(graph=True)
        run()
        tf.summary.trace_export("step", step=0)
    (file,) = pathlib.Path(directory).glob("events*")
    for event in tf.compat.v1.train.summary_iterator(str(file)):
        for value in event.summary.value:
            (account,) = value.tensor.string_val
            yield from tf.compat.v1.RunMetadata.FromString(
                account
            ).function_graphs


def count(table, directory):
    """Takes a step; reports, by pair of tasks, the tensors that were sent.

    Args:
        table: whether the model has a table on servers.
        directory: for files.
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
    found = graphs_run(lambda: model.train_on_batch(x, y), directory)
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
