"""Tensors arrive where they are wanted."""

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
