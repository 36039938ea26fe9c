"""Private names of Keras's adapters of data, as of `private_keras`.

`tests/private_keras_data_test.py` has a canary for each function.
"""

from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import keras
from keras.src.trainers.data_adapters import array_data_adapter
from keras.src.trainers.data_adapters import array_slicing
from keras.src.trainers.data_adapters import generator_data_adapter
from keras.src.trainers.data_adapters import py_dataset_adapter
import tensorflow as tf

from tfdist import dynamic_subclasses
from tfdist import private_keras


def adapts_generator(adapter):
    """Whether a Keras `DataAdapter` is that of a Python generator.

    What it reads can be read once only, and its attribute `generator` says
    what its data set reads. The class has no public name.
    """
    return isinstance(adapter, generator_data_adapter.GeneratorDataAdapter)


def enqueuer_of(adapter):
    """Returns the threads that read for a Keras `DataAdapter`, or None.

    A `keras.utils.PyDataset` with `workers` has some. Neither they nor the
    adapter have a public name.
    """
    if not isinstance(adapter, py_dataset_adapter.PyDatasetAdapter):
        return None
    private_keras.require(adapter, "enqueuer")
    if adapter.enqueuer is not None:
        private_keras.require(adapter.enqueuer, "ready_queue")
    return adapter.enqueuer


def adapts_py_dataset(adapter):
    """Whether a Keras `DataAdapter` is that of a `PyDataset` that ends.

    The class has no public name.
    """
    return (
        isinstance(adapter, py_dataset_adapter.PyDatasetAdapter)
        and adapter.num_batches is not None
    )


def batch_of(adapter, index):
    """Returns a batch of the adapter of a `PyDataset`, as Keras trains on it.

    What Keras makes of what the user returns has no public name.
    """
    private_keras.require(adapter, "py_dataset", "_standardize_batch")
    return adapter._standardize_batch(adapter.py_dataset[index])


def py_dataset_of(adapter):
    """Returns the `PyDataset` of its adapter, which has no public name."""
    private_keras.require(adapter, "py_dataset")
    return adapter.py_dataset


class ShuffledArrays(NamedTuple):
    """The arrays of a Keras adapter that shuffles them.

    Attributes:
      take: Callable of the numbers of examples, and of all arrays as they are
        in the pipeline; returns a batch.
      size: Number of examples.
      batch_size: Examples of a batch; the last one may have fewer.
      within_batches: Whether only each batch is shuffled.
    """

    take: Callable[..., Any]
    size: int
    batch_size: int
    within_batches: bool


def shuffled_arrays(adapter):
    """Returns the `ShuffledArrays` of a Keras `DataAdapter`, or None.

    None if it has no arrays, or does not shuffle them. Neither the adapter nor
    what it makes of arrays, sparse ones among them, has a public name.
    """
    if not isinstance(adapter, array_data_adapter.ArrayDataAdapter):
        return None
    private_keras.require(adapter, "_num_samples", "_batch_size", "_shuffle")
    if not adapter._shuffle:
        return None

    def take_one(array, numbers):
        if isinstance(array, array_slicing.TensorflowSparseWrapper):
            return array_slicing.slice_tensorflow_sparse_wrapper(array, numbers)
        if isinstance(array, (list, tuple, dict)):
            return None  # To be looked into.
        return tf.gather(array, numbers) if tf.is_tensor(array) else array

    return ShuffledArrays(
        lambda numbers, whole: keras.tree.traverse(
            lambda array: take_one(array, numbers), whole
        ),
        adapter._num_samples,
        adapter._batch_size,
        adapter._shuffle == "batch",
    )


class _Share:
    """A mixin: a `DataAdapter` of which Keras iterates over a part."""

    num_batches = property(lambda self: self._tfdist_num_batches)


def set_num_batches(adapter, number):
    """Makes Keras begin the data again after another number of batches.

    With `steps_per_epoch`, `fit` goes on with the data of the epoch before
    until it has seen as many batches as the adapter says. Adapters have no
    public name, and no setter.

    Args:
      adapter: A Keras `DataAdapter` that knows its number of batches.
      number: Batches of the part that Keras iterates over.
    """
    private_keras.require(adapter, "num_batches")
    adapter._tfdist_num_batches = number
    dynamic_subclasses.specialize(adapter, _Share)


def forget_num_batches(epoch_iterator):
    """Makes Keras forget how many batches an epoch of `fit` has had.

    It takes those of one epoch of data of unknown size for the size of all
    later ones. Neither its iterator nor their number has a public name.

    Args:
      epoch_iterator: Of `fit`.
    """
    private_keras.require(epoch_iterator, "_num_batches", "data_adapter")
    # As when `fit` begins: None where the adapter does not know it.
    epoch_iterator._num_batches = epoch_iterator.data_adapter.num_batches


def shuffles_batches(adapter):
    """Whether Keras draws the order of the batches of a `PyDataset`.

    It does so from Python's own random numbers. The argument of `fit` becomes
    an attribute of the adapter, which has no public name.
    """
    private_keras.require(adapter, "shuffle")
    return bool(adapter.shuffle)


def read_in_order_of(adapter, make):
    """Has Keras's threads read a `PyDataset` through another one, in order.

    They have their own copies of what the adapter holds, without public names.

    Args:
      adapter: The adapter, with its threads.
      make: Callable of the `PyDataset` that makes the other one.
    """
    private_keras.require(adapter, "py_dataset", "shuffle")
    private_keras.require(adapter.enqueuer, "py_dataset", "shuffle")
    adapter.py_dataset = adapter.enqueuer.py_dataset = make(adapter.py_dataset)
    adapter.shuffle = adapter.enqueuer.shuffle = False
