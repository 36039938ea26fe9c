"""Servers forget the functions of models that nobody uses any more."""

import pytest

from tests.multi_process import kernels_tasks

pytestmark = pytest.mark.nightly

ROUNDS = 3
MODELS = 6


def test_servers_forget_functions_and_keep_values(cluster):
    made = cluster(num_ps=1, num_workers=1)
    (server,) = made.start_servers()
    worker = made.start(
        "worker",
        0,
        "kernels_tasks:many_models",
        rounds=ROUNDS,
        models=MODELS,
        server=server.pid,
    )
    made.finish()
    report = worker.report()
    steps = ROUNDS * kernels_tasks.STEPS
    assert report["iterations"] == steps
    for part in report["parts"]:
        assert set(part) == {-1.0 * steps}
    assert report["local"] == 3.0
    # Each of 12 models would have left 4 MiB, 48 in all.
    first, *_, last = report["memory"]
    assert last - first < 32.0
