"""Restarts, leaves and deadlines of a cluster's tasks, by a clock of its own.

Tasks are stand-ins: what a process does is in `launch_test` and `scale_test`.
"""

import signal
import socket
import types

import pytest

from tfdist.cli import cluster_run
from tfdist.cli import failure
from tfdist.cli import supervisor
from tfdist.cli.cluster_run import ClusterRun
from tfdist.cli.cluster_run import RunPhase
from tfdist.cli.control_socket import RefusedError
from tfdist.cli.limits import Limits

KILLED = 128 + signal.SIGKILL


class StandIn:
    """A task that runs until the test says with which status it has ended."""

    log_path = None

    def __init__(self, worker=0):
        self.worker, self.label = worker, f"worker {worker}"
        self.is_wanted, self.is_done, self.is_server = True, False, False
        self.is_evaluator = False
        self.restarts = self.starts = 0
        self.is_running, self.pid, self.address = False, 1, "somewhere"
        self.status = None
        self.got = []
        self.error = None
        self.line_filter = types.SimpleNamespace(is_ending=False)

    def start(self, out, err, guard):
        del out, err, guard
        self.is_running, self.status = True, None
        self.starts += 1

    def ended(self):
        self.is_running = self.status is None
        return self.status

    def finish(self, guard):
        del guard
        return []

    def cause(self, status):
        del status
        return self.error

    def tell_end(self):
        self.got.append("end")

    def kill(self):
        self.got.append(signal.SIGKILL)

    def terminate(self):
        self.got.append(signal.SIGTERM)


@pytest.fixture
def clock(monkeypatch):
    """The time that runs go by, which the test sets."""
    made = types.SimpleNamespace(now=100.0)
    monkeypatch.setattr(
        cluster_run, "time", types.SimpleNamespace(monotonic=lambda: made.now)
    )
    return made


def started(tasks, **limits):
    """A run whose tasks have started; what it says; its report."""
    said = []
    report = types.SimpleNamespace(
        say=lambda *lines: said.extend(lines),
        fail=lambda status, why, output=None: said.append(f"{why}: {status}"),
    )
    run = ClusterRun(tasks, None, None, Limits(**limits), report)
    run.start(None)
    return run, said


def end(run, task, status):
    """The task ends, and the run sees it."""
    task.status = status
    run.look()


def test_a_task_that_fails_again_is_given_twice_the_time(clock):
    task = StandIn()
    run, said = started([task], max_restarts=8, grace_seconds=0.0)
    # Half a second, doubled each time, and never more than half a minute.
    for number, pause in enumerate([0.5, 1, 2, 4, 8, 16, 30, 30], 1):
        end(run, task, 3)
        assert said[-1].endswith(
            f"status 3; restart {number} of 8 in {pause:g} s"
        )
        assert run.next_time == clock.now + pause
        clock.now += pause - 0.01
        run.look_at_time()
        assert task.starts == number
        clock.now += 0.01
        run.look_at_time()
        assert task.starts == number + 1
    end(run, task, 3)
    assert said[-1] == "worker 0 exited with status 3: 3"
    assert run.is_over


class Server(StandIn):
    """A stand-in for a parameter server."""

    def __init__(self):
        super().__init__()
        self.label, self.worker, self.is_server = "ps 0", None, True


def test_the_others_go_on_when_a_worker_has_used_up_its_restarts(clock):
    tasks = [Server(), StandIn(0), StandIn(1)]
    run, said = started(tasks, max_restarts=1)
    end(run, tasks[2], KILLED)
    clock.now += 0.5
    run.look_at_time()
    assert tasks[2].starts == 2
    end(run, tasks[2], KILLED)
    assert "; the others go on without it" in said[-1]
    assert run.phase == RunPhase.RUNNING
    # The chief, without whom nothing is saved, is another matter.
    tasks[1].restarts = 1
    end(run, tasks[1], KILLED)
    assert run.phase > RunPhase.RUNNING


