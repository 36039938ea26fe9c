"""Real clusters between two calls of `fit`: weights, files, barriers."""

import numpy as np
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


def test_a_late_worker_shows_the_iteration_whose_weights_it_has(cluster):
    made = cluster(num_ps=1, num_workers=2)
    made.start_servers()
    workers = made.start_workers(
        f"{MODULE}:be_late", worker="worker-1", epochs=4
    )
    workers[1].expect("holding")
    workers[0].expect("to end this call of `fit`")
    made.tell("go on worker-1")
    made.finish()
    chief, late = (worker.report() for worker in workers)
    # It leaves out those before.
    assert late["logs"]["loss"] == chief["logs"]["loss"][-1:]
    for report in (chief, late):
        losses = report["logs"]["loss"]
        np.testing.assert_allclose(report["logs"]["val_loss"], losses, 1e-6)
    assert late["weights"] == chief["weights"]


def test_all_have_the_weights_that_the_chief_sets_at_the_end(cluster):
    workers = run(cluster, "set_at_end", epochs=3)
    chief, other = (worker.report()["fits"] for worker in workers)
    for (losses, mine), (_, theirs) in zip(chief, other, strict=True):
        assert len(losses) == 3
        assert theirs == mine


def test_a_worker_that_returns_after_the_last_backup_ends_with_the_chief(
    cluster,
):
    made = cluster(num_ps=1, num_workers=2)
    made.start_servers()
    task = f"{MODULE}:back_up"
    chief, victim = made.start_workers(task, epochs=3)
    chief.expect("holding")
    victim.kill()
    again = made.start("worker", 1, task, epochs=3)
    again.expect("has read")
    made.tell("go on")
    made.finish()
    assert again.report()["weights"] == chief.report()["weights"]


def test_only_the_chief_saves_a_model_before_fit(cluster, tmp_path):
    directory = tmp_path / "saved"
    directory.mkdir()
    workers = run(cluster, "save_before_fit", directory=str(directory))
    chief, other = (worker.report() for worker in workers)
    expected = ["function-0.keras", "method-0.keras", "method-0.weights.h5"]
    assert chief["names"] == other["names"] == expected
    assert not chief["refused"]
    assert "keras.saving.save_model" in other["refused"]
