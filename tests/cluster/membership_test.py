"""A worker's rows in the tables of servers that move."""

import functools
import threading
import types

import numpy as np
import pytest
import tensorflow as tf

from tfdist.cluster import config as cluster_config
from tfdist.cluster import fit_progress
from tfdist.cluster import former_processes
from tfdist.cluster import member_table
from tfdist.cluster import membership as membership_lib
from tfdist.cluster import server_client
from tfdist.cluster import sessions
from tfdist.cluster import versions
from tfdist.cluster import waiting

OLD, NEW = "localhost:1", "localhost:2"


def cluster(*addresses):
    return cluster_config.ClusterConfig(
        {"ps": addresses, "worker": ("localhost:3",)}, "worker", 0
    )


def no_rows():
    """What a table has of one worker that was never there, and the time."""
    return np.zeros([1, member_table._COLUMNS]), 0.0


no_rows.life = 1


def test_nobody_waits_for_a_heartbeat_to_where_a_server_was(monkeypatch):
    is_there, goes_on = threading.Event(), threading.Event()
    waited, written = [], []

    def function(client, build, signature, any_life=False):
        del build, any_life
        if not signature:
            return no_rows

        def write(values, *rest):
            if rest:
                return  # Rows that are put back.
            if client.address == NEW:
                written.append(values)
            elif not is_there.is_set():
                is_there.set()
                waited.append(goes_on.wait(120.0))

        write.close = lambda: None
        return write

    monkeypatch.setattr(server_client.ServerClient, "function", function)
    device = "/job:ps/replica:0/task:0/device:CPU:0"
    membership = membership_lib.Membership(cluster(OLD), [device])
    assert is_there.wait(60.0)
    membership.reconnected(cluster(NEW))
    membership.enter_again()
    monkeypatch.setattr(sessions, "listens", lambda *_: True)
    membership.leave(member_table.MemberState.LEFT)
    # Of the heartbeat nothing has come yet.
    states = [int(values[0]) for values in written]
    alive, left = member_table.MemberState.ALIVE, member_table.MemberState.LEFT
    assert (states, waited) == ([alive, left], [])
    goes_on.set()
    membership._threads[0].join(60.0)
    # What comes after the last word is not said.
    assert (len(written), waited) == (2, [True])


def test_the_table_of_another_cluster_is_left_alone(monkeypatch):
    written = []

    def function(client, build, signature, any_life=False):
        del client, build, any_life
        if signature:
            return written.append
        return lambda: (np.zeros([2, member_table._COLUMNS]), 0.0)

    monkeypatch.setattr(server_client.ServerClient, "function", function)
    device = "/job:ps/replica:0/task:0/device:CPU:0"
    membership = membership_lib.Membership(cluster(OLD), [device])
    membership.wait_until_entered(60.0, mend=lambda: None)
    assert membership.is_foreign
    membership.leave(member_table.MemberState.FAILED)
    assert not written


@pytest.mark.parametrize("listens", [False, True])
def test_the_end_of_a_worker_does_not_wait_for_a_server_that_is_gone(
    monkeypatch, listens
):
    """Its heartbeat hangs; the server that answers is told nevertheless.

    One that listens is waited for, and no longer than it may.
    """
    goes_on = threading.Event()
    beats, told = threading.Event(), []

    def function(client, build, signature, any_life=False):
        del build, any_life
        if not signature:
            return no_rows

        def write(values):
            if client.address == OLD:
                beats.set()
                goes_on.wait(120.0)
            else:
                told.append(int(values[0]))

        return write

    monkeypatch.setattr(server_client.ServerClient, "function", function)
    devices = [f"/job:ps/replica:0/task:{k}/device:CPU:0" for k in range(2)]
    membership = membership_lib.Membership(cluster(OLD, NEW), devices)
    assert beats.wait(60.0)
    monkeypatch.setattr(
        sessions, "listens", lambda address, _: listens or address == NEW
    )
    # Longer than a test may take.
    monkeypatch.setattr(membership_lib, "_ANSWER_SECONDS", 600.0)
    if listens:
        # For an hour nothing was heard of it, whose beat is under way.
        membership._answered[0] -= 3600.0
        monkeypatch.setattr(membership_lib, "_LAST_WAIT_SECONDS", 0.1)
    membership.leave(member_table.MemberState.FINISHED)
    assert told[-1] == member_table.MemberState.FINISHED
    goes_on.set()