def test_servers_are_told_to_end_after_the_workers(clock):
    tasks = [Server(), StandIn(0), StandIn(1)]
    run, said = started(tasks, terminate_seconds=16.0)
    run.go_on(RunPhase.TERMINATING)
    assert [task.got for task in tasks] == [[], [15], [15]]
    assert said[-1] == "terminating worker 0, worker 1"
    end(run, tasks[1], 0)
    clock.now += 5.0
    run.look_at_time()
    assert said[-1] == "waiting for ps 0, worker 1 to end: 11 s left"
    assert tasks[0].got == []
    end(run, tasks[2], 0)
    assert tasks[0].got == [15]
    end(run, tasks[0], 143)
    assert run.is_over


def test_servers_are_told_that_nobody_starts_again(clock):
    tasks = [Server(), StandIn(0), StandIn(1)]
    run, _ = started(tasks, max_restarts=1, grace_seconds=10.0)
    end(run, tasks[1], 0)
    # It says to the servers, too, that it has finished.
    end(run, tasks[2], 1)
    assert tasks[0].got == []
    clock.now += 0.5
    run.look_at_time()
    assert tasks[2].starts == 2
    end(run, tasks[2], 0)
    assert (tasks[0].got, run.phase) == (["end"], RunPhase.ENDING)
    end(run, tasks[0], 0)
    assert run.is_over


@pytest.mark.parametrize("is_of_another", [True, False])
@pytest.mark.parametrize("has_servers", [True, False])
def test_a_worker_is_not_started_again_where_all_it_needs_has_ended(
    clock, has_servers, is_of_another
):
    """It would wait in vain, and its last error would be that."""
    tasks = [Server() if has_servers else StandIn(0), StandIn(1)]
    run, said = started(tasks, max_restarts=3)
    tasks[1].error = failure.Cause(
        "OSError: no space left", is_of_another=is_of_another
    )
    end(run, tasks[0], 0)
    end(run, tasks[1], 1)
    done = tasks[0].label
    assert (
        "worker 1 exited with status 1: OSError: no space left; it cannot "
        f"train again: {done} is done: 1"
    ) in said
    assert run.is_over and tasks[1].starts == 1


@pytest.mark.parametrize("has_servers", [True, False])
def test_a_worker_that_waits_to_be_started_needs_those_that_end_meanwhile(
    clock, has_servers
):
    """Servers see no end; other workers would be waited for in vain."""
    tasks = [StandIn(0), StandIn(1), StandIn(2)]
    run, said = started(
        [Server(), *tasks] if has_servers else tasks, max_restarts=3
    )
    end(run, tasks[1], KILLED)
    assert said[-1].endswith("restart 1 of 3 in 0.5 s")
    end(run, tasks[0], 0)
    end(run, tasks[2], 0)
    clock.now += 0.5
    run.look_at_time()
    if has_servers:
        assert (tasks[1].starts, run.phase) == (2, RunPhase.RUNNING)
        return
    assert (tasks[1].starts, run.is_over) == (1, True)
    assert said[-3:] == [
        "worker 0 is done",
        "worker 1 was ended by SIGKILL (status 137), as by the system when "
        "memory runs out; it cannot train again: worker 0 is done; the others "
        "go on without it: 137",
        "worker 2 is done",
    ]


def test_a_task_that_cannot_start_again_ends_all_restarts(clock):
    tasks = [StandIn(0), StandIn(1)]
    run, said = started(tasks, max_restarts=3, grace_seconds=0.0)
    for task in tasks:
        end(run, task, KILLED)

    def start(out, err, guard):
        raise OSError("no memory")

    tasks[0].start = start
    clock.now += 0.5
    run.look_at_time()
    assert "worker 0 cannot start: no memory: 126" in said
    assert (tasks[1].starts, run.is_over) == (1, True)


@pytest.mark.parametrize("fail_fast", [True, False])
def test_without_servers_workers_that_still_save_may_end_by_themselves(
    clock, fail_fast
):
    """One fails as its process ends, when another one is done already."""
    tasks = [StandIn(0), StandIn(1), StandIn(2)]
    run, said = started(tasks, max_restarts=3, fail_fast=fail_fast)
    end(run, tasks[2], 0)
    end(run, tasks[1], 139)
    if fail_fast:
        assert run.phase == RunPhase.ENDING
        return
    assert said[-1].endswith(
        "worker 2 is done; the others go on without it: 139"
    )
    assert run.next_time == float("inf")
    end(run, tasks[0], 0)
    assert run.is_over and tasks[0].got == []


