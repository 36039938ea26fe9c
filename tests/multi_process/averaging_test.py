"""Local steps on real clusters: what comes out, and who dies in between.

Where every gradient is one and every worker takes `PERIOD` steps, each update
moves all parameters by that, whoever is in it: other numbers show a step that
was lost, or counted twice.
"""

import numpy as np
import pytest

from tests.averaging import oracles
from tests.multi_process.synchronization_tasks import regression
from tests.runtime.exchange.delay_test import gradient

WORKERS, SERVERS, PERIOD, RATE = 3, 2, 5, 0.05
WEIGHTS = 7 + 3 * 5  # Of `synchronization_tasks.SHAPES`.
# Longer than connections between servers bear pings without data.
TIMEOUT = 25.0
START = np.array([1.0, 1.0, 1.0, 0.0])


def start_cluster(cluster):
    """A cluster whose servers run."""
    made = cluster(num_ps=SERVERS, num_workers=WORKERS)
    made.start_servers()
    return made


def data_of(worker, steps, batch_size):
    """List of the (x, y) that `averaging_tasks.regress` trains on."""
    x, y = regression(worker, steps, batch_size)
    return list(zip(x, y, strict=True))


@pytest.mark.nightly
def test_rounds_are_averages_of_parameters(cluster):
    """DiLoCo, with batches of different sizes, and a rest of a period."""
    sizes, steps = (4, 2, 3), 14
    made = start_cluster(cluster)
    workers = made.start_workers(
        "averaging_tasks:regress",
        name="DiLoCoStrategy",
        arguments={"period": PERIOD},
        optimizer={"class_name": "Adam", "config": {"learning_rate": RATE}},
        batch_sizes=sizes,
        steps=steps,
    )
    made.finish()
    reports = [worker.report() for worker in workers]
    oracle = oracles.Averaging(
        START,
        WORKERS,
        gradient,
        lambda: oracles.Adam(RATE),
        oracles.DiLoCo(START),
    )
    data = [data_of(k, steps, size) for k, size in enumerate(sizes)]
    rounds = [
        oracle.round([mine[first : first + PERIOD] for mine in data])
        for first in range(0, steps, PERIOD)
    ]
    # In the middle of a period everybody shows what it began from.
    shown = [START] * PERIOD + [rounds[0]] * PERIOD + [rounds[1]] * PERIOD
    for report in reports:
        np.testing.assert_allclose(
            report["shown"], [*shown, rounds[2]], rtol=1e-4, atol=1e-5
        )
        np.testing.assert_allclose(
            report["weights"], rounds[2], rtol=1e-4, atol=1e-5
        )
        assert report["local_steps"] == [5, 5, 4]
        assert report["updates"] == [3, 3]
        assert set(report["placement"]) == {0, 1}
        assert report["iterations"] == steps
        for counts in report["counts"].values():
            expected = {"pushed": 3, "accepted": 3, "dropped": 0}
            late = {"nonfinite": 0, "staleness": counts["staleness"]}
            assert counts == {**expected, **late}


class ElasticReplay:
    """Algorithm 1 of EASGD, every server with an order of its own.

    Args:
        reports: of the workers.
        batch_sizes: by worker.
        steps: of each worker.
        alpha: the moving rate of a worker.
    """

    def __init__(self, reports, batch_sizes, steps, alpha):
        self._reports, self._alpha, self._steps = reports, alpha, steps
        self._data = [
            data_of(k, steps, size) for k, size in enumerate(batch_sizes)
        ]
        kernel, bias = reports[0]["placement"]
        self._server_of = np.array([kernel] * 3 + [bias])
        self.centre = START.copy()
        self._updates = [0] * SERVERS
        self.own = [START] * WORKERS

    def run(self):
        """Replays everything; returns how many exchanges there were."""
        done = [0] * WORKERS
        total = sum(len(report["versions"]) for report in self._reports)
        workers = [self._worker(k) for k in range(WORKERS)]
        for worker in workers:
            next(worker)
        for _ in range(total * SERVERS * WORKERS):
            for k, worker in enumerate(workers):
                done[k] = next(worker, done[k])
            if sum(done) == total:
                return total
        raise AssertionError(f"{done} of {total}: no order of updates fits")

    def _worker(self, k):
        """Goes on as far as the orders of the servers let it."""
        versions, step = self._reports[k]["versions"], 0
        w = self.own[k]
        for number, wanted in enumerate(versions):
            count = self._reports[k]["local_steps"][number]
            for _ in range(count):
                point = w
                w = w - RATE * gradient(w, *self._data[k][step])
                step += 1
            if count < PERIOD:
                point = w  # What is left at the end has no step.
            moved = w.copy()
            waiting = set(range(SERVERS))
            while waiting:
                for server in sorted(waiting):
                    if self._updates[server] == wanted[server] - 1:
                        at = self._server_of == server
                        force = self._alpha * (point - self.centre)[at]
                        moved[at] = w[at] - force
                        self.centre[at] += force
                        self._updates[server] += 1
                        waiting.remove(server)
                if waiting:
                    yield number
            self.own[k] = w = moved
        assert step == self._steps
        yield len(versions)


