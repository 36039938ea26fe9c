"""Messages that travel over slow links, and receivers that do not answer."""

import types

import numpy as np
import pytest
import tensorflow as tf

from tfdist.cluster import ClusterConfig
from tfdist.compression import Cast
from tfdist.compression import base
from tfdist.peers import backlog as backlog_lib
from tfdist.peers import messages
from tfdist.peers import sender as sender_lib
from tfdist.peers.roster import Roster

SIZE = 2048
TIMEOUT = 9.0


class Receiver:
    """Worker 1, which a slow link leads to; time passes by calls alone.

    Attributes:
        now: seconds.
        speed: of the link, bytes per second.
        is_there: whether it answers.
        full: calls for which its queue has no room yet.
        calls: bytes of each call, a list.
        firsts: number of the first update of each message that it has.
        taken: the same, of the last ones.
    """

    def __init__(self):
        self.now = 0.0
        self.speed = 1e12
        self.is_there = True
        self.full = 0
        self.calls = []
        self.firsts, self.taken = [], []

    def open_session(self, address, job, task, graph, deadline):
        """Opens a session in the place of that of `sessions`."""

        def make_callable(fetches, feeds=(), accept_options=False):
            def call(*packed, options=None):
                seconds = deadline.seconds
                if options is not None:
                    seconds = options.timeout_in_ms / 1000
                size = sum(array.nbytes for array in packed)
                self.calls.append(size)
                needed = size / self.speed if self.is_there else np.inf
                self.now += min(needed, seconds)
                if needed > seconds:
                    raise tf.errors.DeadlineExceededError(None, None, "slow")
                self.full = max(self.full - 1, 0)
                if not packed or self.full:
                    return not self.full, np.array([11, 0, 0])
                for header in packed[0]:
                    self.firsts.append(int(header[messages.FIRST]))
                    self.taken.append(int(header[messages.LAST]))
                return True, np.array([11, 0, 0])

            return call

        return types.SimpleNamespace(make_callable=make_callable)

    def sleep(self, seconds):
        """Passes time."""
        self.now += seconds


@pytest.fixture
def receiver(monkeypatch):
    made = Receiver()
    clock = types.SimpleNamespace(monotonic=lambda: made.now, sleep=made.sleep)
    monkeypatch.setattr(sender_lib, "time", clock)
    sessions = types.SimpleNamespace(
        Deadline=lambda seconds: types.SimpleNamespace(seconds=seconds),
        open_session=made.open_session,
        close=lambda session, address: None,
    )
    monkeypatch.setattr(sender_lib, "sessions", sessions)
    return made


def send(number, holds=False, stall=None):
    """Has a sender of worker 0 send dense updates, until it has nothing left.

    Args:
        number: of updates.
        holds: as of `Backlog`.
        stall: as of `PeerSender`.

    Returns:
        The `Roster`.
    """
    roster, made, updates = sender_of(number, holds, stall)
    made.put(updates)
    finish(roster, made)
    return roster


def sender_of(number, holds=False, stall=None):
    """Makes a `Roster`, its `PeerSender`, and a list of dense updates."""
    addresses = [f"localhost:{port}" for port in (1, 2)]
    roster = Roster(ClusterConfig({"worker": addresses}, "worker", 0), "test")
    roster.known[1] = 11
    updates = []
    for last in range(1, number + 1):
        header = [0, roster.incarnation, last, last, 0, 0, 0, base.DENSE, 0]
        header = np.array([*header, 0, 0], np.int64)
        vector = np.ones(SIZE, "float32")
        updates.append(
            messages.PeerUpdate(header, vector, np.zeros(0, "uint8"))
        )
    waiting = backlog_lib.Backlog(Cast("float32"), SIZE, tf.float32, holds)
    queue = messages.Queue("sender_test", tf.float32, 64)
    made = sender_lib.PeerSender(roster, 1, queue, waiting, TIMEOUT, stall)
    return roster, made, updates


def finish(roster, made):
    """Waits until a sender has nothing left, and ends it."""
    while not (made.is_idle or roster.lost):
        made.join(0.01)
    made.close()
    made.join(60.0)


def test_what_is_handed_over_late_is_not_sent_to_a_joiner_that_has_it(receiver):
    """The sum of its updates would have those, and count as new."""
    roster, made, updates = sender_of(4, holds=True)
    made.release(2)
    made.put(updates)
    finish(roster, made)
    assert (receiver.firsts, receiver.taken) == ([3], [4])
    assert made.delivered == 4


def test_a_message_for_which_a_link_needs_minutes_arrives(receiver):
    receiver.speed = SIZE * 4 / 200.0
    roster = send(1)
    assert receiver.taken == [1]
    assert not roster.lost


def test_on_a_slow_link_the_next_message_has_the_time_that_it_needs(receiver):
    """The first one has three attempts, of 3, 6 and 12 s."""
    receiver.speed = SIZE * 4 / 10.0
    send(5, holds=True)
    assert receiver.taken == [*range(1, 6)]
    assert len([size for size in receiver.calls if size]) == 3 + 4


def test_what_travels_together_is_no_longer_than_the_vector(receiver):
    send(8, holds=True)
    assert receiver.taken == [*range(1, 9)]
    assert max(receiver.calls) < SIZE * 4 * 2


def test_a_receiver_that_does_not_answer_is_given_up_in_time(receiver):
    receiver.is_there = False
    roster = send(1)
    assert roster.lost == [1]
    assert TIMEOUT < receiver.now < 2 * TIMEOUT


def test_a_receiver_that_answers_and_takes_nothing_is_given_up(receiver):
    receiver.speed = 1e-9
    roster = send(1, stall=60.0)
    assert roster.lost == [1]
    # The last attempt has as much time as those before, and one TIMEOUT / 3.
    assert 60.0 < receiver.now < 2 * 60.0 + TIMEOUT


def test_messages_are_sent_again_when_there_is_room_for_them(receiver):
    receiver.full = 20
    send(1)
    assert receiver.taken == [1]
    assert len(receiver.calls) == 21
    assert len([size for size in receiver.calls if size]) == 2


def test_a_full_receiver_that_answers_is_not_given_up_for_calls_that_fail(
    receiver,
):
    """Each of them is long ago when the next one fails."""
    receiver.full, calls = 10**6, 0
    passes = receiver.sleep

    def sleep(seconds):
        nonlocal calls
        calls += 1
        passes(seconds)
        receiver.is_there = calls % 1000 > 0
        if calls == 10_000:
            receiver.full = 0

    sender_lib.time.sleep = sleep
    assert not send(1).lost
    assert receiver.taken == [1]
