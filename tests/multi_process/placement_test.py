"""A worker's model may be on several devices; its servers do not care."""

import pytest


@pytest.mark.nightly
def test_a_placed_worker_beside_one_that_is_a_pipeline(cluster):
    made = cluster(num_ps=2, num_workers=2)
    made.start_servers()
    workers = made.start_workers(
        "placement_tasks:train", how=["placed", "pipelined"]
    )
    made.finish()
    reports = [worker.report() for worker in workers]
    for report in reports:
        assert report["iterations"] == 8
        assert report["difference"] < 1e-5
    homes = [
        {"a": "CPU:1", "b": "CPU:2", "c": "CPU:2", "d": "CPU:1"},
        {"a": "CPU:1", "b": "CPU:1", "c": "CPU:2", "d": "CPU:2"},
    ]
    for number, (report, where) in enumerate(zip(reports, homes, strict=True)):
        here = f"/job:worker/replica:0/task:{number}/device:"
        for layer, device in where.items():
            assert report["devices"][f"{layer}/kernel"] == f"{here}{device}"
        worker = f"worker:{number}"
        assert [f"{worker}/CPU:1", f"{worker}/CPU:2"] in report["crossings"]
