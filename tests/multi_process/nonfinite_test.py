"""Workers that push NaN to real servers, and in a ring."""

import numpy as np
import pytest

from tests.multi_process.real_cluster import ClusterUnderTest

pytestmark = pytest.mark.nightly

NAMES = ("/job:worker/task:0", "/job:worker/task:1")


@pytest.fixture(scope="module")
def workers(zygote, tmp_path_factory):
    """The two workers that have trained with two servers."""
    return run(zygote, tmp_path_factory, 2, "nonfinite_tasks:train_on_servers")


def run(zygote, tmp_path_factory, num_ps, task):
    """Runs a task on two workers; returns the workers."""
    with ClusterUnderTest(
        zygote, tmp_path_factory.mktemp("run"), num_ps=num_ps, num_workers=2
    ) as cluster:
        cluster.start_servers()
        workers = cluster.start_workers(task)
        cluster.finish(150.0)
        return workers


def counts_of(accepted, nonfinite):
    return {
        "pushed": accepted + nonfinite,
        "accepted": accepted,
        "dropped": nonfinite,
        "nonfinite": nonfinite,
    }


def test_an_update_is_refused_by_all_servers_or_by_none(workers):
    for worker in workers:
        report = worker.report()["async"]
        assert report["servers"] == [0, 1]
        # 5 gradients of worker 0, and 3 of worker 1: neither the part that
        # is on one server nor the part on the other of what has a NaN.
        assert report["parts"] == [[-(5 * 1.0 + 3 * 4.0)], [-(5 * 1.0 + 6.0)]]
        assert report["seen"] == [5 * 1.0 + 3 * 4.0, 5 * 1.0 + 3 * 2.0]
        assert report["updates"] == [8, 8]
        assert report["iterations"] == 8


@pytest.mark.parametrize("method", ["async", "sync"])
def test_counts_are_exact_and_known_to_all(workers, method):
    expected = {NAMES[0]: counts_of(5, 1), NAMES[1]: counts_of(3, 3)}
    for number, worker in enumerate(workers):
        report = worker.report()[method]
        assert report["counts"] == expected
        finite = [[True, True, True, True, False, True]]
        finite += [[True, False, False, True, False, True]]
        assert report["exchanges"] == [[f, not f] for f in finite[number]]


def test_what_does_not_concern_a_server_is_not_lost_there(workers):
    for worker in workers:
        report = worker.report()["on one"]
        before, after = report["before"], report["after"]
        assert before["elsewhere"] == before["lost"] == after["lost"] == [0, 0]
        assert after["pushed"] - before["pushed"] == 3
        assert after["dropped"] - before["dropped"] == 1
        applied = np.subtract(after["applied"], before["applied"]).tolist()
        assert applied == [2, 0]
        assert after["elsewhere"] == [0, 2]


def test_nobody_waits_for_an_update_that_is_refused(workers):
    """Rounds of Sync take what is finite; none is made of nothing."""
    for worker in workers:
        report = worker.report()["sync"]
        first, second = (1 + 4) / 2, (1 + 2) / 2
        # Steps 0, 3 and 5 of both; 1 and 2 of worker 0; 4 of nobody.
        assert report["parts"] == [[-(3 * first + 2)], [-(3 * second + 2)]]
        assert report["updates"] == [5, 5]
        assert report["iterations"] == 5


def test_the_worker_whose_update_it_is_is_named(workers):
    clean, poisoned = (worker.output() for worker in workers)
    of_async = poisoned.split("begins async")[1].split("begins sync")[0]
    assert f"{NAMES[1]}: the update of this step is not finite" in of_async
    assert "two_sums/part1" in of_async
    assert f"{NAMES[1]}: the update" not in clean
    # One line in some seconds, not one for each step.
    assert of_async.count("not finite") < 3


def test_fail_ends_the_worker_and_not_the_others(workers):
    other, failed = (worker.report()["fail"] for worker in workers)
    assert other["error"] is None
    assert f"{NAMES[1]}: the update of this step is not" in failed["error"]
    # Nothing of its second step was sent.
    assert other["counts"] == {
        NAMES[0]: counts_of(4, 0),
        NAMES[1]: counts_of(1, 0),
    }
    assert other["parts"] == [[-(2.5 + 3)], [-(1.5 + 3)]]


def test_a_ring_averages_what_is_finite(zygote, tmp_path_factory):
    found = run(zygote, tmp_path_factory, 0, "nonfinite_tasks:train_in_a_ring")
    for number, worker in enumerate(found):
        report = worker.report()["ring"]
        # Periods of two steps, of which worker 0's are finite, and one step
        # that is left when `fit` has ended, which is nobody's.
        assert report["parts"] == [[-4.0], [-4.0]]
        assert report["seen"] == [4.0, 4.0]
        assert report["updates"] == [2]
        finite = [[True, True, False], [False, False, False]][number]
        assert report["exchanges"] == [[f, not f] for f in finite]
        assert report["counts"] == {
            NAMES[number]: counts_of(finite.count(True), finite.count(False))
        }
