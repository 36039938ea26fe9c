"""With work="queue" an epoch sees each example once, whoever dies or is slow.

See `queue_tasks`: the weights count the examples.
"""

import json
import random
import signal
import time

import pytest
import tensorflow as tf

from tests.multi_process import queue_tasks
from tests.waits import wait_until
from tfdist.cluster import snapshots

ONCE = [[1.0] * queue_tasks.EXAMPLES]
WORKER = "/job:worker/task:"


def check(workers, epochs=1, outputs=1):
    """Checks that all have seen each example once in each epoch."""
    expected = [[epochs * one for one in ONCE[0]]] * outputs
    for worker in workers:
        report = worker.report()
        assert report["counts"] == expected
        # One that came back when all was over has seen no epoch.
        assert all(last == expected for last in report["by_epoch"][-1:])


@pytest.mark.nightly
def test_a_killed_worker_s_portion_is_gone_on_with_where_it_was(cluster):
    made = cluster(num_workers=3)
    made.start_servers()
    others = [
        made.start("worker", k, "queue_tasks:train", holds={3: "killed"})
        for k in range(2)
    ]
    # Of portions of three batches: it dies in the middle of its second.
    victim = made.start("worker", 2, "queue_tasks:train", holds={5: "never"})
    for worker in others:
        worker.wait_for_steps(3)
    victim.wait_for_steps(5)
    victim.kill()
    again = made.start("worker", 2, "queue_tasks:train")
    again.wait_for_steps(1)
    made.tell("killed")
    made.finish()
    workers = [*others, again]
    check(workers)
    for worker in workers:
        report = worker.report()
        # No push was made twice.
        assert report["updates"] == [queue_tasks.BATCHES]
        assert report["epochs"] == [[0]]
        assert sum(report["portions"][0].values()) == queue_tasks.PORTIONS
    assert "2 of its 3 batches have been applied" in again.output()


@pytest.mark.nightly
def test_a_worker_that_is_killed_for_good(cluster):
    made = cluster(num_workers=4)
    made.start_servers(lost_after=15.0)
    settings = {"worker_timeout": 5.0}
    others = [
        made.start(
            "worker", k, "queue_tasks:train", holds={3: "dead"}, **settings
        )
        for k in range(3)
    ]
    victim = made.start(
        "worker", 3, "queue_tasks:train", holds={3: "never"}, **settings
    )
    for worker in (*others, victim):
        worker.wait_for_steps(3)
    victim.kill()
    made.tell("dead")
    made.finish()
    check(others)
    for worker in others:
        assert worker.report()["updates"] == [queue_tasks.BATCHES]
    output = "".join(worker.output() for worker in others)
    assert f"comes back: {WORKER}3 is gone" in output
    # Of portions of two batches.
    assert "1 of its 2 batches have been applied" in output


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("method", "num_ps"), [("async", 2), ("dc_asgd", 1), ("softsync", 2)]
)
def test_kill_9_at_any_moment(cluster, method, num_ps):
    """In the middle of pushes, too: each server applies each batch once."""
    generator = random.Random(num_ps)
    made = cluster(num_ps=num_ps, num_workers=3)
    made.start_servers()
    settings = {
        "data": "dataset",
        "method": method,
        "outputs": 4,
        "epochs": 3,
        "portions_per_worker": 3,
        "pace": 0.02,
    }
    workers = [
        made.start("worker", k, "queue_tasks:train", **settings)
        for k in range(3)
    ]
    for kill in range(4):
        victim = 1 + kill % 2
        workers[victim].wait_for_steps(generator.randint(2, 6))
        # Nearly all of its time is spent in steps and between them.
        time.sleep(generator.uniform(0.0, 0.03))
        workers[victim].kill()
        workers[victim] = made.start(
            "worker", victim, "queue_tasks:train", **settings
        )
    made.finish()
    check(workers, epochs=3, outputs=4)
    for update in workers[0].report()["updates"]:
        assert update == 3 * queue_tasks.BATCHES


