"""Features that share a table, on real servers."""

import numpy as np
import pytest

from tests.multi_process import bag_tasks


@pytest.mark.nightly
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
def test_rows_are_the_sums_of_all_weights(cluster, dynamic, sparse):
    """SGD at a rate of one: minus the weights with which an id came."""
    made = cluster(num_ps=2, num_workers=2)
    made.start_servers()
    workers = made.start_workers(
        "bag_tasks:train", dynamic=dynamic, sparse=sparse
    )
    made.finish(240.0)
    ids, weights, items = bag_tasks.examples()
    sums = np.zeros(bag_tasks.ROWS)
    np.add.at(sums, ids.values, weights.values)
    np.add.at(sums, items, 1)
    expected = -bag_tasks.EPOCHS * np.repeat(
        sums[:, None], bag_tasks.WIDTH, axis=1
    )
    assert 0 < np.count_nonzero(sums) < bag_tasks.ROWS
    for worker in workers:
        report = worker.report()
        np.testing.assert_array_equal(report["rows"], expected)
        # Each batch is one push, which reaches both servers.
        first, second = report["updates"]
        assert first == second
