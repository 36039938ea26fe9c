"""What a joiner does where others are busy, silent, or started again."""

import contextlib
import io
import itertools
import types

import pytest
import tensorflow as tf

from tfdist import saved_state
from tfdist.cluster import ClusterConfig
from tfdist.cluster import member_table
from tfdist.peers import admission
from tfdist.peers import board
from tfdist.peers import joining
from tfdist.peers.roster import Roster
from tfdist.strategies.fault_tolerance import FaultTolerance

ME = 2
STATUS = {
    "done": 1,
    "joins": False,
    "closed": False,
    "fits": 1,
    "since": {},
    "served": {},
    "updates": 0,
    "known": {},
    "lost": [],
}


def snapshot(seen):
    """Bytes of one with so many updates of worker 1."""
    file = io.BytesIO()
    header = {"peers": {"seen": {"lane": [0, seen, 0]}}}
    saved_state.write(saved_state.SavedState(header, {}), file)
    return file.getvalue()


class Others:
    """Workers 0 and 1, as `Meetings` shows them; a test says what they do.

    Attributes:
        statuses: By number; a callable that returns one, or None for a worker
            that does not answer.
        requests: All that were made.
        snapshots: Of worker 0 and of worker 1, bytes; None: it is gone.
    """

    def __init__(self):
        self.statuses = {0: lambda: STATUS, 1: lambda: STATUS}
        self.requests = []
        self.snapshots = {}

    def status_of(self, worker):
        """Returns its status."""
        status = self.statuses[worker]
        if status is None:
            raise tf.errors.UnavailableError(None, None, "gone")
        return status()

    def request(self, worker, number):
        """Notes it."""
        self.requests.append((worker, number))
        return self.statuses[worker] is not None

    def read_snapshot(self, worker):
        """Returns it."""
        if self.snapshots[worker] is None:
            raise tf.errors.UnavailableError(None, None, "gone")
        return self.snapshots[worker]


@pytest.fixture
def others(monkeypatch):
    monkeypatch.setattr(joining, "_POLL_SECONDS", 0.001)
    monkeypatch.setattr(joining, "_ASK_SECONDS", 0.01)
    monkeypatch.setattr(member_table, "HEARTBEAT_SECONDS", 0.01)
    return Others()


def joiner_of(others, **tolerance):
    addresses = [f"localhost:{port}" for port in (1, 2, 3)]
    config = ClusterConfig({"worker": addresses}, "worker", ME)
    engine = types.SimpleNamespace(
        roster=Roster(config, "test"),
        collectives=others,
        requests=itertools.count(1),
        admission=types.SimpleNamespace(warmup_updates=100),
    )
    settings = {"worker_timeout": 0.1, "stall_timeout": 0.2, **tolerance}
    made = joining.Joiner(engine, FaultTolerance(**settings))
    return made, engine.roster.incarnation


def test_one_that_answers_and_never_lets_it_join_is_an_error(others):
    joiner, _ = joiner_of(others)
    with pytest.raises(
        tf.errors.DeadlineExceededError,
        match=r"task:0 answered, and did not .*stall_timeout",
    ):
        joiner._ask([0], {})


def test_one_that_gets_on_is_waited_for(others, monkeypatch, caplog):
    """For 40 times as long as one that does not."""
    monkeypatch.setattr(joining, "_POLL_SECONDS", 0.02)
    monkeypatch.setattr(joining, "_REPORT_SECONDS", 0.1)
    joiner, incarnation = joiner_of(others, stall_timeout=0.02)
    steps = iter(range(40))

    def status():
        updates = next(steps, None)
        if updates is None:
            return {**STATUS, "since": {str(ME): [incarnation, {"lane": 7}]}}
        return {**STATUS, "updates": updates}

    others.statuses[0] = status
    needs = {}
    joiner._ask([0], needs)
    assert needs == {"lane": {0: 7}}
    assert "Waiting until /job:worker/task:0" in caplog.text


def test_one_that_stands_still_is_an_error_though_another_gets_on(others):
    joiner, _ = joiner_of(others, stall_timeout=0.1)
    updates = iter(range(2000))
    others.statuses[1] = lambda: {**STATUS, "updates": next(updates, 2000)}
    with pytest.raises(tf.errors.DeadlineExceededError) as raised:
        joiner._ask([0, 1], {})
    assert raised.value.message.startswith("/job:worker/task:0 answered, and")


@pytest.mark.parametrize(
    ("updates", "said"),
    [
        (60, "task:0 has ended its training after 60 updates, .* after 100"),
        (100, "comes too late: /job:worker/task:0 is not in its first call"),
    ],
)
def test_the_error_names_a_warm_up_that_was_not_reached(others, updates, said):
    joiner, _ = joiner_of(others)
    others.statuses[0] = lambda: {**STATUS, "closed": True, "updates": updates}
    with pytest.raises(tf.errors.UnavailableError, match=said):
        joiner._ask([0], {})


