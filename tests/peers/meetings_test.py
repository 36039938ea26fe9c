"""Workers that meet, one of which dies; threads with servers of their own."""

import threading
import types

import numpy as np
import pytest
import tensorflow as tf

from tfdist.cluster import ClusterConfig
from tfdist.peers import board
from tfdist.peers import meetings
from tfdist.peers.roster import Roster

WORKERS = range(3)


class Killed(Exception):
    """Raised in a worker that is dead."""


class Servers:
    """What all workers have left, and who is dead.

    Attributes:
        dead: numbers of workers, a set.
        all_are_there: a barrier of all workers' threads.
        has_died: an event for the test.
        tolerance: of all workers, in the place of a `FaultTolerance`.
        before_read: called with the numbers of reader and owner and the name
            of the text, before it is read.
        after_read: the same, when it has been read.
        after_post: called with a worker's number and the text that it has left.
    """

    def __init__(self):
        self._texts = {}
        self._of = None
        self.dead = set()
        self.all_are_there = threading.Barrier(len(WORKERS))
        self.has_died = threading.Event()
        self.tolerance = types.SimpleNamespace(
            worker_timeout=0.2,
            start_timeout=20.0,
            stall_timeout=20.0,
            on_stall="fail",
        )
        self.before_read = self.after_read = lambda *read: None
        self.after_post = lambda *posted: None

    def meetings(self, worker):
        """Makes the `Meetings` of a worker."""
        addresses = [f"localhost:{port}" for port in (1, 2, 3)]
        config = ClusterConfig({"worker": addresses}, "worker", worker)
        engine = types.SimpleNamespace(
            note_known=lambda: None, came_from=lambda worker: 0
        )
        self._of = worker
        return meetings.Meetings(
            Roster(config, "test"),
            "test",
            worker,
            self.tolerance,
            lambda: engine,
        )

    def make_board(self, device):
        """Makes the `Board` of a worker, whose device is its number."""

        def post(name, text):
            if device in self.dead:
                raise Killed
            self._texts[device, name] = text
            self.after_post(device, text)

        return types.SimpleNamespace(post=post)

    def make_note(self, name, device):
        """Makes a `MembershipNote` that nobody reads."""
        return types.SimpleNamespace(post=lambda incarnation, lost: None)

    def make_reader(self, address, job, owner):
        """Makes the `BoardReader` of the worker that is being made."""
        me = self._of

        def read(name, seconds=None):
            if me in self.dead:
                raise Killed
            if owner in self.dead:
                raise tf.errors.UnavailableError(None, None, "dead")
            self.before_read(me, owner, name)
            text = self._texts.get((owner, name))
            self.after_read(me, owner, name)
            return text

        return types.SimpleNamespace(read=read)

    def run(self, program):
        """Runs a program of (worker, its `Meetings`) on each worker.

        Args:
            program: callable.

        Returns:
            What it returned, by worker; of a dead one nothing.
        """
        found = {}

        def run_one(worker, met):
            try:
                found[worker] = program(worker, met)
            except Killed:
                pass
            except Exception as error:  # As a result, for the assertion.
                found[worker] = error

        threads = [
            threading.Thread(
                target=run_one, args=(worker, self.meetings(worker))
            )
            for worker in WORKERS
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found


@pytest.fixture
def servers(monkeypatch):
    made = Servers()
    monkeypatch.setattr(board, "Board", made.make_board)
    monkeypatch.setattr(board, "MembershipNote", made.make_note)
    monkeypatch.setattr(board, "BoardReader", made.make_reader)
    monkeypatch.setattr(meetings, "_POLL_SECONDS", 0.001)
    return made


def words_of(worker):
    """Those that a worker brings."""
    return np.full(4, worker, np.int32)


@pytest.mark.parametrize(("reader", "expected"), [(None, 1), (1, 0), (2, 1)])
def test_the_values_of_a_leader_that_dies_are_everybody_s_or_nobody_s(
    servers, reader, expected
):
    """It dies before anybody has them, or when one has."""

    def before_read(me, owner, name):
        if owner == 0 and name.endswith("values") and me != reader:
            raise tf.errors.UnavailableError(None, None, "the other is first")

    def after_read(me, owner, name):
        if owner == 0 and name.endswith("values"):
            servers.dead.add(0)

    servers.before_read, servers.after_read = before_read, after_read

    def program(worker, met):
        met.gather([0], "they know each other")
        servers.all_are_there.wait(60.0)
        if worker == 0 and reader is None:
            servers.dead.add(0)
        taken = met.from_chief(words_of(worker))
        # Others may read what it has left.
        met.gather([0], "end")
        return taken.tolist()

    found = servers.run(program)
    assert found == dict.fromkeys((1, 2), words_of(expected).tolist())


def test_all_have_the_numbers_of_a_dead_worker_or_nobody(servers):
    """One reads them before it dies, and the other comes later."""

    def after_post(me, text):
        if me == 1 and '"arrives"' in text and "[7]" in text:
            servers.dead.add(0)
            servers.has_died.set()

    servers.after_post = after_post

    def program(worker, met):
        met.gather([0], "they know each other")
        servers.all_are_there.wait(60.0)
        if worker == 2:
            servers.has_died.wait(60.0)
        rows = met.gather([7 * (worker == 0)], "arrives")
        met.gather([0], "end")
        return rows.ravel().tolist()

    assert servers.run(program) == dict.fromkeys((1, 2), [7, 0, 0])


def test_its_own_pause_does_not_count_as_the_silence_of_others(
    servers, monkeypatch
):
    clock = [0.0]
    monkeypatch.setattr(
        meetings, "time", types.SimpleNamespace(monotonic=lambda: clock[0])
    )
    servers.tolerance.worker_timeout = 10.0
    met = servers.meetings(0)
    met._roster.known[1] = 11
    servers.dead.add(1)
    for passed in 0.0, 700.0, 1.0, 1.0:
        clock[0] += passed
        assert met._ask(1) is None
    assert not met._roster.lost
    for _ in range(10):
        clock[0] += 1.0
        met._ask(1)
    assert met._roster.lost == [1]


def test_a_job_that_was_suspended_as_a_whole_gives_up_nobody(
    servers, monkeypatch
):
    """Nobody gets on meanwhile."""
    clock, passed = [0.0], iter([0.1, 700.0, 0.1, 0.1])

    def sleep(seconds):
        clock[0] += next(passed)

    monkeypatch.setattr(
        meetings,
        "time",
        types.SimpleNamespace(monotonic=lambda: clock[0], sleep=sleep),
    )
    servers.tolerance.stall_timeout = 600.0
    met = servers.meetings(0)
    for worker in 1, 2:
        servers.meetings(worker)._post()
    seen = []

    def read(worker, status):
        seen.append(worker)
        return len(seen) > 6

    met._wait(read, None)
    assert not met._roster.lost


def test_messages_do_not_lengthen_a_wait_that_has_a_bound(servers, monkeypatch):
    """The others go on with steps of what they have trained before."""
    clock = [0.0]

    def sleep(seconds):
        clock[0] += 1.0

    monkeypatch.setattr(
        meetings,
        "time",
        types.SimpleNamespace(monotonic=lambda: clock[0], sleep=sleep),
    )
    met = servers.meetings(0)
    met._engine().came_from = lambda worker: clock[0]
    for worker in 1, 2:
        servers.meetings(worker)._post()
    with pytest.raises(tf.errors.DeadlineExceededError, match="within 20 s"):
        met.finish({}, lambda: None, lambda worker, sent: True, 20.0)
    assert clock[0] < 60.0


def test_a_worker_that_knows_of_the_death_first_waits_for_the_next_leader(
    servers,
):
    def program(worker, met):
        met.gather([0], "they know each other")
        servers.all_are_there.wait(60.0)
        servers.dead.add(0)
        if worker == 2:
            met._roster.give_up(0, "a test")
        taken = met.from_chief(words_of(worker))
        met.gather([0], "end")
        return taken.tolist()

    found = servers.run(program)
    assert found == dict.fromkeys((1, 2), words_of(1).tolist())


def test_who_was_interrupted_may_come_again(servers):
    """Ctrl-C ends a wait for workers that are late."""
    servers.tolerance.start_timeout = 60.0
    interrupts = iter([KeyboardInterrupt])

    def before_read(me, owner, name):
        if me == 0 and (interrupt := next(interrupts, None)):
            raise interrupt

    servers.before_read = before_read

    def program(worker, met):
        if worker == 0:
            with pytest.raises(KeyboardInterrupt):
                met.gather([7], "begins")
        servers.all_are_there.wait(60.0)
        first = met.gather([worker], "begins")
        return [*first.ravel(), *met.gather([2 * worker], "goes on").ravel()]

    assert servers.run(program) == dict.fromkeys(WORKERS, [0, 1, 2, 0, 2, 4])
