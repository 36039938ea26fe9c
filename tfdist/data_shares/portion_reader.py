"""Batches of an epoch by their numbers, from a pipeline that is read in order.

A worker reads what it takes and passes over what others take, as it does with
a share. For a portion that has come back it begins the epoch again.
"""

import functools

import tensorflow as tf

from tfdist import private_keras_data
from tfdist import private_pipelines
from tfdist.data_shares import arrays
from tfdist.data_shares import epoch_orders
from tfdist.data_shares import fresh_pipelines
from tfdist.data_shares import iterators

_AutoShardPolicy = tf.data.experimental.AutoShardPolicy
_INSTEAD = 'use work="shares", which takes all data that `fit` takes.'


def check(dataset, adapter, steps_per_epoch, workers):
    """Refuses data that has no portions.

    Args:
      dataset: The `tf.data.Dataset` that Keras has made.
      adapter: The Keras `DataAdapter` that has made it; None if none has.
      steps_per_epoch: The most steps of an epoch of `fit`, or None.
      workers: Number of the workers that begin.

    Raises:
      ValueError: It is of a kind whose batches have no numbers, or `fit` has
        an argument that does not go with it.
    """
    if adapter is None:
        raise ValueError(
            'Argument `work` must be "shares" for a training loop of your '
            "own: portions are for `fit`. Received: "
            'work="queue"'
        )
    if steps_per_epoch:
        raise ValueError(
            "Argument `steps_per_epoch`, and keras.config.max_steps_per_epoch()"
            ', must be None with work="queue", where an epoch ends when all '
            "its examples are seen: cut the data (`dataset.take`), or "
            f"{_INSTEAD} Received: "
            f"steps_per_epoch={steps_per_epoch}"
        )
    kind = None
    if private_keras_data.adapts_generator(adapter):
        kind = "a Python generator"
    elif private_keras_data.adapts_py_dataset(adapter):
        kind = "a keras.utils.PyDataset"
    elif adapter.num_batches is None:
        kind = "a data set of unknown or infinite cardinality"
    if kind is not None:
        raise ValueError(
            "Argument `x` must be arrays, tensors or a tf.data.Dataset of "
            'known cardinality with work="queue", which reads batches by '
            "their numbers: tell the number of batches "
            "(`dataset.apply(tf.data.experimental.assert_cardinality(n))`), "
            f"or {_INSTEAD} Received: {kind}"
        )
    if private_pipelines.repeats_a_shuffle(dataset):
        raise ValueError(
            "Argument `x` must not repeat a shuffle with "
            'work="queue", which reads batches by their numbers: the order of '
            "a repetition depends on who has read those before. Pass "
            f"`epochs` instead of `dataset.repeat`, or {_INSTEAD} Received: "
            "a data set with `shuffle` below `repeat`"
        )
    if private_pipelines.caches_a_shuffle(dataset):
        raise ValueError(
            "Argument `x` must not cache a shuffle with "
            'work="queue", in which no worker reads all of an epoch: the cache '
            "stays empty, and the order becomes another one. Shuffle behind "
            f"the cache, or {_INSTEAD} Received: a data set with `shuffle` "
            "below `cache`"
        )
    policy = dataset.options().experimental_distribute.auto_shard_policy
    if policy not in (_AutoShardPolicy.AUTO, _AutoShardPolicy.DATA):
        raise ValueError(
            "Argument `x` must have AutoShardPolicy.AUTO or DATA with "
            f'work="queue", which shares data out by batches; or {_INSTEAD} '
            f"Received: {policy.name}"
        )
    if adapter.num_batches < workers:
        raise ValueError(
            "Argument `x` must have a batch for each worker of the cluster: "
            "make the batches smaller, or start fewer workers. Received: "
            f"{adapter.num_batches} for {workers} workers"
        )


class PortionReader:
    """Iterators that stand at a batch of an epoch.

    Args:
      dataset: The `tf.data.Dataset` of all batches.
      call: Number of the call of `fit`, its own: each has another order, and
        with a queue there are no calls within one.
      adapter: The Keras `DataAdapter` that has made it; None if none has.

    Raises:
      ValueError: The data set is shuffled in memory and too large for its
        order to be repeated.
    """

    def __init__(self, dataset, call, adapter=None):
        self._dataset = dataset
        self._call = call
        self._make = arrays.maker(dataset, adapter, call)
        # Whether each iterator gives the same.
        self._is_fixed = (
            self._make is None
            and not private_pipelines.depends_on_iterators(dataset)
        )
        self._iterators = None if self._is_fixed else self._begun_again()
        self._iterator = None
        # Epoch and batch at which it stands; None if that is not known.
        self._at = None
        self._opened = (0, 0)

    def _begun_again(self):
        """The iterators of the call's epochs, from the first one on."""
        if self._make is not None:
            return epoch_orders.EpochIterators(self._make())
        made = fresh_pipelines.begun_again(
            self._dataset, self._call, in_order=True
        )
        if made is self._dataset:
            raise ValueError(
                "Argument `x` must be smaller, or be shuffled before it is in "
                'memory, with work="queue", which repeats the order of an '
                f"epoch for portions that come back; or {_INSTEAD} Received: "
                "a shuffled data set of more than "
                f"{fresh_pipelines.MAX_BYTES} bytes in memory"
            )
        return epoch_orders.EpochIterators(made)

    def open(self, epoch, batch):
        """Returns an iterator whose next element is a batch.

        Until the caller says what it has taken (`note_taken`), nobody knows
        where the iterator stands: next time the epoch is begun again.

        Args:
          epoch: Number of the epoch as Keras counts, from 0.
          batch: Number of the batch in the epoch, from 0.

        Returns:
          An iterator of `tf.data`.
        """
        at, self._at = self._at, None
        if at is None or at[0] != epoch or at[1] > batch:
            self._iterator = self._begin(epoch)
            at = (epoch, 0)
        if batch > at[1]:
            _pass_over(self._iterator, tf.constant(batch - at[1], tf.int64))
        self._opened = (epoch, batch)
        return self._iterator

    def note_taken(self, batches):
        """Notes that so many batches have been taken since `open`."""
        epoch, batch = self._opened
        self._at = (epoch, batch + batches)

    def _begin(self, epoch):
        if self._is_fixed:
            return iterators.iterate(self._dataset)
        if self._iterators.drawn > epoch:
            self._iterators = self._begun_again()
        return self._iterators.next(epoch)


@functools.partial(tf.function, autograph=False)
def _pass_over(iterator, number):
    """Takes as many elements from an iterator, int64 scalar."""

    def body(done):
        with tf.control_dependencies(
            [
                part.op
                for part in tf.nest.flatten(
                    iterator.get_next(), expand_composites=True
                )
                # Of optional inputs.
                if part is not None
            ]
        ):
            return [done + 1]

    tf.while_loop(
        lambda done: done < number,
        body,
        [tf.zeros([], tf.int64)],
        parallel_iterations=1,
    )
