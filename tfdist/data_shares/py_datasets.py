"""The order of a `keras.utils.PyDataset`, and the threads that read it."""

import itertools
import random
import weakref
import zlib

from absl import logging
import keras
import numpy as np
import tensorflow as tf

from tfdist import private_keras_data
from tfdist.data_shares import epoch_orders

# By `DataAdapter`: the orders of its batches.
_orders = weakref.WeakKeyDictionary()


def in_agreed_order(dataset, adapter, call, first_epoch, reads_alone):
    """The batches of a `PyDataset` in an order that all workers draw alike.

    Keras draws it from Python's random numbers, from which one worker alone
    may have drawn others before. All batches are read on all workers: a
    `PyDataset` that draws them itself then draws the same.

    Args:
      dataset: The `tf.data.Dataset` that Keras has made of it.
      adapter: The Keras `DataAdapter`.
      call: Order number of the data, see `shares.distribute`.
      first_epoch: Number of the first epoch, from 0, as Keras counts.
      reads_alone: Whether it is read without its threads, if it has any.

    Returns:
      A `tf.data.Dataset`.
    """
    if not private_keras_data.shuffles_batches(adapter):
        return dataset
    orders = _Orders(
        private_keras_data.py_dataset_of(adapter), call, first_epoch
    )
    _orders[adapter] = orders
    threads = private_keras_data.enqueuer_of(adapter)
    if threads is not None and not reads_alone:
        private_keras_data.read_in_order_of(
            adapter, lambda batches: _Reordered(batches, orders)
        )
        return dataset

    def generate():
        for index in orders.draw():
            yield private_keras_data.batch_of(adapter, index)

    ordered = tf.data.Dataset.from_generator(
        generate, output_signature=dataset.element_spec
    )
    return ordered.with_options(dataset.options()).prefetch(tf.data.AUTOTUNE)


def leave_out(adapter, epochs, orders, known=0):
    """Makes a `PyDataset` begin with the order of a later epoch.

    It may draw an order of its own when an epoch begins or ends.

    Args:
      adapter: The Keras `DataAdapter`.
      epochs: How many epochs are left out.
      orders: How many orders they have: with `steps_per_epoch` one may last for
        several of them.
      known: How many of them the last call has left out.
    """
    if epochs == known or not private_keras_data.adapts_py_dataset(adapter):
        return
    batches = private_keras_data.py_dataset_of(adapter)
    for _ in range(epochs - known):
        batches.on_epoch_begin()
        batches.on_epoch_end()
    if adapter not in _orders:
        return
    if not isinstance(batches, _Reordered):
        _orders[adapter].leave_out(orders)
    elif epochs < known:
        # Else it has drawn above, from where the building of the model has
        # left it, as on the other workers.
        _orders[adapter].leave_out(orders)
        batches.draw()


def checksum(adapter):
    """A number that tells one first batch of a `PyDataset` from another.

    Args:
      adapter: The Keras `DataAdapter`.

    Returns:
      A positive int of 32 bits.
    """
    number = 0
    for part in keras.tree.flatten(private_keras_data.batch_of(adapter, 0)):
        if hasattr(part, "__array__"):
            part = np.asarray(part)
            content = part.tobytes() if part.dtype != object else b""
            number = zlib.crc32(content, number)
    return number or 1


class _Orders:
    """Orders of batches, one after the other, the same on all workers.

    Args:
      batches: The `PyDataset`, which may have more or fewer in each epoch.
      call: Order number of the data, see `shares.distribute`.
      first: Number of the epoch whose order is drawn first, from 0.
    """

    def __init__(self, batches, call, first):
        self._batches = batches
        self._seed = epoch_orders.seed_of(call)
        self._first = first
        self._epochs = itertools.count(first)
        self._epoch = first

    def leave_out(self, orders):
        """Begins so many orders after the first, whatever has been drawn."""
        self._epochs = itertools.count(self._first + orders)

    def draw(self):
        """Returns `order` of the next epoch."""
        self._epoch = next(self._epochs)
        return self.order()

    def order(self):
        """Returns the numbers of the batches in the order of an epoch."""
        order = list(range(self._batches.num_batches))
        random.Random(f"{self._seed} {self._epoch}").shuffle(order)
        return order


class _Reordered(keras.utils.PyDataset):
    """A `PyDataset` whose batches are in another order in each epoch.

    Threads and processes read it, which are given it when an epoch begins.

    Args:
      batches: The `PyDataset`.
      orders: `_Orders`.
    """

    def __init__(self, batches, orders):
        super().__init__(
            batches.workers, batches.use_multiprocessing, batches.max_queue_size
        )
        self._batches = batches
        self._orders = orders
        self.draw()

    def __len__(self):
        if self._batches.num_batches != len(self._order):
            # A callback has changed it since the order was drawn.
            self._order = self._orders.order()
        return len(self._order)

    def __getitem__(self, index):
        return self._batches[self._order[index]]

    def on_epoch_begin(self):
        self._batches.on_epoch_begin()

    def on_epoch_end(self):
        self._batches.on_epoch_end()
        self.draw()

    def draw(self):
        """Takes the next order."""
        self._order = self._orders.draw()


class Readers:
    """Lets Keras's threads read when an epoch begins, and not before.

    Under a strategy Keras starts and stops them once to build the model, and
    gives what they have read meanwhile to the first epoch, before all of it.

    Args:
      adapter: The Keras `DataAdapter` of the data.
      steps_per_epoch: The most steps of an epoch of `fit`, or None.
      number: Into how many shares the data is divided.
    """

    def __init__(self, adapter, steps_per_epoch=None, number=1):
        self._adapter = adapter
        self._enqueuer = private_keras_data.enqueuer_of(adapter)
        if self._enqueuer is None:
            return
        adapter.enqueuer = None
        ends = adapter.num_batches is not None
        if ends and steps_per_epoch and number > 1:
            # From one epoch to the next they go on with what they had read,
            # and then start afresh: another number of batches on each worker.
            logging.warning(
                "With `steps_per_epoch` this worker reads the PyDataset by "
                "itself, without `workers`."
            )
            self._enqueuer = None

    def batch_to_build_for(self, spec):
        """Returns a batch of a `PyDataset`; None of one without end, or others.

        Epochs do not begin with it: Keras ends an epoch when it has built a
        model, which stops the threads and may draw another order.

        Args:
          spec: The `element_spec` of the data.
        """
        if not private_keras_data.adapts_py_dataset(self._adapter):
            return None
        lone = tf.data.Dataset.from_generator(
            lambda: [private_keras_data.batch_of(self._adapter, 0)],
            output_signature=spec,
        )
        return next(iter(lone))

    def begin(self):
        """Called when Keras begins to iterate."""
        if self._enqueuer is None:
            return
        if self._adapter.num_batches is not None:
            # Left by an evaluation that was begun to build the model.
            while not self._enqueuer.ready_queue.empty():
                self._enqueuer.ready_queue.get()
        self._adapter.enqueuer = self._enqueuer
