"""Times of transfers, by hand. A gigabit carries 125,000,000 bytes."""

import math

import pytest

from tfdist.simulation import Network
from tfdist.simulation.network import Links

SECOND = 125_000_000  # bytes that a gigabit per second takes a second for


def links(network, push=(SECOND,), pull=(SECOND,), workers=3):
    return Links(network, workers, list(push), list(pull))


def test_default_takes_no_time():
    free = links(Network())
    assert free.push(0, 5.0) == 5.0
    assert free.pull(0, 7.0) == 7.0


def test_one_transfer_takes_its_latency_and_its_bytes():
    one = links(Network(latency_seconds=0.25, bandwidth_gbps=2))
    assert one.push(0, 1.0) == pytest.approx(1.0 + 0.25 + 0.5)


def test_the_slower_of_the_two_links_counts():
    slow_worker = links(Network(bandwidth_gbps=1, server_bandwidth_gbps=10))
    assert slow_worker.push(0, 0.0) == pytest.approx(1.0)
    slow_server = links(Network(bandwidth_gbps=10, server_bandwidth_gbps=1))
    assert slow_server.push(0, 0.0) == pytest.approx(1.0)


def test_workers_that_push_together_wait_at_the_server():
    shared = links(Network(bandwidth_gbps=math.inf, server_bandwidth_gbps=1))
    assert [shared.push(w, 0.0) for w in range(3)] == pytest.approx([1, 2, 3])
    # And the server's other direction is free.
    assert shared.pull(0, 0.0) == pytest.approx(1.0)


def test_a_faster_server_takes_in_two_workers_at_a_time():
    wide = links(Network(bandwidth_gbps=1, server_bandwidth_gbps=2))
    # Each needs a second to send; the server takes half a second for each.
    assert [wide.push(w, 0.0) for w in range(3)] == pytest.approx([1, 1, 1.5])


def test_workers_that_pull_together_wait_at_the_server():
    shared = links(Network(server_bandwidth_gbps=1))
    assert [shared.pull(w, 0.0) for w in range(3)] == pytest.approx([1, 2, 3])


def test_more_servers_share_the_bytes_but_not_the_workers_link():
    halves = [SECOND / 2] * 2
    server_bound = links(Network(server_bandwidth_gbps=1), halves, halves)
    assert server_bound.push(0, 0.0) == pytest.approx(0.5)
    worker_bound = links(
        Network(bandwidth_gbps=1, server_bandwidth_gbps=math.inf),
        halves,
        halves,
    )
    assert worker_bound.push(0, 0.0) == pytest.approx(1.0)


def test_a_server_makes_one_update_after_the_other():
    busy = links(Network(server_seconds=0.5))
    found = []
    for worker in range(3):
        busy.update(0.0)
        found.append(busy.pull(worker, 0.0))
    assert found == pytest.approx([0.5, 1.0, 1.5])
    busy.update(10.0)
    assert busy.pull(0, 10.0) == pytest.approx(10.5)
    # An update of several gradients is one; and with none nobody waits.
    assert busy.pull(1, 10.0) == pytest.approx(10.5)
    assert busy.pull(1, 11.0) == pytest.approx(11.0)


def test_servers_hear_from_the_first_one_what_it_decides():
    # The overhead is that of the worker's own messages.
    network = Network(latency_seconds=0.25, overhead_seconds=0.5)
    decided, alone, apart = (
        Links(network, 1, [0] * servers, [0] * servers, is_decided=is_decided)
        for servers, is_decided in ((2, True), (1, True), (2, False))
    )
    # From the worker to the second server, from that to the first one, back
    # to the second, and to the worker.
    assert decided.push(0, 1.0) == 1.0 + 2 * 0.25 + 0.25
    assert decided.pull(0, 2.0) == 2.0 + 2 * 0.25 + 0.25
    # Nobody decides over what is asked for in between.
    assert decided.fetch(0, 3.0) == 3.0 + 0.25 + 0.25
    for links_ in (alone, apart):
        assert links_.push(0, 1.0) == 1.0 + 0.25 + 0.25
        assert links_.pull(0, 2.0) == 2.0 + 0.25 + 0.25


@pytest.mark.parametrize(
    "arguments",
    [
        {"latency_seconds": -1},
        {"latency_seconds": math.inf},
        {"bandwidth_gbps": 0},
        {"server_bandwidth_gbps": 0},
    ],
)
def test_bad_numbers_are_refused_by_name(arguments):
    (name,) = arguments
    with pytest.raises(ValueError, match=name):
        Network(**arguments)
