"""Times of sums by topology are those of their formulas."""

import math

import pytest

from tfdist.simulation import Network
from tfdist.simulation import reductions

LATENCY = 1e-4
# 1 GB/s.
NETWORK = Network(latency_seconds=LATENCY, bandwidth_gbps=8)
SECONDS_PER_BYTE = 1e-9
M = 1_000_000


@pytest.mark.parametrize("workers", [1, 2, 3, 8, 64])
def test_a_ring_sends_a_share_in_each_of_its_rounds(workers):
    rounds = 2 * (workers - 1)
    expected = rounds * (LATENCY + M / workers * SECONDS_PER_BYTE)
    assert reductions.ring(NETWORK, workers, M) == pytest.approx(expected)


@pytest.mark.parametrize("workers", [1, 2, 8, 64])
def test_a_tree_sends_all_in_each_of_few_rounds(workers):
    rounds = 2 * math.log2(workers)
    expected = rounds * (LATENCY + M * SECONDS_PER_BYTE)
    assert reductions.tree(NETWORK, workers, M) == pytest.approx(expected)


@pytest.mark.parametrize("workers", [3, 5, 6, 7])
def test_a_tree_that_is_not_full_takes_as_long_but_for_latencies(workers):
    found = reductions.tree(NETWORK, workers, M)
    full = reductions.tree(NETWORK, 1 << (workers - 1).bit_length(), M)
    assert full - 2 * LATENCY <= found <= full


@pytest.mark.parametrize("workers", [1, 2, 8, 64])
def test_halving_and_doubling_has_the_few_of_both(workers):
    rounds = 2 * math.log2(workers)
    bytes_sent = 2 * (workers - 1) / workers * M
    expected = rounds * LATENCY + bytes_sent * SECONDS_PER_BYTE
    found = reductions.halving_and_doubling(NETWORK, workers, M)
    assert found == pytest.approx(expected)


def test_a_server_takes_in_and_gives_out_all():
    # One piece: the last gradient is in before the first sum goes out.
    for workers in (1, 3, 8):
        expected = 2 * (LATENCY + workers * M * SECONDS_PER_BYTE)
        found = reductions.servers(NETWORK, workers, M)
        assert found == pytest.approx(expected)


def test_servers_divide_the_work():
    network = Network(bandwidth_gbps=8)
    one, two, eight = (
        reductions.servers(network, 8, M, num_servers=k) for k in (1, 2, 8)
    )
    assert two == pytest.approx(one / 2)
    assert eight == pytest.approx(one / 8)


def test_as_many_servers_as_workers_beat_a_ring_where_pieces_overlap():
    """The claim of BytePS: each worker's link carries M out, a ring's 2 M."""
    network, workers = Network(bandwidth_gbps=8), 8
    around = reductions.ring(network, workers, M)
    assert around == pytest.approx(2 * 7 / 8 * M * SECONDS_PER_BYTE)
    whole, overlapping = (
        reductions.servers(network, workers, M, workers, pieces=pieces)
        for pieces in (1, 10)
    )
    assert whole == pytest.approx(2 * M * SECONDS_PER_BYTE)
    # All out, and the last piece back.
    assert overlapping == pytest.approx(1.1 * M * SECONDS_PER_BYTE)


def test_time_of_an_update_passes_once_per_piece():
    network = Network(bandwidth_gbps=8, server_seconds=0.5)
    quick = reductions.servers(Network(bandwidth_gbps=8), 2, M)
    found = reductions.servers(network, 2, M)
    assert found == pytest.approx(quick + 0.5)
    # So long that nothing else counts.
    found = reductions.servers(network, 2, M, pieces=4)
    assert 2.0 < found < 2.0 + quick


def test_wrong_numbers_are_refused():
    with pytest.raises(ValueError, match="`num_workers` .* Received: .*=0"):
        reductions.ring(NETWORK, 0, M)
    with pytest.raises(ValueError, match="`num_bytes` .* Received: .*=-1"):
        reductions.tree(NETWORK, 2, -1)
    with pytest.raises(ValueError, match="a power of 2. Received: .*=6"):
        reductions.halving_and_doubling(NETWORK, 6, M)
    with pytest.raises(ValueError, match="`num_servers` .* Received: .*=0"):
        reductions.servers(NETWORK, 2, M, num_servers=0)
