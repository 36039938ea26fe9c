"""Workers that are killed, stopped, late or wrong, and what others notice."""

import random
import signal
import time

import pytest

from tests import nightly

# Longer than TensorFlow's servers and clients keep a silent peer: keep-alive
# pings go out every 5 s and are answered within 4 s.
UNAVAILABLE_SECONDS = 12.0
WEIGHTS = 281  # 1 + 7 + 3 * 5 + 129 * 2, of `tasks.SHAPES`.


@pytest.mark.smoke
@pytest.mark.parametrize("victim, kills", nightly.also([(0, 1)], [(2, 5)]))
def test_kill_9_loses_no_update_of_the_others(cluster, victim, kills):
    generator = random.Random(victim)
    made = cluster(num_ps=2, num_workers=3)
    made.start_servers()
    others = [
        made.start(
            "worker",
            index,
            "failure_tasks:train",
            value=1.0,
            until="stop",
            pace=0.02,
        )
        for index in range(3)
        if index != victim
    ]

    def start_victim():
        # Exact beside ones, as long as there are fewer than 2**16 of those.
        return made.start(
            "worker",
            victim,
            "failure_tasks:train",
            value=1.0 / 256.0,
            until="stop",
        )

    lives = [start_victim()]
    for _ in range(kills):
        before = [other.steps() for other in others]
        lives[-1].wait_for_steps(generator.randint(1, 20))
        # Nearly all of its time is spent in steps.
        time.sleep(generator.uniform(0.0, 0.01))
        lives[-1].kill()
        for other, steps in zip(others, before, strict=True):
            other.wait_for_steps(steps + 10)
        lives.append(start_victim())
    lives[-1].wait_for_steps(20)
    made.tell("stop")
    made.finish()
    steps = sum(other.steps() for other in others)
    done = sum(life.steps() for life in lives)
    for report in [other.report() for other in others]:
        applied = {}
        for part, server in zip(
            report["parts"], report["placement"], strict=True
        ):
            (total,) = set(part)
            pushes = -total * 256.0 - steps * 256.0
            assert applied.setdefault(server, pushes) == pushes
        assert set(applied) == {0, 1}
        for server, pushes in applied.items():
            # What was killed may have pushed once more than it told of.
            assert done <= pushes <= done + kills
            assert report["updates"][server] == steps + pushes
        assert report["iterations"] == report["updates"][0]


@pytest.mark.nightly
def test_a_worker_that_does_not_come_back_is_not_waited_for(cluster):
    made = cluster(num_workers=2)
    servers = made.start_servers(lost_after=15.0)
    going, dead = made.start_workers(
        "failure_tasks:train", value=1.0, until="stop", lost_after=15.0
    )
    for worker in (going, dead):
        worker.wait_for_steps(5)
    dead.kill()
    made.tell("stop")
    going.expect("trained")
    assert going.wait() == 0
    # Nobody has told that the other is dead, but it is silent.
    assert going.report()["states"]["/job:worker/task:1"] == "ALIVE"
    assert [server.wait() for server in servers] == [0]


@pytest.mark.smoke
def test_a_late_worker_begins_with_the_current_parameters(cluster):
    made = cluster(num_workers=2)
    made.start_servers()
    early = made.start(
        "worker", 0, "failure_tasks:train", value=1.0, until=60, hold=50
    )
    early.expect("holding")
    late = made.start(
        "worker", 1, "failure_tasks:train", value=2.0, until=10, hold=10
    )
    late.expect("holding")
    made.tell("go on")
    made.finish()
    report = late.report()
    # Its first gradient is that of the parameters after 50 updates.
    assert report["losses"][0] == -50.0 * WEIGHTS * 2.0
    assert report["versions"] == list(range(51, 61))
    assert report["staleness"] == [0] * 10
    # The early one had pulled before the ten steps of the late one.
    report = early.report()
    assert report["versions"][50] == 61
    assert report["staleness"] == [0] * 50 + [10] + [0] * 9
    assert report["updates"] == [70]


