"""A worker's model may be on several devices; its servers do not care."""


def test_a_placed_worker_beside_one_that_is_not(cluster):
    made = cluster(num_ps=2, num_workers=2)
    made.start_servers()
    workers = made.start_workers("placement_tasks:train", placed=[True, False])
    made.finish()
    one, other = [worker.report() for worker in workers]
    for report in (one, other):
        assert report["iterations"] == 8
        assert report["difference"] < 1e-5
    here = "/job:worker/replica:0/task:0/device:"
    assert one["devices"]["conv/kernel"] == f"{here}CPU:1"
    assert one["devices"]["normal/gamma"] == f"{here}CPU:2"
    assert one["devices"]["normal/moving_mean"] == f"{here}CPU:2"
    assert one["devices"]["head/kernel"] == f"{here}CPU:2"
    assert {d[-5:] for d in other["devices"].values()} == {"CPU:0"}
    assert ["worker:0/CPU:1", "worker:0/CPU:2"] in one["crossings"]
    assert not other["crossings"]
