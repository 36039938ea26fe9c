"""An epoch over the cluster sees each example once; workers agree after it."""

import numpy as np
import pytest

from tests.multi_process import data_tasks
from tests.multi_process.real_cluster import ClusterUnderTest

WORKERS = 3
# Of the model with BatchNormalization.
STEPS, CONSTANT = 5, 8.0


@pytest.fixture(scope="module")
def reports(zygote, tmp_path_factory):
    """What three workers saw of each kind of data."""
    directory = tmp_path_factory.mktemp("data")
    with ClusterUnderTest(
        zygote, directory, num_ps=2, num_workers=WORKERS
    ) as cluster:
        cluster.start_servers()
        workers = cluster.start_workers(
            "data_tasks:run", steps=STEPS, constant=CONSTANT
        )
        # Two programs, one after the other.
        cluster.finish(240.0)
        yield [worker.report() for worker in workers]


def epochs_of(reports, kind):
    """Returns, for each epoch, the ids that each worker saw."""
    seen = [report["seen"][kind] for report in reports]
    assert [len(epochs) for epochs in seen] == [data_tasks.EPOCHS] * WORKERS
    return list(zip(*seen, strict=True))


@pytest.mark.smoke
@pytest.mark.parametrize(
    "kind", [k for k in data_tasks.KINDS if k not in ("off", "uneven")]
)
def test_an_epoch_of_the_cluster_sees_each_example_once(reports, kind):
    for epoch in epochs_of(reports, kind):
        ids = sorted(i for worker in epoch for i in worker)
        assert ids == list(range(data_tasks.EXAMPLES))
        assert all(epoch), "a worker had nothing to do"


@pytest.mark.smoke
def test_files_stay_whole(reports):
    ends = np.cumsum(data_tasks.FILE_SIZES)
    for kind in ("file", "automatic file"):
        for epoch in epochs_of(reports, kind):
            owners = {}
            for worker, ids in enumerate(epoch):
                for file in np.searchsorted(ends, ids, side="right"):
                    owners.setdefault(int(file), set()).add(worker)
            assert all(len(workers) == 1 for workers in owners.values())


@pytest.mark.smoke
def test_fewer_files_than_workers_are_shared_by_batches(reports):
    for epoch in epochs_of(reports, "two files"):
        batches = [-(-len(ids) // data_tasks.BATCH_SIZE) for ids in epoch]
        # 13 of them.
        assert sorted(batches) == [4, 4, 5]


@pytest.mark.smoke
def test_data_that_is_not_shared_out_is_seen_by_every_worker(reports):
    for epoch in epochs_of(reports, "off"):
        for ids in epoch:
            assert sorted(ids) == list(range(data_tasks.EXAMPLES))


@pytest.mark.smoke
def test_data_for_validation_is_seen_whole_by_every_worker(reports):
    ids = np.arange(data_tasks.EXAMPLES)
    for report in reports:
        found = report["validation"]
        expected = np.mean((found["kernel"] * ids + found["bias"]) ** 2)
        for losses in found["losses"].values():
            np.testing.assert_allclose(losses, expected, rtol=1e-5)


@pytest.mark.smoke
def test_uneven_shares_hang_nobody(reports):
    for epoch in epochs_of(reports, "uneven"):
        batches = [-(-len(ids) // data_tasks.BATCH_SIZE) for ids in epoch]
        assert batches == list(data_tasks.UNEVEN)


@pytest.mark.nightly
def test_less_data_than_workers_is_refused_by_all_of_them(cluster):
    made = cluster(num_workers=2)
    made.start_servers()
    too_few = (
        "Argument `dataset` must have a batch (an element) for each worker of "
        "the cluster: make the batches smaller, or start fewer workers. "
        "Received: 1 for 2 workers"
    )
    files = (
        "Argument `dataset` must read a file for each worker of the cluster "
        "with `AutoShardPolicy.FILE`: use `AutoShardPolicy.DATA`, or start "
        "fewer workers. Received: fewer files than 2 workers"
    )
    for worker in made.start_workers("data_tasks:train_on_one_batch"):
        assert worker.wait() == 1
        # A thread may still log what has become of the other worker.
        assert f"\nValueError: {too_few}" in worker.output()
        report = worker.report()
        for message, expected in zip(
            report["messages"], [too_few, too_few, files, files], strict=True
        ):
            assert message.startswith(expected)
        # All before the first step.
        assert report["updates"] == [0]


@pytest.mark.smoke
def test_every_worker_evaluates_to_the_same_numbers(reports):
    first, *others = [report["evaluated"] for report in reports]
    for other in others:
        assert other["results"] == first["results"]
        assert other["predicted"] == first["predicted"]
        assert other["weights"] == first["weights"]
    # m <- 0.75 m + 0.25 c for each of the 15 steps, whoever takes it.
    expected = CONSTANT * (1.0 - 0.75 ** (WORKERS * STEPS))
    for column in (0, 2, 3):
        np.testing.assert_allclose(
            first["moving_mean"][column], expected, rtol=1e-6
        )
