"""Workers that die, hang, run out of data or come late, for each method.

Every gradient is one, so every update of an average is one, too, whoever is
in it: parameters that are not minus the number of updates show a gradient
that was lost, counted twice, or averaged on one server only.
"""

import random
import signal
import time

import pytest

from tfdist.runtime.recovery import stall_watchdog

METHODS = {
    "sync": ("Sync", {}),
    "softsync": ("SoftSync", {"s": 2}),
    "bounded": ("BoundedStaleness", {"max_staleness": 1}),
}
# Of the workers; the servers know it after at most one heartbeat more.
TIMEOUT = 15.0


def start(made, index, method, **arguments):
    """Starts a worker that pushes ones."""
    name, settings = METHODS[method]
    return made.start(
        "worker",
        index,
        "synchronization_tasks:train",
        method=name,
        arguments=settings,
        value=1.0,
        **{"worker_timeout": TIMEOUT, **arguments},
    )


def check_exact(reports):
    """Checks that every update was whole, and that nothing is uncounted."""
    for report in reports:
        (updates,) = set(report["updates"])
        assert report["iterations"] == updates
        assert {w for part in report["weights"] for w in part} == {-updates}
        for counts in report["counts"].values():
            assert counts["pushed"] == counts["accepted"] + counts["dropped"]


# Who waits for all, and who for nobody. Every order of events under the other
# methods, in virtual time: `tests.synchronization`.
both = pytest.mark.parametrize("method", ["sync", "softsync"])


@pytest.mark.nightly
@both
def test_kill_9_while_computing_pushing_or_waiting(cluster, method):
    generator = random.Random(method)
    made = cluster(num_ps=2, num_workers=3)
    made.start_servers()
    others = [start(made, k, method, until="stop", pace=0.02) for k in (0, 1)]
    lives = [start(made, 2, method, until="stop")]
    # The others begin when it does: it is expected.
    kills = 2 if method == "sync" else 1
    for kill in range(kills):
        victim = lives[-1]
        victim.wait_for_steps(generator.randint(1, 5))
        # Without a pace of its own it mostly pushes and waits.
        time.sleep(generator.uniform(0.0, 0.04))
        victim.kill()
        before = [other.steps() for other in others]
        # Within the lease, the others go on without it.
        for other, steps in zip(others, before, strict=True):
            other.wait_for_steps(steps + 5)
        # Then it is killed in compute.
        pace = 0.5 if kill + 2 == kills else 0.0
        lives.append(start(made, 2, method, until="stop", pace=pace))
    lives[-1].wait_for_steps(5)
    made.tell("stop")
    made.finish()
    reports = [task.report() for task in (*others, lives[-1])]
    check_exact(reports)
    (pushed,) = {
        report["counts"]["/job:worker/task:2"]["pushed"] for report in reports
    }
    done = sum(life.steps() for life in lives)
    # Of each life that was killed, one more may have arrived.
    assert done <= pushed <= done + kills


@pytest.mark.nightly
def test_a_worker_that_is_started_again_is_not_waited_for(cluster):
    made = cluster(num_ps=1, num_workers=2)
    made.start_servers()
    other = start(made, 0, "sync", until="stop", pace=0.01)
    first = start(made, 1, "sync", until="stop")
    first.wait_for_steps(5)
    first.kill()
    # It is alive before the lease of the first has run out, and not training.
    second = start(made, 1, "sync", until="stop", before="go on")
    second.expect("waiting")
    other.wait_for_steps(other.steps() + 10)
    made.tell("go on")
    second.wait_for_steps(5)
    made.tell("stop")
    made.finish()
    check_exact([other.report(), second.report()])


@pytest.mark.nightly
@both
def test_a_stopped_worker_is_not_waited_for_and_is_taken_back(cluster, method):
    made = cluster(num_ps=1, num_workers=3)
    made.start_servers()
    workers = [
        start(made, k, method, until="stop", pace=0.01) for k in range(3)
    ]
    for worker in workers:
        worker.wait_for_steps(5)
    *going, stopped = workers
    stopped.send(signal.SIGSTOP)
    if method != "softsync":  # Nobody waits for anybody there.
        for worker in going:
            worker.expect(
                "Nobody waits for /job:worker/task:2 any more: it has not been "
                f"heard of for more than worker_timeout={TIMEOUT:g} s"
            )
    for worker in going:
        worker.wait_for_steps(worker.steps() + 10)
    at = stopped.steps()
    stopped.send(signal.SIGCONT)
    stopped.wait_for_steps_or_end(at + 10)
    if not stopped.runs():
        # Its connections were closed in the meantime: it says so and is
        # started again, as any supervisor would.
        assert stopped.wait() == 1
        stopped = start(made, 2, method, until="stop", pace=0.01)
        stopped.wait_for_steps(10)
    if method != "softsync":
        going[0].expect("/job:worker/task:2 takes part again")
    made.tell("stop")
    for worker in (*going, stopped):
        assert worker.wait() == 0
    check_exact([worker.report() for worker in going])


