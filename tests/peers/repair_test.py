"""The repair of a replica while messages of other workers come."""

import contextlib
import io
import itertools
import types

import numpy as np
import pytest
import tensorflow as tf

from tests.peers import channel_test
from tfdist import saved_state
from tfdist.peers import account
from tfdist.peers import repair

ONES, SIZE = channel_test.ONES, channel_test.SIZE
# The replica of the other worker, which is number 1; this one is number 0.
THEIRS = -7.0


class Meetings:
    """The other worker, which gives one snapshot after the other."""

    def __init__(self, name, snapshots):
        """Makes it.

        Args:
            name: of the channel.
            snapshots: numbers of all workers' updates in each of them.
        """
        self._name = name
        self._snapshots = snapshots
        self.requests = []

    def request(self, worker, number):
        """Notes a request."""
        assert worker == 1
        self.requests.append(number)

    def status_of(self, worker):
        """Says that it has answered."""
        return {"served": {"0": self.requests[-1]}}

    def read_snapshot(self, worker, seconds):
        """Returns the next one; the last one again and again."""
        number = min(len(self.requests), len(self._snapshots)) - 1
        seen = self._snapshots[number]
        sums = [7 * number for number in seen]
        header = {"seen": seen, "sums": sums, "earlier": [0, 0, 5]}
        header = {key: {self._name: row} for key, row in header.items()}
        # There the variable has another number than here.
        header["lanes"] = [[2, 3]]
        value = np.full(SIZE, THEIRS, np.float32)
        file = io.BytesIO()
        saved = saved_state.SavedState({"peers": header}, {"variable/3": value})
        saved_state.write(saved, file)
        return file.getvalue()


@pytest.fixture
def receiver():
    made = channel_test.Receiver()
    yield made
    made.channel.transport.close()


def run(receiver, snapshots, lost=(), seconds=20.0):
    """Repairs; returns the requests that it took."""
    channel = receiver.channel
    variable = channel._flat
    receive = tf.function(channel.receive_kept, autograph=False)
    for worker in lost:
        channel._roster.give_up(worker, "a test")
    meetings = Meetings(channel.name, snapshots)
    engine = types.SimpleNamespace(
        roster=channel._roster,
        collectives=meetings,
        channels=[channel],
        requests=itertools.count(1),
        applying=contextlib.nullcontext,
        lanes=[
            types.SimpleNamespace(
                number=0,
                agreeing=[variable],
                receive=lambda kept: receive(),
            )
        ],
    )
    done = []
    repair.Repair(engine, 1, "a test", seconds, lambda: done.append(True)).run()
    assert meetings.requests[-1] == -2
    return bool(done), meetings.requests[:-1]


def put(receiver, sender, *numbers):
    """Puts in messages of updates of a half each."""
    for first, last in numbers:
        count = last - first + 1
        receiver.put(ONES * count, first, last, sender=sender)


def test_each_update_counts_once_in_what_was_taken_over(receiver):
    put(receiver, 2, (1, 1))
    receiver.receive()
    put(receiver, 1, (1, 1), (2, 3), (4, 4))
    put(receiver, 2, (2, 4), (5, 6))
    # The first lacks an update that is here; the second has some of a message.
    done, requests = run(receiver, [[0, 2, 0], [0, 2, 4], [0, 3, 4]])
    assert done
    assert requests == [1, 2, 3]
    # One update of worker 1 and two of worker 2 have come since.
    assert receiver.sum() == pytest.approx(THEIRS - 1.5)
    counts = receiver.channel.counts
    assert counts[1:, account.SEEN].tolist() == [4, 6]
    assert receiver.channel.account.fetched == [0, 0, 0]
    assert counts[1:, account.APPLIED].tolist() == [4, 6]
    assert not counts[:, account.MISSED].any()


@pytest.mark.parametrize("seen", [2, 5])
def test_last_updates_of_a_lost_worker_are_those_of_the_other(receiver, seen):
    put(receiver, 2, (1, 3))
    receiver.receive()
    put(receiver, 2, (4, 4))
    done, _ = run(receiver, [[0, 0, seen]], lost=[2])
    assert done
    assert receiver.sum() == THEIRS
    assert receiver.channel.seen[2] == seen
    assert receiver.channel.sums[2] == 7 * seen
    assert receiver.channel.account.fetched[2] == seen - 3
    assert receiver.channel.account.earlier == [0, 0, 5]


def test_a_snapshot_is_not_read_before_it_is_there(receiver, monkeypatch):
    """The second one: the first lacks an update that is here."""
    put(receiver, 2, (1, 1))
    receiver.receive()
    reads = []

    def status_of(meetings, worker):
        return {"served": {"0": 1}}

    def read_snapshot(meetings, worker, seconds):
        reads.append(meetings.requests[-1])
        return snapshot_of(meetings, worker, seconds)

    snapshot_of = Meetings.read_snapshot
    monkeypatch.setattr(Meetings, "status_of", status_of)
    monkeypatch.setattr(Meetings, "read_snapshot", read_snapshot)
    done, requests = run(receiver, [[0, 0, 0]], seconds=0.5)
    assert not done
    assert requests == [1, 2]
    assert reads == [1]


def test_without_the_own_updates_it_is_not_taken(receiver):
    receiver.channel._own.assign([4, 0])
    put(receiver, 2, (1, 2))
    done, requests = run(receiver, [[3, 0, 2]], seconds=0.5)
    assert not done and len(requests) > 1
    # What has come meanwhile is applied.
    assert receiver.sum() == pytest.approx(-1.0)
    assert receiver.channel.seen == [4, 0, 2]