def test_servers_are_told_to_end_where_a_worker_does_not(clock):
    tasks = [Server(), StandIn(0)]
    run, _ = started(tasks, terminate_seconds=16.0)
    run.go_on(RunPhase.TERMINATING)
    clock.now += 12.0
    run.look_at_time()
    assert [task.got for task in tasks] == [[15], [15]]
    clock.now += 4.0
    run.look_at_time()
    assert [task.got for task in tasks] == [[15, 9], [15, 9]]
    assert run.phase == RunPhase.KILLING


def test_nobody_goes_on_without_a_worker_where_there_are_no_servers(clock):
    tasks = [StandIn(0), StandIn(1)]
    run, _ = started(tasks, max_restarts=0)
    end(run, tasks[1], KILLED)
    assert run.phase == RunPhase.ENDING


def test_the_first_failure_ends_a_run_that_is_to_fail_fast(clock):
    tasks = [Server(), StandIn(0), StandIn(1)]
    run, said = started(tasks, fail_fast=True)
    end(run, tasks[2], KILLED)
    assert run.phase == RunPhase.ENDING
    assert "restart" not in " ".join(said)


def test_who_does_not_leave_is_killed_and_comes_back_if_wanted(clock):
    tasks = [Server(), StandIn(0), StandIn(1)]
    run, said = started(tasks, leave_seconds=30.0)
    assert run.scale(1) == "worker 1 leaves"
    assert tasks[2].got == [signal.SIGTERM]
    assert run.scale(2) == "worker 1 comes back when it has left"
    clock.now += 29.9
    run.look_at_time()
    assert tasks[2].got == [signal.SIGTERM]
    clock.now += 0.1
    run.look_at_time()
    assert tasks[2].got == [signal.SIGTERM, signal.SIGKILL]
    assert said[-1] == "worker 1 has not left: killing it"
    end(run, tasks[2], KILLED)
    assert (tasks[2].starts, run.phase) == (2, RunPhase.RUNNING)


def test_workers_without_servers_do_not_come_and_go():
    """The end of one would end the others, when they notice it."""
    tasks = [StandIn(0), StandIn(1)]
    launcher = supervisor.Supervisor([], None, None, Limits())
    launcher._clusters = [started(tasks)[0]]
    with pytest.raises(
        RefusedError, match="no parameter servers.*Received: --workers=1"
    ):
        launcher._on_question({"workers": 1})
    assert [task.got for task in tasks] == [[], []]


def test_a_worker_that_has_used_up_its_restarts_can_be_asked_for(clock):
    tasks = [Server(), StandIn(0), StandIn(1)]
    run, _ = started(tasks, max_restarts=1)
    run._excused[tasks[2]] = 4  # As often as its helper had failed.
    end(run, tasks[2], KILLED)
    # It comes back anyway.
    assert run.scale(2) == "2 workers already"
    clock.now += 0.5
    run.look_at_time()
    end(run, tasks[2], KILLED)
    assert run.scale(2) == "worker 1 started"
    assert (tasks[2].starts, tasks[2].restarts) == (3, 0)
    assert run._excused[tasks[2]] == 0
    assert run.scale(2) == "2 workers already"
    end(run, tasks[2], 0)
    assert run.scale(2) == "2 workers already"


def test_a_run_ends_when_a_worker_that_waits_for_its_restart_is_removed(clock):
    tasks = [Server(), StandIn(0), StandIn(1)]
    run, _ = started(tasks, max_restarts=1, grace_seconds=10.0)
    end(run, tasks[2], KILLED)
    end(run, tasks[1], 0)
    assert tasks[0].got == []
    assert run.scale(1) == "worker 1 stays away"
    assert (tasks[0].got, run.phase) == (["end"], RunPhase.ENDING)


