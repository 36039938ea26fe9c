"""What is known of a data set before it is shared out over workers."""

import numpy as np
import pytest
import tensorflow as tf

from tfdist import private_tensorflow


def numbers():
    yield from range(4)


def lines(path):
    path.write_text("a\nb\n")
    return str(path)


KINDS = {
    "tensors": lambda path: tf.data.Dataset.from_tensors(np.ones([4])),
    "slices": lambda path: tf.data.Dataset.from_tensor_slices(np.ones([4, 2])),
    "range": lambda path: tf.data.Dataset.range(4),
    "generator": lambda path: tf.data.Dataset.from_generator(
        numbers, output_signature=tf.TensorSpec([], tf.int64)
    ),
    "text": lambda path: tf.data.TextLineDataset(lines(path)),
    "listed": lambda path: tf.data.Dataset.list_files(lines(path)),
    "interleaved": lambda path: tf.data.Dataset.from_tensor_slices(
        [lines(path)]
    ).interleave(tf.data.TextLineDataset),
}

FROM_MEMORY = ("tensors", "slices", "range", "generator")


@pytest.mark.parametrize("kind", KINDS)
def test_data_that_is_shared_out_by_file_is_not_taken_for_tensors(
    tmp_path, kind
):
    dataset = KINDS[kind](tmp_path / "lines.txt")
    worked_on = (
        dataset.shard(2, 0).map(lambda x: x).shuffle(4).batch(2).prefetch(1)
    )
    for one in (dataset, worked_on):
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = (
            tf.data.experimental.AutoShardPolicy.FILE
        )
        try:
            private_tensorflow.auto_shard_dataset(
                one.with_options(options), 2, 0
            )
            shared_by_file = True
        except tf.errors.NotFoundError:
            shared_by_file = False
        is_from_memory = private_tensorflow.is_from_memory(one)
        assert is_from_memory == (kind in FROM_MEMORY)
        assert not (is_from_memory and shared_by_file)