class Server:
    """Stands for sessions with a server that may be started again.

    Attributes:
      life: The one that it is in.
      has_table: Whether it is ready for members.
      told: What it tells of its cluster.
      heard: Lives in which it has heard of the member.
    """

    def __init__(self, monkeypatch):
        self.life, self.has_table, self.heard = 1, True, []
        self.told = {"workers": versions.checksum(cluster(OLD))}
        monkeypatch.setattr(versions, "told_by", lambda *_: self.told)
        monkeypatch.setattr(sessions, "open_session", self._open)
        monkeypatch.setattr(sessions, "run", self._run)
        monkeypatch.setattr(sessions, "listens", lambda *_: True)
        monkeypatch.setattr(member_table, "HEARTBEAT_SECONDS", 0.01)

    def _open(self, *arguments):
        del arguments
        device = types.SimpleNamespace(
            name="/job:ps/replica:0/task:0/device:CPU:0", incarnation=self.life
        )
        return types.SimpleNamespace(
            life=self.life, list_devices=lambda: [device], close=lambda: None
        )

    def _run(self, session, fetches, deadline, feeds):
        del fetches, deadline
        if session.life != self.life:
            raise tf.errors.AbortedError(None, None, "an unknown session")
        if not feeds:
            return no_rows()
        if not self.has_table:
            raise tf.errors.FailedPreconditionError(None, None, "no table")
        self.heard.append(session.life)
        return []

    def wait_until_heard(self, life):
        waiting.wait_until(
            lambda: life in self.heard, what="a heartbeat", timeout=60.0
        )


def test_a_server_that_was_started_again_hears_of_who_is_busy(monkeypatch):
    """But of a heartbeat nothing else, before the main thread connects."""
    server = Server(monkeypatch)
    device = "/job:ps/replica:0/task:0/device:CPU:0"
    membership = membership_lib.Membership(cluster(OLD), [device])
    membership.wait_until_entered(60.0, mend=lambda: None)
    server.life = 2
    server.wait_until_heard(2)
    for call in (membership.tell, membership.enter_again, membership.look):
        with pytest.raises(tf.errors.AbortedError, match="was started again"):
            call()
    membership.reconnected(cluster(OLD), [2])
    membership.enter_again()
    server.life = 3
    heard = len(server.heard)
    membership.leave(member_table.MemberState.FINISHED)
    assert 3 in server.heard[heard:]


@pytest.mark.parametrize("other", [None, {"workers": 1}])
def test_the_server_of_another_cluster_hears_nothing(monkeypatch, other):
    """It has got the address of a server that has died."""
    server = Server(monkeypatch)
    device = "/job:ps/replica:0/task:0/device:CPU:0"
    membership = membership_lib.Membership(cluster(OLD), [device])
    membership.wait_until_entered(60.0, mend=lambda: None)
    own, asked = server.told, []

    def told_by(*_):
        asked.append(1)
        return server.told

    monkeypatch.setattr(versions, "told_by", told_by)
    server.told, server.life = other, 2
    waiting.wait_until(
        lambda: len(asked) > 5, what="further heartbeats", timeout=60.0
    )
    assert 2 not in server.heard
    server.told, server.life = own, 3
    server.wait_until_heard(3)
    membership.leave(member_table.MemberState.FINISHED)


def test_who_is_in_no_table_yet_enters_where_its_main_thread_is(monkeypatch):
    server = Server(monkeypatch)
    server.has_table = False
    device = "/job:ps/replica:0/task:0/device:CPU:0"
    membership = membership_lib.Membership(cluster(OLD), [device])
    waiting.wait_until(
        lambda: membership.former is not None, what="a look", timeout=60.0
    )
    with pytest.raises(tf.errors.FailedPreconditionError):
        membership.tell()
    server.life, server.has_table = 2, True
    with pytest.raises(TimeoutError, match="to be ready. Does it run"):
        membership.wait_until_entered(0.1, mend=lambda: None)
    membership.reconnected(cluster(OLD))
    membership.wait_until_entered(60.0, mend=lambda: None)
    assert set(server.heard) == {2}
    membership.leave(member_table.MemberState.FINISHED)


def test_whom_a_server_does_not_know_yet_is_as_known_before(monkeypatch):
    Server(monkeypatch)
    device = "/job:ps/replica:0/task:0/device:CPU:0"
    membership = membership_lib.Membership(cluster(OLD), [device])
    alive, unknown, done = (
        member_table.MemberState.ALIVE,
        member_table.MemberState.UNKNOWN,
        member_table.MemberState.FINISHED,
    )
    now = 0.0
    monkeypatch.setattr(membership_lib.time, "monotonic", lambda: now)

    def read(*rows):
        made = [member_table.Member("one", *row) for row in rows]
        monkeypatch.setattr(membership.tables[0], "read", lambda: made)
        return [(m.state, m.silent_for, m.arrivals) for m in membership.read()]

    nobody = (unknown, float("inf"), 0)
    assert read((alive, 0.5, 3), (done, 9.0, 2), nobody) == [
        (alive, 0.5, 3),
        (done, 9.0, 2),
        nobody,
    ]
    now = 100.0
    assert read(nobody, nobody, nobody) == [
        (alive, 0.0, 3),
        (done, 0.0, 2),
        nobody,
    ]
    now = 130.0
    assert read(nobody, nobody, nobody)[0] == (alive, 30.0, 3)
    # It is heard of, and the server is started once more.
    assert read((alive, 1.0, 4), nobody, nobody)[0] == (alive, 1.0, 4)
    now = 200.0
    assert read(nobody, nobody, nobody)[:2] == [
        (alive, 0.0, 4),
        (done, 100.0, 2),
    ]
    membership.leave(done)


