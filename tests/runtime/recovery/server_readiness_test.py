"""What a worker that joins is told of servers that were started again."""

import types

import pytest
import tensorflow as tf

from tests.runtime.replicas import one_run
from tfdist.cluster import fit_progress
from tfdist.cluster import member_table
from tfdist.cluster import snapshots
from tfdist.runtime.recovery import server_readiness
from tfdist.runtime.recovery.server_readiness import Holding


@pytest.fixture(scope="module")
def runtime():
    """Of a strategy whose server, this process, holds a model."""
    return one_run.trained()[0]


@pytest.fixture
def store(runtime, monkeypatch):
    """The `ParameterStore`."""
    monkeypatch.setattr(server_readiness, "_NOTICE_SECONDS", 0.0)
    with tf.device(runtime.store.devices[0]):
        # This process may have read a snapshot in another test.
        _forget_snapshots()
        yield runtime.store
        _forget_snapshots()


def _forget_snapshots():
    snapshots.build_is_from_snapshot(False)
    snapshots.build_is_unrestored(False)


def readiness(store):
    return server_readiness.ServerReadiness(store, ["/job:ps/task:0"])


def wait(store):
    return readiness(store).wait(is_chief=False, timeout=10.0)


@pytest.mark.nightly
def test_servers_that_never_died_lack_nothing(store):
    assert readiness(store).look() == ([Holding.SETTLED], [False])
    assert not wait(store)


def test_who_joins_is_told_of_a_snapshot_until_somebody_has_restored(
    store, caplog
):
    snapshots.build_is_from_snapshot(True)
    snapshots.build_found("kept/ps-0-of-1/3, 86400.0 s old")
    assert readiness(store).look() == ([Holding.SNAPSHOT], [False])
    assert wait(store)
    assert "a snapshot: kept/ps-0-of-1/3, 86400.0 s old. If" in caplog.text
    # The next one finds no snapshot any more, and the same server.
    assert readiness(store).look() == ([Holding.SETTLED], [True])
    assert wait(store)
    readiness(store).settle(0)
    assert readiness(store).look() == ([Holding.SETTLED], [False])
    assert not wait(store)


@pytest.mark.nightly
def test_empty_servers_lack_nothing_that_there_was():
    store = one_run.trained()[0].store
    one_run.lose_named(store, "version")
    assert readiness(store).look() == ([Holding.EMPTY], [False])
    assert not wait(store)


def test_a_chief_waits_while_a_worker_restores_one_server_after_the_other(
    store, monkeypatch
):
    """Each takes a part of the seconds after which nobody restores them."""
    looks, empty, settled = [], Holding.EMPTY, Holding.SETTLED

    def look():
        looks.append(1)
        restored = min(len(looks) - 1, 4)
        return [settled] * restored + [empty] * (4 - restored), [False] * 4

    clock = types.SimpleNamespace(monotonic=lambda: 0.75 * len(looks))
    monkeypatch.setattr(server_readiness, "time", clock)
    monkeypatch.setattr(server_readiness, "_NOTICE_SECONDS", 1.0)
    waits = server_readiness.ServerReadiness(store, list("abcd"))
    monkeypatch.setattr(waits, "look", look)
    assert not waits.wait(is_chief=True, timeout=10.0)
    assert len(looks) == 5


@pytest.mark.nightly
@pytest.mark.parametrize("have_trained", [False, True])
def test_a_chief_leaves_empty_servers_to_a_worker_that_has_trained(
    monkeypatch, have_trained
):
    """All servers and the chief were started again, and the worker was not."""
    monkeypatch.setattr(server_readiness, "_NOTICE_SECONDS", 60.0)
    store = one_run.trained()[0].store
    one_run.lose_named(store, "version")
    word, looks = fit_progress.Word(reached=int(have_trained)), []

    def others():
        looks.append(1)
        if len(looks) == 2:
            one_run.put_version(store, 7)
        state = member_table.MemberState.ALIVE
        return [member_table.Member("one", state, 0.5, 0, word=word)]

    assert not readiness(store).wait(True, 10.0, others)
    holding = Holding.SETTLED if have_trained else Holding.EMPTY
    assert readiness(store).look()[0] == [holding]
