"""Which worker restores a server, by what it hears of the others."""

import types

import pytest

from tfdist.runtime.local_steps import every_step
from tfdist.runtime.recovery import election
from tfdist.runtime.recovery.restoring import Offers
from tfdist.runtime.recovery.restoring import Restored


class ScriptedServer:
    """A `Restorer` of a server of which one hears what a test has written.

    Args:
      offers: List of `Offers`, one for each time that it is asked.
      takes_part: Whether the worker has something to offer.
    """

    def __init__(self, offers, takes_part=True):
        self._offers = iter(offers)
        self._takes_part = takes_part
        self.left = len(offers)
        self.restored = self.completed = 0

    def offer(self, shard, takes_part):
        assert (shard, takes_part) == (1, self._takes_part)
        self.left -= 1
        return next(self._offers)

    def restore(self, shard):
        assert shard == 1
        self.restored += 1
        return Restored(True, 6, 8, 0, 0)

    def lost_by_rows(self, shard):
        assert shard == 1

    def complete(self, shard):
        assert shard == 1
        self.completed += 1
        return 0


def elect(worker, offers, committed=1):
    """What `Election.restore` of a worker of two returns, and the server."""
    config = types.SimpleNamespace(
        num_workers=2,
        is_worker=True,
        ps_names=["/job:ps/task:0", "/job:ps/task:1"],
        worker_names=["/job:worker/task:0", "/job:worker/task:1"],
        task_name=f"/job:worker/task:{worker}",
    )
    server = ScriptedServer(offers, takes_part=committed > 0)
    made = election.Election(
        worker,
        every_step.EveryStep(None),
        types.SimpleNamespace(committed=committed),
        server,
        config,
        timeout=60.0,
    )
    return made.restore(1, began=0.0), server


@pytest.fixture
def clock(monkeypatch):
    """Time that goes on only where an election sleeps."""
    now = [100.0]

    def sleep(seconds):
        now[0] += seconds

    fake = types.SimpleNamespace(monotonic=lambda: now[0], sleep=sleep)
    monkeypatch.setattr(election, "time", fake)
    return now


def test_a_snapshot_waits_for_a_worker_that_may_have_something_newer(clock):
    snapshot = Offers((5, 0), held=7, settled=False)
    (done, here), server = elect(
        0,
        [
            snapshot,
            snapshot,
            # Here it is, with something newer, ...
            Offers((5, 9), held=7, settled=False),
            # ... which it restores.
            Offers((5, 9), held=9, settled=False),
        ],
    )
    assert (done, here, server.left) == (False, [True, True], 0)
    assert server.restored == 0
    # It may be that it alone knows of some variables.
    assert server.completed == 1


def test_a_snapshot_is_taken_where_nobody_has_anything_newer(clock):
    offers = [Offers((5, 7), held=7, settled=False)]
    (done, here), server = elect(0, offers)
    assert (done, here, server.left) == (False, [True, True], 0)
    # Or where another worker has done so.
    (done, here), server = elect(0, [Offers((5, 0), held=7, settled=True)])
    assert (done, here, server.left) == (False, [True, False], 0)
    # Or where the other one does not come.
    began = clock[0]
    offers = [Offers((5, 0), held=7, settled=False)] * 100
    (done, here), server = elect(0, offers)
    assert (done, here) == (False, [True, False])
    assert 2.0 <= clock[0] - began < 2.2


@pytest.mark.parametrize("held", [0, 7])
def test_who_has_nothing_gives_the_others_time(clock, held):
    """They may notice the loss up to ten seconds later."""
    began = clock[0]
    offers = [Offers((0, 0), held=held, settled=False)] * 200
    (done, here), server = elect(0, offers, committed=0)
    assert (done, here, server.completed) == (False, [False, False], 0)
    assert 12.0 <= clock[0] - began < 12.2
    # Not once a worker has restored the server.
    began = clock[0]
    elect(0, [Offers((0, 9), held=9, settled=True)], committed=0)
    assert clock[0] == began


@pytest.mark.parametrize("worker", [0, 1])
def test_the_newest_restores_at_once_and_the_next_best_later(clock, worker):
    began = clock[0]
    offers = [Offers((9, 8), held=7, settled=False)] * 100
    (done, _), server = elect(worker, offers)
    assert done
    assert server.restored == 1
    seconds = (0.0, 3.0)[worker]
    assert seconds <= clock[0] - began < seconds + 0.2


@pytest.mark.parametrize("theirs", [0, 8])
def test_the_log_names_who_had_no_say(clock, caplog, theirs):
    offers = [Offers((9, theirs), held=0, settled=True)] * 100
    (done, here), _ = elect(0, offers)
    assert (done, here) == (True, [True, theirs > 0])
    named = "only /job:worker/task:1 had pulled" in caplog.text
    assert named == (not theirs)
