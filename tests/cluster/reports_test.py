"""Reports that tasks leave for each other on the first server."""

import types

import tensorflow as tf

from tfdist.cluster import reports

NAMES = ("/job:worker/task:0", "/job:worker/task:1")


def test_a_server_that_has_lost_reports_gets_the_last_ones_back():
    config = types.SimpleNamespace(
        spec={}, task_name=NAMES[1], worker_names=NAMES
    )
    board = reports.Reports("/cpu:0", config)
    for epoch in (1, 2):
        board.publish("epochs", {"epoch": epoch})
    expected = {NAMES[1]: {"epoch": 2}}
    assert board.collect("epochs") == expected
    with tf.device("/cpu:0"):
        tf.raw_ops.DestroyResourceOp(resource=board._handle("epochs", 1))
    assert board.collect("epochs") == {}
    board.publish_again()
    assert board.collect("epochs") == expected
