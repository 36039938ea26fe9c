import pytest

from tests.multi_process.conftest import cluster
from tests.multi_process.conftest import zygote
from tests.multi_process.link import Link

__all__ = ["cluster", "zygote"]


@pytest.fixture
def send_twice(cluster):
    """Trains two workers, the first of which sends a message again.

    Called with what they run; returns both when they have ended.
    """

    def train(target):
        running = cluster(num_ps=0, num_workers=2)
        there = [running.address("worker", index) for index in range(2)]
        here = running.another_address()
        # An attempt takes a third of the timeout.
        settings = {"steps": 400, "pace": 0.02, "worker_timeout": 15.0}
        # The first one reaches the second by a link.
        workers = [
            running.start_by_other_ways(
                "worker", 0, {"worker": [there[0], here]}, target, **settings
            ),
            running.start("worker", 1, target, **settings),
        ]
        workers[0].expect("serves on port")
        with Link(here, there[1]) as link:
            for worker in workers:
                worker.wait_for_steps(20)
            link.cut_way_back()
            workers[0].expect("/job:worker/task:1 does not answer")
            link.heal()
            running.finish()
        return workers

    return train