@pytest.mark.nightly
def test_a_slow_worker_takes_fewer_portions(cluster):
    made = cluster(num_workers=2)
    made.start_servers()
    fast = made.start("worker", 0, "queue_tasks:train")
    slow = made.start("worker", 1, "queue_tasks:train", holds={2: "now"})
    # It has one of the first portions, of four batches.
    fast.wait_for_steps(queue_tasks.BATCHES - 4)
    slow.wait_for_steps(2)
    made.tell("now")
    made.finish()
    check([fast, slow])
    for worker in (fast, slow):
        (portions,) = worker.report()["portions"]
        assert portions == {f"{WORKER}0": 16, f"{WORKER}1": 1}


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("data", "executions"), [("arrays", 3), ("in order", 1), ("dataset", 1)]
)
def test_two_fits_of_uneven_data(cluster, data, executions):
    made = cluster(num_workers=3)
    made.start_servers()
    workers = made.start_workers(
        "queue_tasks:train",
        data=data,
        fits=2,
        initial_epoch=1,
        epochs=3,
        steps_per_execution=executions,
    )
    made.finish()
    check(workers, epochs=4)
    for worker in workers:
        report = worker.report()
        assert report["epochs"] == [[1, 2]] * 2
        first, last = (sum(p.values()) for p in report["portions"])
        # Others may have begun the next call.
        number = queue_tasks.PORTIONS if executions == 1 else 17
        assert 2 * number <= first <= last == 4 * number
        for epoch, (counts,) in enumerate(report["by_epoch"]):
            # It is whole before anybody begins the next one.
            assert epoch + 1 <= min(counts) <= max(counts) <= epoch + 2


@pytest.mark.nightly
def test_a_worker_that_joins_late_takes_portions_at_once(cluster):
    made = cluster(num_workers=3, initial_workers=2)
    made.start_servers()
    early = [
        made.start("worker", k, "queue_tasks:train", holds={3: "late"})
        for k in range(2)
    ]
    for worker in early:
        worker.wait_for_steps(3)
    late = made.start("worker", 2, "queue_tasks:train", holds={5: "late"})
    late.wait_for_steps(5)
    made.tell("late")
    made.finish()
    check([*early, late])
    (portions,) = late.report()["portions"]
    # One of four batches is done when all go on, and one has been begun.
    assert portions[f"{WORKER}2"] >= 2


@pytest.mark.nightly
def test_a_worker_that_was_taken_for_dead_counts_nothing_twice(cluster):
    made = cluster(num_ps=2, num_workers=2)
    made.start_servers()
    settings = {"worker_timeout": 5.0, "outputs": 4}
    going = made.start(
        "worker", 0, "queue_tasks:train", holds={40: "go on"}, **settings
    )
    hung = made.start(
        "worker", 1, "queue_tasks:train", holds={2: "hung"}, **settings
    )
    hung.wait_for_steps(2)
    hung.send(signal.SIGSTOP)
    going.wait_for_steps(40)
    made.tell("go on")
    going.expect("comes back: /job:worker/task:1 is gone")
    # It ends its portion, which another worker has taken.
    made.tell("hung")
    hung.send(signal.SIGCONT)
    made.finish()
    check([going, hung], outputs=4)
    for worker in (going, hung):
        assert worker.report()["updates"] == [queue_tasks.BATCHES] * 2


def _updates_saved(directory):
    """Updates in the newest snapshot of a server; 0 without any."""
    made = sorted(directory.glob("[0-9]*"))
    if not made:
        return 0
    meta = json.loads((made[-1] / snapshots._META).read_text())
    ((counter, *_),) = meta["groups"].values()
    reader = tf.train.load_checkpoint(str(made[-1] / snapshots._DATA))
    return int(reader.get_tensor(counter))


@pytest.mark.nightly
def test_all_die_and_go_on_with_the_epoch_in_which_they_were(cluster, tmp_path):
    made = cluster(num_workers=2)

    def serve():
        return made.start(
            "ps",
            0,
            "recovery_tasks:serve",
            directory=str(tmp_path),
            every=0.3,
        )

    servers = serve()
    settings = {"epochs": 2, "pace": 0.02}
    # In the second epoch, of 51 batches.
    dying = [
        made.start(
            "worker", k, "queue_tasks:train", holds={at: "never"}, **settings
        )
        for k, at in enumerate([40, 36])
    ]
    dying[0].wait_for_steps(40)
    dying[1].wait_for_steps(36)
    wait_until(
        lambda: _updates_saved(tmp_path / "ps-0-of-1") == 40 + 36,
        "the snapshot with all updates is there",
    )
    for task in (*dying, servers):
        task.kill()
    serve()
    workers = made.start_workers(
        "queue_tasks:train", initial_epoch=1, **settings
    )
    made.finish()
    check(workers, epochs=2)


@pytest.mark.nightly
def test_the_chief_stops_in_the_middle_of_an_epoch(cluster):
    made = cluster(num_workers=3)
    made.start_servers()
    workers = made.start_workers("queue_tasks:train", epochs=5, stop_at=7)
    made.finish()
    for worker in workers:
        assert worker.report()["epochs"] == [[0]]
    # What the chief had begun is not held by anybody.
    chief = workers[0].report()
    assert max(chief["counts"][0]) == 1.0
    assert min(chief["counts"][0]) == 0.0
