"""Who looks at the data, or at other weights, changes nothing for anybody."""

import pytest

from tests.multi_process import looking_tasks

pytestmark = pytest.mark.nightly

# In which each batch is trained on once.
ONCE = ["shuffled", "hasty", "counted", "shuffled by Keras"]


def test_each_batch_counts_once_whoever_has_looked(cluster):
    made = cluster(num_workers=2)
    made.start_servers()
    workers = made.start_workers("looking_tasks:look", kinds=[*ONCE, "drawn"])
    made.finish()
    first, second = (worker.report() for worker in workers)
    for kind in ONCE:
        wanted = looking_tasks.ALL
        if kind == "counted":
            wanted = looking_tasks.COUNTED
        for mine, theirs in zip(
            first["found"][kind], second["found"][kind], strict=True
        ):
            assert sorted(mine + theirs) == wanted, kind
            assert mine and theirs
    warning = "first batch of the PyDataset is another one here"
    assert warning in workers[1].output()
    trained = sum(
        sum(epoch)
        for report in (first, second)
        for epochs in report["found"].values()
        for epoch in epochs
    )
    assert first["weight"] == second["weight"] == -trained
    # Of two workers, 4 epochs of 5 steps with a gradient of one.
    assert first["swapped"] == second["swapped"] == -trained - 40