@pytest.mark.nightly
def test_a_stopped_worker_does_not_stop_the_others(cluster):
    made = cluster(num_ps=2, num_workers=2)
    made.start_servers()
    workers = made.start_workers(
        "failure_tasks:train", value=1.0, until="stop", pace=0.005
    )
    for worker in workers:
        worker.wait_for_steps(5)
    going, stopped = workers
    stopped.send(signal.SIGSTOP)
    end = time.monotonic() + UNAVAILABLE_SECONDS
    before = going.steps()
    while time.monotonic() < end:
        before += 10
        going.wait_for_steps(before)
    at = stopped.steps()
    stopped.send(signal.SIGCONT)
    # Its connections are gone: it makes new ones.
    stopped.wait_for_steps(at + 10)
    made.tell("stop")
    made.finish()


@pytest.mark.nightly
def test_the_lock_of_a_killed_worker_is_freed(cluster):
    made = cluster(num_workers=2)
    made.start_servers()
    going = made.start(
        "worker", 0, "failure_tasks:train", value=1.0, until="stop"
    )
    going.wait_for_steps(5)
    holder = made.start("worker", 1, "failure_tasks:stop_with_the_lock")
    holder.expect("stopped with the lock")
    # No step holds a lock while a worker computes: only a kill has to free it.
    holder.kill()
    # One step may have been under way.
    going.wait_for_steps(going.steps() + 10)
    made.start("worker", 1, "failure_tasks:train", value=1.0, until=1)
    made.tell("stop")
    made.finish()


@pytest.mark.nightly
def test_a_worker_that_raises_has_failed_and_servers_end(cluster):
    made = cluster(num_ps=2, num_workers=2)
    servers = made.start_servers(lost_after=15.0)
    failing = made.start("worker", 1, "failure_tasks:raise_after_a_step")
    going = made.start(
        "worker", 0, "failure_tasks:train", value=1.0, until="stop"
    )
    assert failing.wait() == 1
    assert "ArithmeticError: a bug of the user" in failing.output()
    going.wait_for_steps(going.steps() + 10)
    made.tell("stop")
    # It does not wait for the one that has failed.
    assert going.wait() == 0
    assert going.report()["states"]["/job:worker/task:1"] == "FAILED"
    for server in servers:
        assert server.wait() == 0
        assert "/job:worker/task:1 has not been seen" in server.output()


@pytest.mark.nightly
def test_servers_give_up_when_all_workers_have_failed(cluster):
    made = cluster(num_workers=2)
    (server,) = made.start_servers(start_timeout=15.0)
    workers = made.start_workers("failure_tasks:raise_after_a_step")
    for worker in workers:
        assert worker.wait() == 1
        # It has trained: the server had heard of it.
        assert "ArithmeticError: a bug of the user" in worker.output()
    assert server.wait() == 1
    assert "Gave up after 15 s without a sign of" in server.output()


OTHER_MODELS = [
    # Another shape; a variable less; a variable more.
    ([(), (7,), (3, 4), (129, 2)], "part2 parameter float32 [3, 4]"),
    (
        [(), (7,), (3, 5)],
        "variable 3: here sequential/sum_of_weights/calls state",
    ),
    (
        [(), (7,), (3, 5), (129, 2), (2,)],
        "variable 4: here sequential/sum_of_weights/part4 parameter",
    ),
]


@pytest.mark.nightly
def test_workers_with_different_models_are_refused(cluster):
    made = cluster(num_workers=2)
    made.start_servers(lost_after=15.0)
    right = made.start(
        "worker", 0, "failure_tasks:train", value=1.0, until="stop"
    )
    right.wait_for_steps(1)
    for shapes, expected in OTHER_MODELS:
        wrong = made.start(
            "worker",
            1,
            "failure_tasks:train",
            value=1.0,
            until="stop",
            shapes=shapes,
        )
        assert wrong.wait() == 1
        report = wrong.report()
        assert report["error"] == "ModelMismatchError"
        assert expected in report["message"]
        assert wrong.steps() == 0
    made.tell("stop")
    assert right.wait() == 0
    assert set(right.report()["parts"][0]) == {-1.0 * right.steps()}