def test_all_groups_are_scaled_or_none():
    groups = [[Server(), StandIn(0), StandIn(1)] for _ in range(2)]
    runs = [started(tasks)[0] for tasks in groups]
    launcher = supervisor.Supervisor([], None, None, Limits())
    launcher._clusters = runs
    runs[1].go_on(RunPhase.ENDING)
    with pytest.raises(RefusedError, match="is ending"):
        launcher._on_question({"workers": 1})
    assert [task.got for task in groups[0]] == [[], [], []]


def test_a_signal_that_comes_twice_at_once_is_one(clock, monkeypatch):
    """As of `timeout(1)`, which sends it to its group as well."""
    task = StandIn()
    launcher = supervisor.Supervisor([], None, None, Limits())
    run, said = started([task])
    launcher._clusters, launcher._report = [run], run._report
    monkeypatch.setattr(supervisor, "time", cluster_run.time)
    launcher._on_signals(bytes([signal.SIGTERM, signal.SIGTERM]))
    assert (task.got, run.phase) == ([signal.SIGTERM], RunPhase.TERMINATING)
    assert said[-1] == "got SIGTERM, at once with the one before"
    clock.now += supervisor.SECONDS_TOGETHER
    launcher._on_signals(bytes([signal.SIGINT]))
    assert task.got == [signal.SIGTERM, signal.SIGKILL]


def test_a_run_may_take_months(clock, monkeypatch):
    """Though `poll` waits for 24 days at most."""
    monkeypatch.setattr(supervisor, "time", cluster_run.time)
    stream = types.SimpleNamespace(
        is_full=False, is_pending=False, is_broken=False, flush=lambda: None
    )
    launcher = supervisor.Supervisor([], stream, stream, Limits())
    launcher._clusters = [started([])[0]]
    monkeypatch.setattr(launcher, "_next_deadline", lambda: 1e9)
    reader, writer = socket.socketpair()
    with reader, writer:
        writer.send(bytes([signal.SIGCHLD]))
        launcher._poll(reader)


class Evaluator(StandIn):
    """A stand-in for the evaluator."""

    def __init__(self):
        super().__init__()
        self.label, self.worker, self.is_evaluator = "evaluator 0", None, True


def test_an_evaluator_is_told_when_no_worker_runs_or_will(clock):
    """Before the servers, whose values it evaluates."""
    tasks = [Server(), StandIn(0), StandIn(1), Evaluator()]
    run, _ = started(tasks, max_restarts=1)
    end(run, tasks[1], 0)
    # In the table of members `sys.exit(1)` looks as if it had finished.
    end(run, tasks[2], 1)
    assert tasks[3].got == []
    clock.now += 0.5
    run.look_at_time()
    end(run, tasks[2], 0)
    assert (tasks[3].got, tasks[0].got) == (["end"], [])
    end(run, tasks[3], 0)
    assert tasks[0].got == ["end"]


@pytest.mark.parametrize("is_final", [True, False])
def test_training_goes_on_without_an_evaluator_that_fails_for_good(
    clock, is_final
):
    tasks = [Server(), StandIn(0), Evaluator()]
    run, said = started(tasks, max_restarts=0)
    tasks[2].error = failure.Cause("ValueError: no data", is_final=is_final)
    end(run, tasks[2], 1)
    assert said[-1].endswith("no data; the others go on without it: 1")
    assert run.phase == RunPhase.RUNNING
    end(run, tasks[1], 0)
    # Its server need not wait for it.
    assert tasks[0].got == ["end", signal.SIGTERM]


def test_nothing_is_due_of_a_group_that_is_over(clock):
    """Would the launcher still watch its deadline, it would never sleep."""
    over, running = StandIn(), StandIn()
    runs = [started([task], grace_seconds=0.0)[0] for task in (over, running)]
    end(runs[0], over, 0)
    assert runs[0].is_over
    assert runs[0].next_time <= clock.now
    launcher = supervisor.Supervisor([], None, None, Limits())
    launcher._clusters = runs
    assert launcher._next_deadline() == float("inf")
