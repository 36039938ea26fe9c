"""Workers without servers come to what those with servers come to."""

import numpy as np
import pytest

from tests.multi_process import real_cluster

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def reports(zygote, tmp_path_factory):
    """Of each way of communication, the reports of three workers."""
    return real_cluster.reports_of(
        zygote,
        tmp_path_factory,
        "ring_tasks:train",
        "communication",
        {"ring": 0, "parameter_server": 1},
        num_workers=3,
    )


METHODS = ("diloco", "elastic")


@pytest.mark.parametrize("method", METHODS)
def test_ring_and_servers_make_the_same_weights(reports, method):
    of_servers, of_ring = (
        reports[communication][0][method]
        for communication in ("parameter_server", "ring")
    )
    assert of_ring["updates"] == of_servers["updates"]
    assert of_ring["local_steps"] == of_servers["local_steps"]
    for here, there in zip(
        of_ring["weights"], of_servers["weights"], strict=True
    ):
        np.testing.assert_allclose(here, there, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("method", [*METHODS, "uneven"])
def test_workers_of_a_ring_hold_the_same_bits(reports, method):
    first, *others = (report[method] for report in reports["ring"])
    assert first["over"]
    for other in others:
        assert other["weights"] == first["weights"]
        assert other["updates"] == first["updates"]
        if method == "uneven":
            # It averages the optimizer's state.
            assert other["state"] == first["state"]
            assert len(other["state"]) == 2 * 5


def test_no_step_is_lost_where_data_ends_unevenly(reports):
    # Of period 3, in two calls of `fit`; of which the second begins when the
    # first has ended for all. Who has ended takes part with nothing.
    assert [r["uneven"]["local_steps"] for r in reports["ring"]] == [
        [3, 3, 1, 3, 3, 1],
        [3, 1, 0, 3, 1, 0],
        [3, 3, 3, 3, 3, 3],
    ]


def test_an_exchange_sends_small_vectors_to_both_others(reports):
    report = reports["ring"][0]["diloco"]
    # Each tensor begins at a multiple of 64 bytes.
    row = 64
    sizes = [4 * np.size(weight) for weight in report["weights"]]
    rows = sum(-(-size // row) for size in sizes)
    # The call, nine float64; the step counter, and the chief's rate in two
    # halves, the same; parameters and moving statistics, as float32.
    sent = 2 * (9 * 8 + row + 2 * 8 + row * rows)
    assert all(sizes == [sent] * 2 for sizes in report["bytes"])


def test_workers_that_do_not_come_are_named(cluster):
    alone = cluster(num_ps=0, num_workers=2)
    worker = alone.start("worker", 0, "ring_tasks:start_alone")
    error = worker.wait_for_report()["error"]
    assert f"worker /job:worker/task:1 at {alone.address('worker', 1)}" in error


def test_workers_that_train_in_another_way_are_refused(cluster):
    running = cluster(num_ps=0, num_workers=2)
    for index in range(2):
        running.start(
            "worker", index, "ring_tasks:train_other", period=index + 2
        )
    for worker in running.tasks:
        assert "same way" in worker.wait_for_report()["error"]


def test_each_worker_frees_models_at_a_moment_of_its_own(cluster):
    running = cluster(num_ps=0, num_workers=3)
    for index in range(3):
        running.start(
            "worker", index, "ring_tasks:one_after_the_other", models=5
        )
    reports = [worker.wait_for_report() for worker in running.tasks]
    weights = reports[0]["weights"]
    each = reports[1]["variables"][0]
    assert each > 0
    for worker, report in enumerate(reports):
        assert report["weights"] == weights
        # A deleted model leaves nothing; those kept are as they were.
        assert report["seen"] == weights[5 - worker :]
        assert report["variables"] == [
            each * min(number + 1, worker) for number in range(5)
        ]
    assert reports[0]["functions"] < 10
