"""Clusters start, however their processes come at the same moment.

A bare `tf.distribute.Server` dies of a segmentation fault in 9 to 50 of 100
starts when its first clients connect together.
"""

import random
import time

import pytest

from tests import nightly
from tests.multi_process.real_cluster import ClusterUnderTest

pytestmark = pytest.mark.nightly

SECONDS = 60.0


@pytest.fixture
def rounds(request):
    """Half the number of starts that the command line asks for."""
    return max(1, request.config.getoption("--startup_rounds") // 2)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("servers_are_up", nightly.also([False], [True]))
def test_no_start_fails(zygote, tmp_path, rounds, servers_are_up):
    generator = random.Random(rounds)
    failures = []
    for number in range(rounds):
        directory = tmp_path / str(number)
        directory.mkdir()
        with ClusterUnderTest(
            zygote,
            directory,
            num_ps=1 + number % 2,
            num_workers=2 + number % 3,
        ) as cluster:
            try:
                start(cluster, servers_are_up, generator)
                cluster.finish(SECONDS)
            except AssertionError as error:
                failures.append(f"start {number}: {error}")
    assert not failures, f"{len(failures)} of {rounds}:\n" + "\n".join(failures)


def start(cluster, servers_are_up, generator):
    """Starts the servers, and workers that connect at the same moment."""
    servers = cluster.start_servers() if servers_are_up else []
    workers = [
        # Two at the same moment, the others on their heels.
        cluster.start(
            "worker",
            index,
            "tasks:connect_and_finish",
            delay=generator.uniform(0.0, 0.1) if index > 1 else 0.0,
        )
        for index in range(cluster.num_workers)
    ]
    for server in servers:
        server.expect("serves on port")
    for worker in workers:
        worker.wait_for_report()
    if not servers_are_up:
        cluster.start_servers()
        # From before the first server's process runs to after it listens.
        time.sleep(generator.uniform(0.0, 0.3))
    cluster.tell("go")
