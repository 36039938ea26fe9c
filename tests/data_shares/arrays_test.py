"""Arrays are shuffled anew in each epoch, alike on all workers."""

import itertools
import types

import numpy as np
import pytest
import tensorflow as tf

from tests import nightly
from tests.data_shares import portion_reader_test
from tests.private_keras_data_test import adapter_of_arrays
from tfdist.data_shares import arrays
from tfdist.data_shares import portion_reader
from tfdist.data_shares import shares

SIZE = 7
BATCH = 2


def adapter_of(shuffle):
    """The adapter of two inputs, a target and no weights."""
    x = np.arange(SIZE, dtype=np.float32)
    sparse = tf.sparse.from_dense(np.diag(x + 1))
    x_parts = {"dense": x[:, None], "sparse": sparse}
    return adapter_of_arrays(x_parts, x + 1, BATCH, shuffle)


def read(dataset):
    """Returns by batch the numbers of its examples, which all parts tell."""
    epoch = []
    for x, y in dataset:
        found = x["dense"].numpy()[:, 0]
        np.testing.assert_array_equal(y, found + 1)
        diagonal = tf.sparse.to_dense(x["sparse"]).numpy()
        np.testing.assert_array_equal(diagonal.max(axis=1), found + 1)
        epoch.append(found.astype(int).tolist())
    return epoch


@pytest.mark.parametrize("seed", nightly.also([None], [3]))
def test_each_epoch_and_call_has_an_order_of_its_own(seed):
    tf.random.set_seed(seed)
    adapter = adapter_of(shuffle=True)
    assert read(adapter.get_tf_dataset())  # It has them as Keras has.
    found = []
    for call in (1, 2):
        make = arrays.maker(adapter.get_tf_dataset(), adapter, call)
        whole, shares = make(), [make(2, k) for k in range(2)]
        for _ in range(3):
            order = read(whole)
            assert [len(batch) for batch in order] == [2, 2, 2, 1]
            assert sorted(itertools.chain(*order)) == list(range(SIZE))
            assert [read(share) for share in shares] == [
                order[::2],
                order[1::2],
            ]
            found.append(tuple(itertools.chain(*order)))
    assert len(set(found)) == 6


def test_one_worker_of_several_places_shuffles_anew():
    tf.random.set_seed(1)
    config = types.SimpleNamespace(num_workers=2, data_share=(1, 0))
    adapter = adapter_of(shuffle=True)
    dataset = shares._share_out(
        adapter.get_tf_dataset(),
        config,
        adapter,
        1,
        0,
        None,
        lambda checksum, is_seed: None,
    )
    assert read(dataset) != read(dataset)


@pytest.mark.nightly
def test_batches_can_be_shuffled_each_by_itself():
    found = []
    adapter = adapter_of(shuffle="batch")
    dataset = arrays.maker(adapter.get_tf_dataset(), adapter, 1)()
    for _ in range(8):
        order = read(dataset)
        assert list(map(sorted, order)) == [[0, 1], [2, 3], [4, 5], [6]]
        found.append(tuple(itertools.chain(*order)))
    assert len(set(found)) > 1


def test_arrays_in_order_stay_as_keras_reads_them():
    adapter = adapter_of(shuffle=False)
    assert arrays.maker(adapter.get_tf_dataset(), adapter, 1) is None
    assert arrays.maker(tf.data.Dataset.range(2), None, 1) is None


def test_portions_are_of_the_same_order():
    x = np.arange(10, dtype=np.int64)
    adapter = adapter_of_arrays(x, x + 1, 2, shuffle=True)
    whole = adapter.get_tf_dataset()
    make = arrays.maker(whole, adapter, 1)
    dataset = make()
    epochs = [[x.numpy().tolist() for x, _ in dataset] for _ in range(2)]
    reader = portion_reader.PortionReader(whole, 1, adapter)
    for epoch, batch in ((0, 3), (1, 0), (1, 4), (0, 1), (1, 2)):
        found = portion_reader_test.read(reader, epoch, batch)
        assert found == epochs[epoch][batch]
