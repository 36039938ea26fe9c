"""Portions of the data, and what workers compare."""

from hypothesis import given
from hypothesis import strategies as st
import pytest
import tensorflow as tf

from tests import laws
from tfdist import saved_state
from tfdist.sandblaster import whole_data


@laws.settings(50, deadline=None)
@given(st.integers(1, 60), st.integers(1, 20))
def test_each_batch_is_in_one_portion_and_none_is_empty(number, most):
    portions = whole_data.portions(list(range(number)), most)
    assert sum(portions, []) == list(range(number))
    assert len(portions) == min(number, most)
    sizes = [len(one) for one in portions]
    assert max(sizes) - min(sizes) <= 1


def test_the_checksum_is_of_the_content_and_its_order():
    a, b = (tf.constant([1.0, 2.0]), None), (tf.constant([2.0, 1.0]), "x")
    sums = [
        whole_data.checksum(batches) for batches in ([a], [b], [a, b], [b, a])
    ]
    assert len(set(sums)) == 4
    assert whole_data.checksum([a, b]) == sums[2]


def test_the_checksum_is_of_all_elements_of_sparse_and_ragged_tensors():
    def sums(number):
        dense = tf.one_hot(number, 5000)
        ragged = tf.RaggedTensor.from_row_lengths(dense, [2000, 3000])
        parts = (tf.sparse.from_dense(1.0 - dense), ragged)
        return [whole_data.checksum([(part, None)]) for part in parts]

    for one, same, other in zip(
        sums(2500), sums(2500), sums(2501), strict=True
    ):
        assert one == same != other


@pytest.mark.parametrize(
    "key, error",
    [
        ("variables", saved_state.ModelMismatchError),
        ("settings", saved_state.ModelMismatchError),
        ("untrained", saved_state.ModelMismatchError),
        ("data", ValueError),
        ("batches", ValueError),
    ],
)
def test_a_worker_that_computes_something_else_is_refused(key, error):
    chiefs = {
        "variables": "a",
        "settings": "b",
        "untrained": 0,
        "data": 1,
        "batches": 2,
    }
    whole_data.compare(chiefs, dict(chiefs))
    with pytest.raises(error, match=key):
        whole_data.compare(chiefs, {**chiefs, key: 3})