LOCAL = "/job:localhost/replica:0/task:0/device:CPU:0"


@pytest.fixture
def functions(monkeypatch):
    """Stands for functions on a server, which is this process; their class."""

    class Function:
        life = 1

        def __init__(self, client, build, signature, any_life=False):
            del client, any_life

            @functools.partial(
                tf.function, input_signature=signature, autograph=False
            )
            def built(*arguments):
                with tf.device(LOCAL):
                    return build(*arguments) or []

            self._built = built

        def __call__(self, *arguments):
            return [tensor.numpy() for tensor in self._built(*arguments)]

        def close(self):
            pass

    def function(*arguments):
        return Function(*arguments)

    monkeypatch.setattr(server_client.ServerClient, "function", function)
    monkeypatch.setattr(sessions, "listens", lambda *_: True)
    monkeypatch.setattr(member_table, "HEARTBEAT_SECONDS", 0.01)
    return Function


@pytest.mark.nightly
def test_a_process_that_comes_to_nothing_is_not_what_its_next_one_follows(
    functions,
):
    config = cluster(OLD)
    names = member_table.names_of(config)
    member_table.MemberTable(LOCAL, names).create()
    # How far each process comes, and where the next one is to go on.
    processes = {
        "trains": ((1, 3), (1, 3)),
        "fails": (None, (1, 3)),
        "fails, too": (None, (1, 3)),
        "goes on": ((1, 5), (1, 5)),
        "has another call": ((2, 4), (2, 4)),
        "fails in the call before": ((1, 0), (2, 4)),
    }
    followed = []
    for come_to, _ in processes.values():
        member = membership_lib.Membership(config, [LOCAL])
        member.wait_until_entered(60.0, mend=lambda: None)
        followed.append((member.former.word.number, member.former.word.epoch))
        if come_to is not None:
            number, epoch = come_to
            member.fits.tell(reached=fit_progress.begun(number), epoch=epoch)
        # Others see no more than what it has come to itself.
        member.leave(member_table.MemberState.FAILED)
        assert member.read()[0].word == member.told()
    last = membership_lib.Membership(config, [LOCAL])
    last.wait_until_entered(60.0, mend=lambda: None)
    followed.append((last.former.word.number, last.former.word.epoch))
    last.leave(member_table.MemberState.FINISHED)
    assert followed == [(0, 0), *(place for _, place in processes.values())]


@pytest.mark.nightly
@pytest.mark.parametrize("busy", [True, False])
def test_a_process_that_was_lost_with_the_first_server_is_told_of(
    monkeypatch, functions, busy
):
    """Its worker's next one is there before another member can tell.

    Which does so with a heartbeat while its main thread is busy.
    """
    spec = {"ps": (OLD,), "worker": ("localhost:3", "localhost:4")}
    chief, other = (
        cluster_config.ClusterConfig(spec, "worker", k) for k in range(2)
    )
    table = member_table.MemberTable(LOCAL, member_table.names_of(chief))
    table.create()
    going, lost = (
        membership_lib.Membership(config, [LOCAL]) for config in (chief, other)
    )
    for member in (going, lost):
        member.wait_until_entered(60.0, mend=lambda: None)
    lost.fits.tell(reached=fit_progress.begun(1), epoch=50, batch=3)
    waiting.wait_until(
        lambda: (
            going._kept is not None
            and going.tables[0].members(*going._kept[1:])[1].word.epoch == 50
        ),
        what="the others to know of it",
        timeout=60.0,
    )
    lost._stop.set()
    lost._threads[0].join(60.0)
    # It looks at no table that is half made.
    paused = threading.Event()
    going._keep = paused.set
    assert paused.wait(60.0)
    functions.life = 2
    table.create()
    back = membership_lib.Membership(other, [LOCAL])
    back.wait_until_entered(60.0, mend=lambda: None)
    monkeypatch.setattr(former_processes, "_TOLD_SECONDS", 0.0)
    back.find_former()
    assert back.former.state == member_table.MemberState.UNKNOWN
    if busy:
        del going._keep
    else:
        going.reconnected(chief, [2])
        going.enter_again()
    monkeypatch.setattr(former_processes, "_TOLD_SECONDS", 60.0)
    back.find_former()
    assert (back.former.word.epoch, back.former.word.batch) == (50, 3)
    assert back.former.life == lost._life
    # Who was there all the time is not its own successor.
    going.find_former()
    assert going.former.state == member_table.MemberState.UNKNOWN
    for member in (going, back):
        member.leave(member_table.MemberState.FINISHED)
