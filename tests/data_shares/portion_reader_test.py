"""Batches have the same numbers on all workers, however they are read."""

import types

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest
import tensorflow as tf

from tests import laws
from tfdist import private_keras_data
from tfdist import private_pipelines
from tfdist.data_shares import fresh_pipelines
from tfdist.data_shares import portion_reader

BATCHES = 5


def shuffled():
    data = tf.data.Dataset.range(BATCHES * 2).map(lambda x: (x, x + 1))
    return data.shuffle(BATCHES * 2, seed=3).batch(2)


def read(reader, epoch, batch):
    x, y = next(reader.open(epoch, batch))
    np.testing.assert_array_equal(x + 1, y)
    return x.numpy().tolist()


def orders(call, epochs=3):
    """Returns by epoch the batches in order, as `fit` with shares has them."""
    data = fresh_pipelines.begun_again(shuffled(), call, in_order=True)
    return [[x.numpy().tolist() for x, _ in data] for _ in range(epochs)]


@pytest.mark.parametrize("call", [1, 2])
def test_an_epoch_has_the_order_that_it_has_with_shares(call):
    reader = portion_reader.PortionReader(shuffled(), call)
    first, second, third = orders(call)
    assert first != second
    for epoch, expected in ((0, first), (1, second), (2, third)):
        for batch in range(BATCHES):
            assert read(reader, epoch, batch) == expected[batch]
            reader.note_taken(1)


PLACES = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, BATCHES - 1), st.booleans()),
    max_size=8,
)


@pytest.mark.nightly
@laws.settings(4, nightly=100)
@given(PLACES)
def test_any_batch_can_come_after_any_other(places):
    expected = orders(1)
    reader = portion_reader.PortionReader(shuffled(), 1)
    for epoch, batch, is_known in places:
        assert read(reader, epoch, batch) == expected[epoch][batch]
        # Else the step has failed, and nobody knows what it has taken.
        if is_known:
            reader.note_taken(1)


def test_data_in_order_is_read_as_it_is():
    reader = portion_reader.PortionReader(
        tf.data.Dataset.range(6).batch(2).map(lambda x: (x, x + 1)), 1
    )
    assert read(reader, 0, 2) == [4, 5]
    assert read(reader, 0, 0) == [0, 1]
    reader.note_taken(1)
    assert read(reader, 0, 1) == [2, 3]
    assert read(reader, 7, 1) == [2, 3]


def test_ragged_and_sparse_elements_are_passed_over():
    rows = tf.ragged.constant([[1], [2, 3], [4], [5, 6, 7]])
    data = tf.data.Dataset.from_tensor_slices(rows).batch(1)
    reader = portion_reader.PortionReader(data, 1)
    assert next(reader.open(0, 3)).to_list() == [[5, 6, 7]]


def test_elements_without_some_of_their_parts_are_passed_over():
    data = tf.data.Dataset.from_tensor_slices(
        ({"x": np.arange(4), "z": None}, None)
    )
    reader = portion_reader.PortionReader(data.batch(1), 1)
    inputs, target = next(reader.open(0, 3))
    assert inputs["x"].numpy().tolist() == [3]
    assert inputs["z"] is target is None


def test_shuffled_data_that_is_too_large_to_be_copied_is_refused(monkeypatch):
    monkeypatch.setattr(fresh_pipelines, "MAX_BYTES", 10)
    data = tf.data.Dataset.from_tensor_slices(np.zeros([9])).shuffle(9)
    with pytest.raises(ValueError, match="shuffled data set of more than 10"):
        portion_reader.PortionReader(data, 1)


def with_policy(policy):
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = policy
    return shuffled().with_options(options)


def check(dataset=None, batches=BATCHES, steps=None, workers=2):
    adapter = types.SimpleNamespace(num_batches=batches)
    portion_reader.check(dataset or shuffled(), adapter, steps, workers)


def test_what_has_portions():
    check()
    check(with_policy(tf.data.experimental.AutoShardPolicy.DATA))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"steps": 3}, "Received: steps_per_epoch=3"),
        ({"batches": None}, "Received: a data set of unknown or infinite"),
        ({"batches": 1}, "Received: 1 for 2 workers"),
        *[
            (
                {
                    "dataset": with_policy(
                        tf.data.experimental.AutoShardPolicy[name]
                    )
                },
                f"Received: {name}",
            )
            for name in ("OFF", "FILE", "HINT")
        ],
    ],
)
def test_what_has_none_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        check(**arguments)


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ("adapts_generator", "Received: a Python generator"),
        ("adapts_py_dataset", "Received: a keras.utils.PyDataset"),
    ],
)
def test_kinds_that_are_refused(monkeypatch, question, message):
    monkeypatch.setattr(private_keras_data, question, lambda adapter: True)
    with pytest.raises(ValueError, match=message):
        check()


def test_a_repeated_shuffle_is_refused():
    repeated = shuffled().repeat(2)
    for data in (repeated, repeated.prefetch(1)):
        with pytest.raises(ValueError, match="`shuffle` below `repeat`"):
            check(data)
    assert not private_pipelines.repeats_a_shuffle(shuffled())
    once = tf.data.Dataset.range(4).repeat(2).shuffle(8)
    assert not private_pipelines.repeats_a_shuffle(once)


def test_a_cached_shuffle_is_refused():
    cached = shuffled().cache()
    whole, part = (
        portion_reader.PortionReader(cached, call=1) for _ in range(2)
    )
    assert list(whole.open(0, 0)) and list(part.open(0, BATCHES - 1))
    next(part.open(0, 0))
    # One has an order in its cache, and the other one has none.
    orders = [
        [x.numpy().tolist() for x, _ in reader.open(1, 0)]
        for reader in (whole, part)
    ]
    assert orders[0] != orders[1]
    with pytest.raises(ValueError, match="`shuffle` below `cache`"):
        check(cached)


def test_a_loop_of_one_s_own_is_refused():
    with pytest.raises(ValueError, match="training loop of your own"):
        portion_reader.check(shuffled(), None, None, 2)
