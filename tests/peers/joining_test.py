"""Workers that come while others train: each update counts once on each."""

import pytest

from tests.peers import sums

pytestmark = pytest.mark.nightly

TRAIN = "tests.peers.faults:train"
THRESHOLD = "threshold(tau=0.0625)"


def check_accounts(reports):
    """Of each pair the sender and the receiver count the same updates."""
    for me, report in reports.items():
        counts = report["counts"]
        for other, theirs in reports.items():
            if other == me:
                continue
            name = f"/job:worker/task:{other}"
            mine = f"/job:worker/task:{me}"
            came = counts["fetched"][name] + counts["applied"][name]
            assert came == theirs["counts"]["sent"], (me, other)
            assert counts["missed"][name] == 0
            sent = theirs["counts"]["before"][mine]
            sent += theirs["counts"]["delivered"][mine]
            assert sent == theirs["counts"]["sent"], (me, other)


@pytest.mark.parametrize("compression", [None, THRESHOLD])
def test_a_worker_joins_and_all_end_at_the_sum(cluster, compression):
    running = cluster(num_ps=0, num_workers=3)
    settings = {
        "compression": compression,
        "warmup_peers": 2,
        "pace": 0.005,
        "until": "stop",
    }
    workers = [
        running.start("worker", k, TRAIN, steps=10**6, **settings)
        for k in range(2)
    ]
    for worker in workers:
        worker.wait_for_steps(30)
    workers.append(running.start("worker", 2, TRAIN, steps=10**6, **settings))
    workers[2].wait_for_steps(40)
    running.tell("stop")
    running.finish()
    reports = {k: worker.report() for k, worker in enumerate(workers)}
    assert min(reports[2]["counts"]["fetched"].values()) >= 20
    check_accounts(reports)
    expected = sums.sum_of(reports).tolist()
    for report in reports.values():
        assert report["replica"] == expected
        assert report["after"] == expected
