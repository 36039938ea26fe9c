"""When a parameter server ends, by a clock of its own and stand-ins."""

import types

import pytest

from tfdist.cluster import ClusterConfig
from tfdist.cluster import member_table
from tfdist.cluster import server

CONFIG = ClusterConfig(
    spec={"worker": ["a:1", "b:1"], "ps": ["c:1"]},
    task_type="ps",
    task_index=0,
)
ALIVE, FINISHED, FAILED = (
    member_table.MemberState.ALIVE,
    member_table.MemberState.FINISHED,
    member_table.MemberState.FAILED,
)


@pytest.fixture
def life(monkeypatch):
    """A server's clock, its workers, and what happens at which moment."""
    made = types.SimpleNamespace(now=0.0, asleep=0.0, received=False, events={})

    def sleep(seconds):
        made.now += seconds
        assert made.now < 1000.0, "it does not end"
        for moment in [one for one in made.events if one <= made.now]:
            made.events.pop(moment)()

    def read():
        return [
            member_table.Member(name, state, made.now - since, 0)
            for name, (state, since) in made.rows.items()
        ]

    def put(worker, state):
        made.rows[f"/job:worker/task:{worker}"] = state, made.now

    def excuse(seconds):
        for name, (state, since) in made.rows.items():
            made.rows[name] = state, min(since + seconds, made.now)

    def pause(seconds, of_machine):
        """As `SIGSTOP`, or as one sleeps with all clocks but one."""
        made.now += seconds
        made.asleep += seconds if of_machine else 0.0

    def sigterm():
        made.received = True

    made.rows = {}
    made.put, made.sigterm, made.pause = put, sigterm, pause
    made.table = types.SimpleNamespace(read=read, excuse=excuse)
    monkeypatch.setattr(
        server,
        "time",
        types.SimpleNamespace(
            monotonic=lambda: made.now - made.asleep,
            time=lambda: made.now,
            sleep=sleep,
        ),
    )
    monkeypatch.setattr(
        server,
        "preemption",
        types.SimpleNamespace(received=lambda: made.received),
    )
    return made


def end_of(life):
    """Status with which the server ends."""
    return server._wait_for_end(CONFIG, life.table, 300.0)


def test_a_server_ends_when_all_have_finished(life):
    life.put(0, FINISHED)
    life.put(1, ALIVE)
    life.events[2.0] = lambda: life.put(1, FINISHED)
    assert end_of(life) == 0
    assert 2.0 <= life.now < 4.0


def test_under_a_launcher_a_server_waits_for_its_word(
    life, monkeypatch, tmp_path
):
    """A worker that has ended with `sys.exit(1)` is started again."""
    monkeypatch.setenv("TFDIST_END_FILE", str(tmp_path / "end"))
    for worker in range(2):
        life.put(worker, FINISHED)
    life.events[30.0] = lambda: life.put(1, ALIVE)
    # However that has ended `fit`: its process has ended with status 0.
    life.events[40.0] = lambda: life.put(1, FAILED)
    life.events[41.0] = (tmp_path / "end").touch
    assert end_of(life) == 0
    # Nobody is left who would miss it a little longer.
    assert 41.0 <= life.now <= 41.25


@pytest.mark.parametrize("state, status", [(FINISHED, 0), (FAILED, 143)])
def test_a_server_that_gets_sigterm_knows_whether_training_is_over(
    life, monkeypatch, tmp_path, state, status
):
    monkeypatch.setenv("TFDIST_END_FILE", str(tmp_path / "end"))
    life.put(0, FINISHED)
    life.put(1, state)
    life.events[5.0] = life.sigterm
    assert end_of(life) == status
    assert 5.0 <= life.now < 8.0


@pytest.mark.parametrize("of_machine", [False, True])
def test_a_server_that_was_suspended_waits_for_who_could_not_reach_it(
    life, of_machine
):
    """Nobody is lost after it, and all that were lost before still are."""
    for worker in range(2):
        life.put(worker, ALIVE)
    for second in range(1, 320):
        life.events[float(second)] = lambda: life.put(1, ALIVE)
    # None has finished, for longer than the server waits for the first sign.
    life.events[320.0] = lambda: life.pause(310.0, of_machine)
    life.events[633.0] = lambda: life.put(1, ALIVE)
    life.events[634.0] = lambda: life.put(0, FINISHED)
    life.events[635.0] = lambda: life.pause(100.0, of_machine)
    life.events[738.0] = lambda: life.put(1, ALIVE)
    assert end_of(life) == 0
    # A minute after the last that it has heard, and a farewell.
    assert 798.0 < life.now < 800.0
