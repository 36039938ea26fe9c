"""With work="queue" an epoch sees each example once, whoever dies or is slow.

See `queue_tasks`: the weights count the examples.
"""


import pytest

from tests.multi_process import queue_tasks

ONCE = [[1.0] * queue_tasks.EXAMPLES]
WORKER = "/job:worker/task:"


def check(workers, epochs=1, outputs=1):
    """Checks that all have seen each example once in each epoch."""
    for worker in workers:
        report = worker.report()
        last = report["by_epoch"][-1]
        assert last == [[epochs * one for one in ONCE[0]]] * outputs
        assert report["counts"] == last


@pytest.mark.smoke
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
    output = "".join(worker.output() for worker in workers)
    assert "2 of its 3 batches have been applied" in output


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
