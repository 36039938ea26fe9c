"""Batches of shuffled arrays, in an order that all workers draw alike.

Keras shuffles arrays by a random operation in a function of the pipeline.
Where a seed has been set, as on the workers of a cluster, TensorFlow begins
such an operation again with each iterator: all epochs would have one order.
"""

import zlib

import tensorflow as tf

from tfdist import private_keras_data
from tfdist import private_pipelines
from tfdist.data_shares import epoch_orders


def maker(dataset, adapter, call):
    """Returns what makes the pipeline of a call of `fit`.

    Each iterator of one pipeline has an order of its own; pipelines of the
    same call begin alike.

    Args:
      dataset: A `tf.data.Dataset`.
      adapter: The Keras `DataAdapter` that has made it; None if none has.
      call: Order number of the data, from 1, see `shares.distribute`.

    Returns:
      A callable of the number of shares and the one that is made, which
      returns a `tf.data.Dataset`; None where Keras shuffles no arrays.
    """
    arrays = private_keras_data.shuffled_arrays(adapter)
    if arrays is None:
        return None
    whole = private_pipelines.whole_arrays(dataset).repeat()

    def make(number=1, mine=0):
        seeds = tf.data.Dataset.random(
            seed=seed(call), rerandomize_each_iteration=True
        )
        numbers = (
            seeds.take(2)
            .batch(2)
            .flat_map(lambda drawn: _numbers(arrays, drawn))
        )
        if number > 1:
            numbers = numbers.shard(number, mine)
        batches = tf.data.Dataset.zip((numbers, whole)).map(
            arrays.take, num_parallel_calls=tf.data.AUTOTUNE
        )
        options = tf.data.Options()
        # A description of the pipeline as a graph would hold all arrays.
        options.experimental_optimization.apply_default_optimizations = False
        options.experimental_distribute.auto_shard_policy = (
            tf.data.experimental.AutoShardPolicy.DATA
        )
        return batches.with_options(options).prefetch(tf.data.AUTOTUNE)

    return make


def seed(call):
    """The seed of the orders of a call of `fit`, an int of 32 bits.

    Args:
      call: Order number of the data, see `maker`.
    """
    return zlib.crc32(epoch_orders.seed_of(call).encode())


def _numbers(arrays, drawn):
    """The numbers of the examples of each batch of an epoch.

    Args:
      arrays: The `ShuffledArrays`.
      drawn: Two random numbers, an int64 tensor of shape [2].

    Returns:
      A `tf.data.Dataset` of int64 tensors.
    """
    numbers = tf.range(arrays.size, dtype=tf.int64)
    if not arrays.within_batches:
        numbers = tf.random.experimental.stateless_shuffle(numbers, drawn)
    whole = arrays.size - arrays.size % arrays.batch_size
    batches = tf.data.Dataset.from_tensor_slices(
        tf.reshape(numbers[:whole], [-1, arrays.batch_size])
    )
    if whole < arrays.size:
        rest = tf.data.Dataset.from_tensors(numbers[whole:])
        batches = batches.concatenate(rest)
    if not arrays.within_batches:
        return batches
    return batches.enumerate().map(
        lambda batch, numbers: tf.random.experimental.stateless_shuffle(
            numbers, tf.stack([drawn[0] ^ drawn[1], batch])
        )
    )
