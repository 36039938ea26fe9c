"""Calls before `fit` that bring values to a worker before the chief's last."""

import pytest

from tests.multi_process.real_cluster import ClusterUnderTest

pytestmark = pytest.mark.nightly


def _reports(zygote, directory, function, **arguments):
    with ClusterUnderTest(zygote, directory, num_workers=2) as cluster:
        cluster.start_servers()
        workers = cluster.start_workers(
            f"before_fit_tasks:{function}", **arguments
        )
        cluster.finish()
    return [worker.report() for worker in workers]


@pytest.mark.parametrize("all_evaluate", [True, False])
@pytest.mark.parametrize(
    "method", ["AsyncStrategy", "ElasticAveragingStrategy"]
)
def test_what_the_chief_sets_before_the_first_fit_is_trained_by_all(
    zygote, tmp_path, method, all_evaluate
):
    """With elastic averaging others would draw the weights to their own."""
    reports = _reports(
        zygote,
        tmp_path,
        "set_after_evaluation",
        method=method,
        all_evaluate=all_evaluate,
    )
    # The loss is the sum of three weights.
    for report in reports:
        assert set(report["losses"]) == {3.0}
        assert report["after"] == 3.0


@pytest.mark.parametrize(
    ("callback", "warmup_steps", "compiles_anew"),
    [
        ("BackupAndRestore", 0, False),
        ("BackupAndRestore", 3, False),
        (None, 0, True),
    ],
)
def test_a_worker_that_looks_or_waits_before_fit_does_not_stop_the_chief(
    zygote, tmp_path, callback, warmup_steps, compiles_anew
):
    reports = _reports(
        zygote,
        tmp_path,
        "look_alone",
        callback=callback,
        warmup_steps=warmup_steps,
        compiles_anew=compiles_anew,
    )
    # Two epochs of four steps; together where workers wait for each other.
    applied = 4 + 8 if compiles_anew else 2 * 8
    assert [report["applied"] for report in reports] == [[applied]] * 2


def test_local_steps_go_on_counting_where_the_saved_run_was(zygote, tmp_path):
    for epochs, steps in ((2, [0, 4]), (3, [8])):
        reports = _reports(zygote, tmp_path, "count_steps", epochs=epochs)
        assert [report["steps"] for report in reports] == [steps] * 2
