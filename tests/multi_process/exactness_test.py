"""No update, no count and no example is lost or doubled under concurrency."""

import numpy as np
import pytest

from tests.multi_process.real_cluster import ClusterUnderTest
from tfdist.runtime.recovery import server_readiness

STEPS = 200
WORKERS = 4
# Their sum over 200 steps, 375, has 12 binary digits.
VALUES = [1.0, 0.5, 0.25, 0.125]


@pytest.fixture(scope="module")
def reports(zygote, tmp_path_factory):
    """What four workers report that took 200 steps each on two servers."""
    directory = tmp_path_factory.mktemp("exactness")
    with ClusterUnderTest(
        zygote, directory, num_ps=2, num_workers=WORKERS
    ) as cluster:
        cluster.start_servers()
        workers = cluster.start_workers(
            "tasks:push_constants", steps=STEPS, values=VALUES, wait=True
        )
        # Who was first has pulled before the others' first updates.
        for worker in workers:
            worker.expect("has made one step")
        for worker in workers:
            cluster.tell(f"go on {worker.label}")
        cluster.finish()
        yield [
            {**worker.report(), "output": worker.output()} for worker in workers
        ]


@pytest.mark.smoke
def test_nobody_waits_for_processes_of_before(reports):
    for report in reports:
        assert server_readiness.WAITED_FOR not in report["output"]


@pytest.mark.smoke
def test_both_servers_have_applied_every_update(reports):
    for report in reports:
        assert report["updates"] == [WORKERS * STEPS] * 2
        # Both servers hold parameters, or this would be easy.
        assert set(report["placement"]) == {0, 1}


@pytest.mark.smoke
def test_iterations_count_every_update(reports):
    assert [r["iterations"] for r in reports] == [WORKERS * STEPS] * WORKERS


@pytest.mark.smoke
def test_parameters_are_the_sum_of_all_pushes(reports):
    for report in reports:
        for part in report["parts"]:
            assert set(part) == {-STEPS * sum(VALUES)}


@pytest.mark.smoke
def test_state_counts_every_call(reports):
    for report in reports:
        scalar, vector = report["calls"]
        assert scalar == [WORKERS * STEPS]
        assert vector == [WORKERS * STEPS] * 3


@pytest.mark.smoke
def test_metrics_of_the_cluster_count_every_example(reports):
    # Worker k takes batches of k + 1.
    for k, report in enumerate(reports):
        assert report["own_metrics"] == (k + 1) * STEPS
        assert report["metrics"]["examples_seen"] == 10 * STEPS


@pytest.mark.smoke
def test_every_update_has_a_version_of_its_own(reports):
    versions = [v for report in reports for v in report["versions"]]
    assert sorted(versions) == list(range(1, WORKERS * STEPS + 1))


@pytest.mark.smoke
def test_staleness_is_what_others_applied_since_the_pull(reports):
    updates = 0
    for report in reports:
        assert len(report["staleness"]) == STEPS
        # On the first server; on the second it may have been more.
        others = np.diff(report["versions"]) - 1
        assert np.all(report["staleness"][1:] >= others)
        updates += np.count_nonzero(others)
    # Of the first four updates, those that the first worker had not pulled.
    assert updates > 0


@pytest.mark.nightly
def test_adam_counts_steps_and_follows_a_schedule(cluster):
    made = cluster(num_ps=2, num_workers=2)
    made.start_servers()
    steps = 50
    workers = made.start_workers(
        "tasks:push_constants",
        steps=steps,
        values=[1.0, 1.0],
        learning_rate=[0.5, 2 * steps, 0.25],
    )
    made.finish()
    for worker in workers:
        report = worker.report()
        assert report["updates"] == [2 * steps] * 2
        assert report["iterations"] == 2 * steps
        # The schedule is linear from 0.5 to 0.25 in 100 steps.
        assert report["learning_rate"] == 0.25
        # Adam divides a constant gradient by itself: each update is the
        # learning rate of its step (Kingma and Ba 2014, section 2.1).
        mean_rate = 0.5 - 0.25 * (2 * steps - 1) / (4 * steps)
        moved = 2 * steps * mean_rate
        for part in report["parts"]:
            np.testing.assert_allclose(part, -moved, rtol=1e-4)


@pytest.mark.nightly
def test_who_is_late_is_waited_for_at_the_end(zygote, tmp_path):
    """Though nobody has seen it yet: else the chief would save half."""
    with ClusterUnderTest(zygote, tmp_path, num_ps=1, num_workers=2) as cluster:
        cluster.start_servers()
        arguments = {
            "steps": 3,
            "values": VALUES,
            "worker_start": "independent",
        }
        first = cluster.start("worker", 0, "tasks:push_constants", **arguments)
        first.expect(r"Waiting for .*task:1 to call strategy.barrier")
        cluster.start("worker", 1, "tasks:push_constants", **arguments)
        cluster.finish()
        assert first.report()["updates"] == [2 * 3]
