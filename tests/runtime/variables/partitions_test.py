"""Every row of a table has a place of its own, evenly over the servers."""

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from tfdist.runtime.variables.partitions import PARTITIONS
from tfdist.runtime.variables.partitions import Partitions

servers = st.integers(1, 40)


@given(rows=st.integers(1, 50_000), servers=servers)
def test_every_id_has_a_place_of_its_own(rows, servers):
    partitions = Partitions(rows, servers)
    shard, row = partitions.place(np.arange(rows))
    held = np.array(
        [len(partitions.on(k)) * partitions.rows_each for k in range(servers)]
    )
    assert np.all((0 <= shard) & (shard < servers))
    assert np.all((0 <= row) & (row < held[shard]))
    assert len(np.unique(shard * held.max() + row)) == rows
    # Fewer than a row per partition is of no id.
    assert held.sum() - rows < PARTITIONS


@given(
    ids=st.lists(st.integers(0, 10**12), min_size=1),
    servers=servers,
)
def test_partition_of_an_id_does_not_depend_on_the_number_of_servers(
    ids, servers
):
    ids = np.array(ids)
    one, many = Partitions(10**12 + 1, 1), Partitions(10**12 + 1, servers)
    _, row = one.place(ids)
    partition, within = np.divmod(row, one.rows_each)
    shard, first = many.place_of(partition)
    np.testing.assert_array_equal(many.place(ids)[0], shard)
    np.testing.assert_array_equal(many.place(ids)[1], first + within)


@pytest.mark.parametrize("step", [1, 2, 64, PARTITIONS, 3 * PARTITIONS])
@pytest.mark.parametrize("servers", [2, 3, 8])
def test_servers_share_ids_of_any_stride_evenly(step, servers):
    ids = np.arange(0, 20_000 * step, step)
    shard, _ = Partitions(ids[-1] + 1, servers).place(ids)
    shares = np.bincount(shard, minlength=servers) * servers / len(ids)
    np.testing.assert_allclose(shares, 1, atol=0.1)


def test_there_are_no_more_servers_than_partitions():
    with pytest.raises(ValueError, match=r"Received: num_servers=1025"):
        Partitions(10, PARTITIONS + 1)
