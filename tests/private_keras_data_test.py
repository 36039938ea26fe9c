"""Canaries: Keras's adapters of data have the private names that they had.

As `private_keras_test`, for `tfdist.private_keras_data`.
"""

import keras
from keras.src.trainers import epoch_iterator
from keras.src.trainers.data_adapters import array_data_adapter
from keras.src.trainers.data_adapters import generator_data_adapter
from keras.src.trainers.data_adapters import py_dataset_adapter
import numpy as np
import pytest
import tensorflow as tf

from tests import private_names
from tfdist import private_keras_data
from tfdist import private_pipelines


def test_every_name_has_a_canary():
    assert not private_names.without_a_canary(private_keras_data, __file__)


def test_the_adapter_of_a_generator_is_known_and_reads_by_its_attribute():
    batches = [(np.ones([2, 3]), np.ones([2, 1]))] * 3
    adapter = generator_data_adapter.GeneratorDataAdapter(iter(batches))
    assert private_keras_data.adapts_generator(adapter)
    assert len(list(adapter.generator())) == 3
    adapter.generator = lambda: iter(batches[:1])
    assert len(list(adapter.get_tf_dataset())) == 1


def adapter_of_arrays(x, y, batch_size, shuffle):
    """Returns Keras's adapter; `shuffle` as of `fit`."""
    return array_data_adapter.ArrayDataAdapter(
        x, y, None, batch_size, None, shuffle
    )


def test_shuffled_arrays_are_those_that_keras_slices():
    x = np.arange(6.0)
    in_order, *adapters = (
        adapter_of_arrays({"a": x}, [x, x], 4, shuffle)
        for shuffle in (False, True, "batch")
    )
    assert private_keras_data.shuffled_arrays(in_order) is None
    assert private_keras_data.shuffled_arrays(None) is None
    found, each = map(private_keras_data.shuffled_arrays, adapters)
    assert isinstance(found, private_keras_data.ShuffledArrays)
    assert (found.size, found.batch_size) == (6, 4)
    assert [one.within_batches for one in (found, each)] == [False, True]
    (expected,) = in_order.get_tf_dataset().skip(1)
    whole = private_pipelines.whole_arrays(in_order.get_tf_dataset())
    (taken,) = whole.map(lambda *parts: found.take([4, 5], parts))
    keras.tree.map_structure(np.testing.assert_array_equal, taken, expected)


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return np.ones([2, 3]), np.ones([2, 1])


class Reversed(Batches):
    """Batch 0 is of twos."""

    def __getitem__(self, index):
        return (2.0 - index) * np.ones([2, 3]), np.ones([2, 1])


@pytest.mark.parametrize("workers", [1, 2])
def test_batches_of_a_data_set_can_be_read_in_another_order(workers):
    adapter = py_dataset_adapter.PyDatasetAdapter(
        Batches(workers=workers), shuffle=True
    )
    assert private_keras_data.adapts_py_dataset(adapter)
    assert not private_keras_data.adapts_py_dataset(adapter.py_dataset)
    assert private_keras_data.py_dataset_of(adapter) is adapter.py_dataset
    assert private_keras_data.shuffles_batches(adapter)
    np.testing.assert_array_equal(
        private_keras_data.batch_of(adapter, 0)[0], np.ones([2, 3])
    )
    if workers == 1:
        return
    private_keras_data.read_in_order_of(adapter, lambda _: Reversed(workers=2))
    assert not private_keras_data.shuffles_batches(adapter)
    adapter.on_epoch_begin()
    read = [float(x[0, 0]) for x, _ in adapter.get_tf_dataset()]
    adapter.on_epoch_end()
    assert read == [2.0, 1.0]


def test_an_adapter_says_how_many_batches_its_part_has():
    adapter = py_dataset_adapter.PyDatasetAdapter(Batches(), shuffle=False)
    private_keras_data.set_num_batches(adapter, 1)
    assert adapter.num_batches == 1
    # Of it, and of no other one.
    other = py_dataset_adapter.PyDatasetAdapter(Batches(), shuffle=False)
    assert other.num_batches == 2


def test_keras_forgets_how_many_batches_an_epoch_has_had():
    """Of data of unknown size, the second epoch has more than the first."""
    sizes = iter([1, 3])

    def batches():
        for _ in range(next(sizes)):
            yield np.ones([1])

    data = tf.data.Dataset.from_generator(
        batches, output_signature=tf.TensorSpec([1])
    )
    epochs = epoch_iterator.EpochIterator(data)

    def epoch():
        seen = 0
        with epochs.catch_stop_iteration():
            for _, _, batch in epochs:
                seen += len(batch)
        return seen

    assert epoch() == 1
    assert epochs.num_batches == 2  # With the one that was not there.
    private_keras_data.forget_num_batches(epochs)
    assert epochs.num_batches is None
    assert epoch() == 3


def test_threads_that_read_are_found():
    adapter = py_dataset_adapter.PyDatasetAdapter
    threads = adapter(Batches(workers=2), shuffle=False)
    assert private_keras_data.enqueuer_of(threads) is threads.enqueuer
    assert threads.enqueuer.ready_queue.empty()
    assert (
        private_keras_data.enqueuer_of(adapter(Batches(), shuffle=False))
        is None
    )
    del threads.enqueuer
    with pytest.raises(RuntimeError, match="PyDatasetAdapter has no .*enqueu"):
        private_keras_data.enqueuer_of(threads)
