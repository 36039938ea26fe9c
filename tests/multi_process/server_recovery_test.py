"""Servers that are killed and come back, in the midst of `fit`."""

import pytest

from tests.multi_process.server_failure_test import start_training


@pytest.mark.parametrize("killed", [(1,)])
def test_training_goes_on_when_servers_come_back(cluster, killed):
    made = cluster(num_ps=2, num_workers=2)
    servers, workers = start_training(made)
    for index in killed:
        servers[index].kill()
    for index in killed:
        made.start("ps", index, "tasks:serve")
    steps = [worker.steps() for worker in workers]
    for worker, number in zip(workers, steps, strict=True):
        worker.wait_for_steps(number + 50)
    made.tell("stop")
    made.finish()
    for worker in workers:
        print(worker.output()[-3000:])
        print(worker.report()["updates"])
    assert 0