# Of a test in which nobody is to be given up.
PATIENT = {"worker_timeout": 60.0, "stall_timeout": 60.0}


def hangs_at_first(reads, status):
    """A worker that does not answer before so many reads."""
    left = iter(range(reads))

    def answer():
        if next(left, None) is not None:
            raise tf.errors.DeadlineExceededError(None, None, "hangs")
        return status

    return answer


def test_one_that_hangs_while_another_lets_this_one_in_is_asked_too(others):
    joiner, incarnation = joiner_of(others, **PATIENT)
    admits = {**STATUS, "since": {str(ME): [incarnation, {"lane": 5}]}}
    first = {**admits, "known": {"0": 10, "1": 11, "2": incarnation}}
    others.statuses = {0: lambda: first, 1: hangs_at_first(5, admits)}
    assert joiner._ask_all() == {"lane": {0: 5, 1: 5}}
    assert joiner._heard == {0, 1}


def test_one_that_does_not_answer_once_after_a_long_time_stays(
    others, monkeypatch
):
    """While another one took minutes to let this worker in, nobody asked it."""
    now = [0.0]

    def sleep(seconds):
        now[0] += 1.0

    monkeypatch.setattr(
        joining,
        "time",
        types.SimpleNamespace(monotonic=lambda: now[0], sleep=sleep),
    )
    joiner, incarnation = joiner_of(others, worker_timeout=10.0)
    admits = {**STATUS, "since": {str(ME): [incarnation, {"lane": 5}]}}
    others.statuses[0] = lambda: admits
    joiner._ask([0], {})
    now[0] += 200.0
    others.statuses[0] = hangs_at_first(1, admits)
    joiner._wait([0], 1, lambda worker, status: True)
    assert joiner._heard == {0}


@pytest.mark.parametrize("listens", [True, False])
def test_one_that_takes_connections_and_hangs_may_train(
    others, monkeypatch, listens
):
    joiner, _ = joiner_of(others, **PATIENT)
    monkeypatch.setattr(
        joining.sessions, "listens", lambda address, seconds: listens
    )
    others.statuses = {
        0: hangs_at_first(5, STATUS),
        1: lambda: {**STATUS, "done": 0},
    }
    assert joiner.is_needed() is listens


def test_a_request_that_was_lost_is_made_again(others):
    joiner, incarnation = joiner_of(others, stall_timeout=60.0)

    def status():
        if others.requests.count((0, 0)) < 3:
            return STATUS
        return {**STATUS, "since": {str(ME): [incarnation, {}]}}

    others.statuses[0] = status
    joiner._ask([0], {})


@pytest.mark.parametrize("other", [None, lambda: {**STATUS, "done": 0}])
def test_one_that_has_died_is_left_out(others, other, caplog):
    """Whether it is silent, or started again."""
    joiner, incarnation = joiner_of(others, stall_timeout=60.0)
    admitted = {**STATUS, "since": {str(ME): [incarnation, {}]}}
    others.statuses = {0: other, 1: lambda: admitted}
    joiner._ask([0, 1], {})
    assert joiner._heard == {1}
    assert "task:0 does not answer for 0.1 s: this worker joins" in caplog.text


def test_another_lets_it_in_where_the_first_has_died(others):
    joiner, incarnation = joiner_of(others, stall_timeout=60.0)
    admits = {**STATUS, "since": {str(ME): [incarnation, {"lane": 5}]}}

    def dies():
        if others.requests:
            raise tf.errors.UnavailableError(None, None, "gone")
        return STATUS

    others.statuses = {0: dies, 1: lambda: admits}
    assert joiner._ask_all() == {"lane": {1: 5}}
    assert joiner._heard == {1}


def test_all_joiners_ask_the_same_one_first_though_it_hangs(
    others, monkeypatch
):
    """Two that ask different ones would wait for each other."""
    joiner, incarnation = joiner_of(others, **PATIENT)
    monkeypatch.setattr(
        joining.sessions, "listens", lambda address, seconds: True
    )
    admits = {**STATUS, "since": {str(ME): [incarnation, {"lane": 5}]}}
    others.statuses = {0: hangs_at_first(5, admits), 1: lambda: admits}
    joiner._ask_all()
    asked = dict.fromkeys(worker for worker, _ in others.requests)
    assert [*asked] == [0, 1]