@pytest.mark.nightly
def test_a_stopped_worker_ends_the_other_where_a_stall_is_to_fail(cluster):
    made = cluster(num_ps=1, num_workers=2)
    made.start_servers()
    # Its lease is longer than a stall may be.
    settings = {
        "worker_timeout": 600.0,
        "stall_timeout": 30.0,
        "on_stall": "fail",
    }
    going, stopped = (
        start(made, k, "sync", until="stop", pace=0.01, **settings)
        for k in range(2)
    )
    for worker in (going, stopped):
        worker.wait_for_steps(5)
    stopped.send(signal.SIGSTOP)
    assert going.wait() == stall_watchdog.STALLED_STATUS == 70
    going.expect(
        r"/job:worker/task:0 has made no progress for \d+ s in .*"
        "Waiting for the gradients of /job:worker/task:1"
    )
    going.expect("/job:worker/task:0 ends, as on_stall='fail' says")


@pytest.mark.nightly
@both
def test_a_worker_out_of_data_leaves(cluster, method):
    made = cluster(num_ps=1, num_workers=3)
    made.start_servers()
    # Its process goes on after `fit`, and says nothing to the others.
    short = start(made, 0, method, until=5, after="go on")
    others = [start(made, k, method, until=60) for k in (1, 2)]
    short.expect("trained")
    for worker in others:
        worker.wait_for_steps(60)
        worker.expect("trained")
    made.tell("go on")
    made.finish()
    reports = [worker.report() for worker in (short, *others)]
    check_exact(reports)
    pushed = [counts["pushed"] for counts in reports[0]["counts"].values()]
    assert pushed == [5, 60, 60]


@pytest.mark.nightly
def test_workers_that_never_begin_are_waited_for_at_first_only(cluster):
    made = cluster(num_ps=1, num_workers=3)
    made.start_servers()
    early = [
        start(made, k, "sync", until="stop", pace=0.01, start_timeout=15.0)
        for k in (0, 1)
    ]
    for worker in early:
        worker.wait_for_steps(10)
    late = start(made, 2, "sync", until="stop", pace=0.01, start_timeout=15.0)
    late.wait_for_steps(10)
    early[0].expect("/job:worker/task:2 takes part again")
    made.tell("stop")
    made.finish()
    check_exact([worker.report() for worker in (*early, late)])


@pytest.mark.nightly
@pytest.mark.parametrize("index", [0, 1])
def test_a_server_that_dies_ends_the_wait_and_all_go_on(cluster, index):
    made = cluster(num_ps=2, num_workers=2)
    made.start_servers()
    waiting = start(made, 0, "sync", until="stop")
    slow = start(made, 1, "sync", until="stop", hold=1)
    slow.wait_for_steps(1)
    # It has got the first update and waits for the next, which is far away.
    waiting.wait_for_steps(1)
    waiting.expect("Waiting for the gradients of /job:worker/task:1")
    made.servers()[index].kill()
    waiting.expect(f"No answer from parameter server /job:ps/task:{index}")
    made.start("ps", index, "tasks:serve")
    waiting.expect(rf"restored /job:ps/task:{index}")
    made.tell("go on")
    for worker in (waiting, slow):
        worker.wait_for_steps(10)
    made.tell("stop")
    made.finish()
    check_exact([waiting.report(), slow.report()])


@pytest.mark.nightly
def test_workers_with_different_methods_are_refused(cluster):
    made = cluster(num_ps=1, num_workers=2)
    made.start_servers(lost_after=15.0)
    right = start(made, 0, "bounded", until="stop", start_timeout=15.0)
    right.wait_for_steps(1)
    wrong = start(made, 1, "softsync", until="stop")
    assert wrong.wait() == 1
    wrong.expect(
        r"Here synchronization=SoftSync\(s=2\), correction=None, "
        r"on the servers synchronization=BoundedStaleness\(max_staleness=1\), "
    )
    made.tell("stop")
    assert right.wait() == 0