@pytest.mark.nightly
def test_elastic_averaging_in_the_order_of_the_servers(cluster):
    sizes, steps = (4, 2, 3), 33
    made = start_cluster(cluster)
    workers = made.start_workers(
        "averaging_tasks:regress",
        name="ElasticAveragingStrategy",
        arguments={"period": PERIOD},
        optimizer={"class_name": "SGD", "config": {"learning_rate": RATE}},
        batch_sizes=sizes,
        steps=steps,
        paces=(0.0, 0.003, 0.006),
    )
    made.finish()
    reports = [worker.report() for worker in workers]
    replay = ElasticReplay(reports, sizes, steps, 0.9 / WORKERS)
    total = replay.run()
    assert total == WORKERS * 7
    for k, report in enumerate(reports):
        assert report["local_steps"] == [PERIOD] * 6 + [3]
        assert report["updates"] == [total] * SERVERS
        assert report["iterations"] == steps
        # All see the centre in the end, and keep their own.
        np.testing.assert_allclose(
            report["weights"], replay.centre, rtol=1e-4, atol=1e-5
        )
        np.testing.assert_allclose(
            report["own"], replay.own[k], rtol=1e-4, atol=1e-5
        )


def start(made, index, until, arguments=None, worker_timeout=60.0, **more):
    """Starts a worker that pushes ones."""
    return made.start(
        "worker",
        index,
        "averaging_tasks:train",
        method="Sync",
        arguments=arguments or {},
        period=PERIOD,
        until=until,
        worker_timeout=worker_timeout,
        **more,
    )


def check_exact(reports, moved):
    """Checks that parameters have moved so far, and that counts add up."""
    for report in reports:
        assert {w for part in report["weights"] for w in part} == {-moved}
        assert len(set(report["updates"])) == 1
        for counts in report["counts"].values():
            assert counts["pushed"] == counts["accepted"] + counts["dropped"]


@pytest.mark.nightly
def test_a_worker_dies_between_two_averagings_and_one_comes_back(cluster):
    made = start_cluster(cluster)
    # They go on from the fourth averaging when there is a second life.
    others = [
        start(made, k, 40, worker_timeout=TIMEOUT, await_push={"21": [2, 2]})
        for k in (0, 1)
    ]
    victim = start(made, 2, 40, hold=7)
    victim.expect("holding")
    # The others are at the second averaging and wait for it.
    victim.kill()
    for other in others:
        other.wait_for_steps(21)
    second = start(made, 2, until=10)
    made.finish()
    reports = [worker.report() for worker in (*others, second)]
    check_exact(reports, moved=40)
    # Its first gradient is that of the current parameters.
    assert second.report()["losses"][0] == -20 * WEIGHTS
    assert second.report()["accepted"] == [True, True]
    # Where the others are, it begins to count.
    assert [report["iterations"] for report in reports] == [40, 40, 30]
    for report in reports:
        assert report["updates"] == [8, 8]
        pushed = [c["pushed"] for c in report["counts"].values()]
        # Of the first life one, of the second two.
        assert pushed == [8, 8, 3]
    assert others[0].report()["local_steps"] == [PERIOD] * 8


@pytest.mark.nightly
def test_data_that_ends_at_different_times(cluster):
    """What is left of a period counts by its examples; nobody hangs."""
    made = start_cluster(cluster)
    short = start(made, 0, until=7, batch_size=2)
    # It says nothing at its end: its process just ends.
    start(made, 1, until=18, end="exit")
    # It comes to the fourth averaging after that one.
    long = start(made, 2, until=31, await_push={"19": [1, 4]})
    made.finish()
    # Steps times examples over examples, where not all take 5 steps.
    second = (2 * 4 + 5 * 5 + 5 * 5) / (4 + 5 + 5)
    fourth = (3 * 3 + 5 * 5) / (3 + 5)
    moved = 5 + second + 5 + fourth + 5 + 5 + 1
    reports = [short.report(), long.report()]
    for report in reports:
        for part in report["weights"]:
            np.testing.assert_allclose(part, -moved, rtol=1e-6)
        assert report["updates"] == [7, 7]
        counts = [c["pushed"] for c in report["counts"].values()]
        accepted = [c["accepted"] for c in report["counts"].values()]
        assert counts == accepted == [2, 4, 7]
    assert [report["iterations"] for report in reports] == [7, 31]
    assert short.report()["local_steps"] == [5, 2]
    assert long.report()["local_steps"] == [5] * 6 + [1]
