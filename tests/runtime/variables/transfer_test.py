"""Tensors arrive where they are wanted."""

import itertools

import numpy as np
import tensorflow as tf

from tfdist.runtime.variables import transfer

SERVER, WORKER, HELPER = (
    f"/job:{job}/replica:0/task:0/device:CPU:0"
    for job in ("ps", "worker", "helper")
)


def test_only_large_tensors_go_to_a_home_of_their_own():
    size = transfer.PACK_BELOW_BYTES // 4
    with tf.Graph().as_default():
        with tf.device(SERVER):
            tensors = [tf.ones([n]) for n in (size, size - 1, 3, size, size)]
        moved = transfer.move(
            tensors,
            source=SERVER,
            target=WORKER,
            homes=[HELPER, HELPER, HELPER, None],
        )
        found = [tensor.op.device for tensor in moved]
    # What is packed makes one message, and what has no home goes with it.
    assert found == [HELPER, WORKER, WORKER, WORKER, WORKER]


def test_values_do_not_change_on_their_way():
    rng = np.random.default_rng(1)
    shapes = ([3], [130, 130], [], [2, 5])
    values = [rng.normal(size=shape).astype("float32") for shape in shapes]

    @tf.function
    def move():
        device = tf.config.list_logical_devices("CPU")[0].name
        return transfer.move(
            [tf.constant(value) for value in values],
            source=device,
            target=device,
            homes=[device] * 2,
        )

    for came, value in zip(move(), values, strict=True):
        np.testing.assert_array_equal(came, value)


def rows(*counts):
    """Matrices of some rows, of widths 4 and 8 in turn."""
    return [
        np.arange(count * width, dtype="float32").reshape(count, width) + place
        for place, (count, width) in enumerate(
            zip(counts, itertools.cycle((4, 8)), strict=False)
        )
    ]


SPECS = [
    tf.TensorSpec([None, width], tf.float32)
    for width, _ in zip(itertools.cycle((4, 8)), range(8), strict=False)
]


def test_gradients_of_many_tables_make_one_message():
    with tf.Graph().as_default() as graph:
        with tf.device(WORKER):
            tensors = [
                tf.compat.v1.placeholder(spec.dtype, spec.shape)
                for spec in SPECS
            ]
        moved = transfer.move(tensors, source=WORKER, target=SERVER)
        assert [tensor.op.device for tensor in moved] == [SERVER] * 8
        sent = {
            tensor.ref()
            for op in graph.get_operations()
            for tensor in op.inputs
            if (tensor.op.device, op.device) == (WORKER, SERVER)
        }
    # The rows, and how many there are of each table.
    assert len(sent) == 2


def test_rows_do_not_change_on_their_way():
    device = tf.config.list_logical_devices("CPU")[0].name

    @tf.function(input_signature=[SPECS])
    def move(tensors):
        counter = tf.constant(7, tf.int64)
        *moved, counter = transfer.move(
            [*tensors, counter], source=device, target=device
        )
        return moved, counter

    for counts in ((3, 0, 1, 5, 2, 4, 6, 1), [0] * 8):
        values = rows(*counts)
        moved, counter = move([tf.constant(value) for value in values])
        assert counter == 7
        for came, value in zip(moved, values, strict=True):
            np.testing.assert_array_equal(came, value)
