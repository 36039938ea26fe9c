"""Bytes are spread evenly, and everybody comes to the same answer."""

from hypothesis import given
from hypothesis import strategies as st
import pytest
import tensorflow as tf

from tfdist.runtime.variables import sharding

num_shards = st.integers(1, 8)
sizes = st.lists(st.integers(0, 10**9), max_size=60)


@given(num_shards, sizes)
def test_servers_differ_by_the_largest_variable_at_most(num_shards, sizes):
    balancer = sharding.ByteBalancer(num_shards)
    placed = [0] * num_shards
    for number, size in enumerate(sizes, start=1):
        shard = balancer.place(size)
        placed[shard] += size
        assert balancer.bytes_per_shard == tuple(placed)
        # Not only at the end.
        assert max(placed) - min(placed) <= max(sizes[:number])


@given(num_shards, sizes)
def test_the_same_sizes_are_placed_alike_by_everybody(num_shards, sizes):
    one = sharding.ByteBalancer(num_shards)
    other = sharding.ByteBalancer(num_shards)
    assert [one.place(s) for s in sizes] == [other.place(s) for s in sizes]


def test_ties_go_to_the_first_server():
    balancer = sharding.ByteBalancer(3)
    assert [balancer.place(4) for _ in range(5)] == [0, 1, 2, 0, 1]


def test_bytes_put_there_for_another_reason_count():
    balancer = sharding.ByteBalancer(2)
    balancer.add(0, 10)
    assert [balancer.place(4) for _ in range(4)] == [1, 1, 1, 0]
    assert balancer.bytes_per_shard == (14, 12)


@pytest.mark.parametrize("number", [0, -1])
def test_no_servers_are_refused(number):
    with pytest.raises(
        ValueError, match=f"num_shards.*Received: num_shards={number}"
    ):
        sharding.ByteBalancer(number)


def rows_of_pieces(pieces, shape):
    return sharding.rows_of_pieces(
        lambda shape, dtype: pieces, "table", tf.TensorShape(shape), tf.float32
    )


@given(st.integers(1, 200), st.data())
def test_pieces_are_even_and_add_up(rows, data):
    pieces = data.draw(st.integers(1, rows))
    parts = rows_of_pieces([pieces, 1], [rows, 5])
    assert len(parts) == pieces
    assert sum(parts) == rows
    assert max(parts) - min(parts) <= 1
    assert parts == sorted(parts, reverse=True)


@pytest.mark.parametrize(
    "pieces", [[2], [1, 2], [2, 2], [2, 1, 1], [0, 1], [-1, 1], [8, 1]]
)
def test_pieces_that_cannot_be_are_refused_by_name(pieces):
    with pytest.raises(ValueError, match=r"splits 'table' of shape \(7, 5\)"):
        rows_of_pieces(pieces, [7, 5])
