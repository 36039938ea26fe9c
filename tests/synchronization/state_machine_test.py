"""The one state machine, as graphs on servers and virtual clusters ask it."""

import itertools

import pytest
import tensorflow as tf

from tests.synchronization.virtual_cluster import Cluster
from tfdist.synchronization import Sync
from tfdist.synchronization import events
from tfdist.synchronization.state_machine import Decisions

TOLD = ("working", "leaving", "joining", "preempted")
PATIENCE = events.Patience.of_seconds(silent=60, missing=300, idle=600)


def clusters():
    """Some whose worker 0 waits, computes, and is gone."""
    waits, computes, gone = (Cluster(Sync(), 3) for _ in range(3))
    waits.step(0)
    computes.step(1)
    gone.leave(0)
    return waits, computes, gone


@pytest.mark.nightly
def test_what_is_told_may_be_known_by_the_graph_alone():
    """A server's heartbeat says all at once what a virtual one says of it."""
    decisions = Decisions(Sync(), PATIENCE)
    for cluster in clusters():
        state = cluster.tensors()
        attendance = events.Attendance(
            tf.constant(cluster.now + 9),
            tf.constant(cluster.heard),
            tf.constant(cluster.ended),
        )
        for told in itertools.product((False, True), repeat=len(TOLD)):
            wanted, found = (
                decisions.tick(
                    state,
                    attendance,
                    0,
                    **{k: of(v) for k, v in zip(TOLD, told, strict=True)},
                )
                for of in (bool, tf.constant)
            )
            assert found.pack().numpy().tolist() == (
                wanted.pack().numpy().tolist()
            )


def test_who_leaves_as_it_is_told_to_has_left_by_plan():
    """Which no event after the other gives: it has left when it is excused."""
    state = Cluster(Sync(), 2).tensors()
    attendance = events.Attendance(
        tf.constant(9, tf.int64),
        tf.ones([2], tf.int64),
        tf.zeros([2], tf.bool),
    )
    decisions = Decisions(Sync(), PATIENCE)
    left = decisions.tick(state, attendance, 1, leaving=True)
    told = decisions.tick(state, attendance, 1, leaving=True, preempted=True)
    assert left.enlisted.numpy().tolist() == [True, True]
    assert told.enlisted.numpy().tolist() == [True, False]
