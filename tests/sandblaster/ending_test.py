"""Ends of calls of `fit` on real clusters: who has which weights then."""

import pytest

pytestmark = pytest.mark.nightly

MODULE = "tests.sandblaster.ending_tasks"


def run(cluster, task, **arguments):
    """Runs a task on two workers and a server; returns the workers."""
    made = cluster(num_ps=1, num_workers=2)
    made.start_servers()
    workers = made.start_workers(f"{MODULE}:{task}", **arguments)
    made.finish()
    return workers


def test_a_worker_that_stops_early_takes_the_last_weights(cluster):
    workers = run(cluster, "stop_on_one", worker=1, after=3, epochs=8)
    chief, other = (worker.report()["fits"] for worker in workers)
    assert len(chief[0][0]) == 8
    assert len(other[0][0]) == 3
    for (_, mine), (_, theirs) in zip(chief, other, strict=True):
        assert theirs == mine
    text = "epochs of this worker have ended before those of the chief"
    assert [worker.output().count(text) for worker in workers] == [0, 1]