def test_one_that_hangs_for_long_is_not_asked_first_again(others, monkeypatch):
    joiner, incarnation = joiner_of(others, stall_timeout=60.0)
    monkeypatch.setattr(
        joining.sessions, "listens", lambda address, seconds: True
    )
    admits = {**STATUS, "since": {str(ME): [incarnation, {"lane": 5}]}}
    others.statuses = {0: None, 1: lambda: admits}
    assert joiner._ask_all() == {"lane": {1: 5}}
    assert joiner._heard == {1}


@pytest.mark.parametrize("left", [0, 1])
def test_it_comes_too_late_where_all_have_died(others, left):
    """Before they let it in, and after that."""
    joiner, incarnation = joiner_of(others, stall_timeout=60.0)
    admits = {**STATUS, "since": {str(ME): [incarnation, {"lane": 5}]}}
    statuses = iter([admits] * left * 5)

    def dies():
        if status := next(statuses, None):
            return status
        raise tf.errors.UnavailableError(None, None, "gone")

    others.statuses = {0: dies, 1: None}
    with pytest.raises(tf.errors.UnavailableError, match="comes too late"):
        joiner._fetch(joiner._ask_all())


def test_who_has_joined_before_is_there_from_the_request_on(others):
    """A worker that this one says to have given up would end."""
    joiner, _ = joiner_of(others)
    engine, roster, lost = joiner._engine, joiner._roster, []
    roster.await_later([0, 1])
    others.post = lambda **said: lost.append(roster.lost)
    others.take_position = engine.note_known = lambda *position: None
    engine.first_steps = types.SimpleNamespace(
        take_position=lambda told: None, is_as_at_join=lambda *_: True
    )
    engine.applying, engine.restore_state = contextlib.nullcontext, str
    told = {"known": {"0": 10, "1": 11}, "seen": {}, "fit": 1}

    def ask_all():
        joiner._heard = {0}

    joiner._ask_all = ask_all
    joiner._fetch = lambda needs: saved_state.SavedState({"peers": told}, {})
    joiner.join(types.SimpleNamespace(weights=[], optimizer=None))
    assert lost == [[], [1]]


def test_the_snapshot_of_another_is_taken_where_the_first_has_died(others):
    joiner, _ = joiner_of(others, stall_timeout=60.0)
    joiner._heard = {0, 1}
    others.snapshots = {0: None, 1: snapshot(9)}

    def served(worker):
        asked = [n for who, n in others.requests if who == worker]
        if worker == 0 and asked:
            others.statuses[0] = None  # After this answer.
        return {**STATUS, "served": {str(ME): max(asked, default=0)}}

    others.statuses = {k: lambda k=k: served(k) for k in (0, 1)}
    saved = joiner._fetch({"lane": {1: 9}})
    assert saved.header["peers"]["seen"] == {"lane": [0, 9, 0]}


def test_a_snapshot_that_lacks_updates_is_not_taken_for_ever(others):
    joiner, _ = joiner_of(others)
    joiner._heard = {0, 1}
    others.snapshots = {0: snapshot(8)}

    def served():
        asked = [number for _, number in others.requests]
        return {**STATUS, "served": {str(ME): max(asked, default=0)}}

    others.statuses[0] = served
    with pytest.raises(tf.errors.DeadlineExceededError, match="get all"):
        joiner._fetch({"lane": {1: 9}})


def test_a_snapshot_is_taken_without_last_updates_of_a_worker_that_died(
    others, caplog
):
    """It has let this one in, and the host will never get them."""
    joiner, _ = joiner_of(others, stall_timeout=60.0)
    joiner._heard = {0, 1}
    others.snapshots = {0: snapshot(8)}

    def served():
        asked = [number for _, number in others.requests]
        return {**STATUS, "served": {str(ME): max(asked, default=0)}}

    others.statuses = {0: served, 1: None}
    assert joiner._fetch({"lane": {1: 9}}) is not None
    assert joiner._heard == {0}
    assert "task:1 does not answer for 0.1 s: this worker joins" in caplog.text


def test_a_worker_that_does_not_let_anybody_in_yet_says_that_it_gets_on():
    posted = {}
    engine = types.SimpleNamespace(
        name="joiner_test",
        device="/CPU:0",
        num_workers=3,
        journal=types.SimpleNamespace(updates=4),
        collectives=types.SimpleNamespace(post=posted.update),
    )
    made = admission.Admission(engine, warmup_updates=100)
    made.is_open = True
    made.look()
    assert not posted
    made._next_look = 0.0
    tf.raw_ops.ResourceScatterUpdate(
        resource=board._requests(engine.name),
        indices=[ME],
        updates=tf.constant([[7, 0]], tf.int64),
    )
    made.look()
    assert posted == {"updates": 4}
