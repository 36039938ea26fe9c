"""Servers that are killed and come back, in the midst of `fit`."""

import pytest

from tests.multi_process import recovery_tasks


@pytest.mark.parametrize("killed", [(0,), (1,)])
@pytest.mark.parametrize("strategy", recovery_tasks.STRATEGIES)
def test_training_goes_on_when_servers_come_back(
    cluster, tmp_path, strategy, killed
):
    made = cluster(num_ps=2, num_workers=2)
    kept = str(tmp_path / "snapshots")
    settings = {"directory": kept, "every": 0.5}
    servers = [
        made.start("ps", k, "recovery_tasks:serve", **settings)
        for k in range(2)
    ]
    workers = made.start_workers(
        "recovery_tasks:train", strategy=strategy, pace=0.01
    )
    for worker in workers:
        worker.wait_for_steps(30)
    for index in killed:
        servers[index].kill()
    for index in killed:
        made.start("ps", index, "recovery_tasks:serve", **settings)
    steps = [worker.steps() for worker in workers]
    for worker, number in zip(workers, steps, strict=True):
        worker.wait_for_steps(number + 50)
    made.tell("stop")
    made.finish()
    for worker in workers:
        report = worker.report()
        report.pop("weights")
        print(strategy, killed, report)
        print(
            "\n".join(
                l
                for l in worker.output().splitlines()
                if "WARNING:" in l or "Error" in l
            )
        )
