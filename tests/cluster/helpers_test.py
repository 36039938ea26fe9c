"""A helper that is gone ends its worker, within a bound, and is named."""

import dataclasses
import itertools
import types

import pytest

from tfdist.cluster import ClusterConfig
from tfdist.cluster import helper_server
from tfdist.cluster import helpers
from tfdist.cluster import member_reader
from tfdist.cluster import member_table
from tfdist.cluster import waiting

SPEC = {"worker": ["a:1", "b:1"], "ps": ["c:1"], "helper": ["d:1", "e:1"]}
WORKER = ClusterConfig(spec=SPEC, task_type="worker", task_index=1)
HELPER = ClusterConfig(spec=SPEC, task_type="helper", task_index=1)


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self):
        self.now = 100.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    for module in (helpers, helper_server, waiting):
        monkeypatch.setattr(module, "time", made)
    return made


@pytest.fixture
def answer(monkeypatch):
    """Sets the incarnations that are read, and who listens."""

    def set_answers(*lives, listens=True):
        answers = itertools.chain(lives, itertools.repeat(lives[-1]))
        asked = []

        def read(address, task, timeout, job):
            asked.append((address, task, job))
            assert timeout <= 3.0
            return next(answers)

        monkeypatch.setattr(helpers.incarnation, "read", read)
        monkeypatch.setattr(helpers.sessions, "listens", lambda *_: listens)
        return asked

    monkeypatch.setattr(helpers, "_lives", {})
    return set_answers


def test_a_worker_asks_its_own_helper_and_no_other(answer, clock):
    asked = answer(7)
    helpers.wait(WORKER, 5.0)
    helpers.check(WORKER)
    assert set(asked) == {("e:1", 1, "helper")}
    assert helpers.addresses(WORKER) == {"/job:helper/task:1": "e:1"}


def test_a_helper_that_never_comes_is_named(answer, clock):
    answer(None)
    with pytest.raises(
        TimeoutError, match="5 s waiting for helper /job:helper/task:1 at e:1"
    ):
        helpers.wait(WORKER, 5.0)
    assert clock.now >= 105.0


@pytest.mark.parametrize(
    ("life", "listens", "what", "seconds"),
    [
        (None, False, "is gone", 0.0),
        # It hangs, or the network does.
        (None, True, "is gone", 10.0),
        (8, True, "was started again", 0.0),
    ],
)
def test_a_lost_helper_ends_the_worker(
    answer, clock, life, listens, what, seconds
):
    answer(7)
    helpers.wait(WORKER, 5.0)
    answer(life, listens=listens)
    with pytest.raises(
        helpers.HelperLostError,
        match=f"Helper /job:helper/task:1 at e:1 {what}, .*worker/task:1 ends",
    ):
        helpers.check(WORKER)
    assert seconds <= clock.now - 100.0 <= seconds + 1.0


def test_a_helper_that_answers_late_is_not_lost(answer, clock):
    answer(7)
    helpers.wait(WORKER, 5.0)
    answer(None, None, 7)
    helpers.check(WORKER)


def member(name, state, silent_for=0.0):
    return member_table.Member(name, state, silent_for, 0)


@pytest.fixture
def serve(monkeypatch, clock):
    """Runs a helper that reads the given tables, one after the other."""

    def run(*tables, sigterm_after=None, look_up=None):
        tables = itertools.chain(tables, itertools.repeat(tables[-1]))
        reads, asked = itertools.count(), []
        received = []

        def read(address, timeout, checksum):
            assert timeout == 2.0
            asked.append(address)
            received.append(next(reads) == sigterm_after)
            table = next(tables)
            if isinstance(table, Exception):
                raise table
            return table

        monkeypatch.setattr(helper_server.member_reader, "read", read)
        monkeypatch.setattr(
            helper_server,
            "preemption",
            types.SimpleNamespace(
                install=lambda exits: None, received=lambda: any(received)
            ),
        )
        monkeypatch.setattr(helper_server.bare_server, "start", lambda _: None)
        monkeypatch.setenv("TF_GRPC_DEFAULT_OPTIONS", "")
        status = helper_server.serve(HELPER, 60.0, look_up)
        assert set(asked) - {"c:1"} == (set() if look_up is None else {"d:2"})
        return status

    return run


ALIVE, FINISHED = (
    member_table.MemberState.ALIVE,
    member_table.MemberState.FINISHED,
)
OTHER, OWN = "/job:worker/task:0", "/job:worker/task:1"


def test_a_helper_finds_the_first_server_where_it_is_now(serve):
    both_train = [member(OTHER, ALIVE), member(OWN, ALIVE)]
    own_done = [member(OTHER, ALIVE), member(OWN, FINISHED)]
    gone = member_reader.ReadError("nobody listens there")
    moved = dataclasses.replace(HELPER, spec={**SPEC, "ps": ["d:2"]})
    assert serve(both_train, gone, own_done, look_up=lambda: moved) == 0


def test_a_helper_ends_when_its_worker_has_finished(serve, clock):
    silent = member_reader.ReadError("it has no workers yet")
    both_train = [member(OTHER, ALIVE), member(OWN, ALIVE)]
    other_done = [member(OTHER, FINISHED), member(OWN, ALIVE)]
    own_done = [member(OTHER, ALIVE), member(OWN, FINISHED)]
    assert serve(silent, both_train, other_done, own_done) == 0
    # Four looks, and the worker's farewell.
    assert clock.now == 100.0 + 4 * 0.25 + 2.0


def test_a_helper_ends_when_training_is_over_without_its_worker(serve):
    gone = [member(OTHER, FINISHED), member(OWN, ALIVE, silent_for=61.0)]
    late = [member(OTHER, FINISHED), member(OWN, ALIVE, silent_for=59.0)]
    assert serve(*[late] * 300, gone) == 0


def test_a_helper_under_a_launcher_ends_when_that_says_so(
    serve, monkeypatch, tmp_path
):
    """A worker that seems to have finished may be started again."""
    end = tmp_path / "end"
    monkeypatch.setenv("TFDIST_END_FILE", str(end))
    own_done = [member(OTHER, ALIVE), member(OWN, FINISHED)]
    assert serve(own_done, sigterm_after=100) == 143
    end.touch()
    # Servers may have gone before it.
    assert serve(member_reader.ReadError("nobody listens there")) == 0


def test_sigterm_ends_a_helper_after_the_last_step(serve, clock):
    trains = [member(OTHER, ALIVE), member(OWN, ALIVE)]
    assert serve(trains, sigterm_after=1) == 143
    assert clock.now == 100.0 + 2 * 0.25 + 2.0


@pytest.mark.parametrize(
    "table",
    [
        member_reader.ReadError("nobody listens there"),
        [member(OTHER, ALIVE, 61.0), member(OWN, ALIVE, 61.0)],
    ],
)
def test_a_helper_that_nobody_needs_gives_up(serve, clock, table):
    assert serve(table) == 1
    assert 60.0 < clock.now - 100.0 < 61.0
