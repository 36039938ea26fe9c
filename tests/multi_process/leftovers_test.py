"""Gradients of workers that died in mid-step do not stay on the servers."""

import signal

import pytest

pytestmark = pytest.mark.nightly


def test_what_dead_workers_have_left_is_freed(cluster):
    made = cluster(num_ps=2, num_workers=3)
    made.start_servers()
    going = made.start("worker", 0, "leftover_tasks:look")

    def die(index, when):
        life = made.start("worker", index, "leftover_tasks:die", when=when)
        assert life.wait() == -signal.SIGKILL, life.output()

    # One that does not come back, and one that does, to die again.
    die(2, "before")
    die(1, "before")
    die(1, "after")
    die(1, "before")
    made.tell("look")
    report = going.wait_for_report()
    assert report["now"] == [0, 0]
    # There was something to be freed.
    assert min(report["most"]) >= 1
    assert going.wait() == 0, going.output()
