"""Processes of benchmarks: none is waited for in vain."""

import os
import time

from harness import children
import pytest


def build(action):
    """Builds a child that answers, fails or stands still."""

    def act():
        if action == "fail":
            raise ValueError("the reason")
        if action == "stand still":
            time.sleep(60)
        return action

    return act


@pytest.fixture
def start():
    started = []

    def make(*actions):
        for action in actions:
            started.append(children.Child(action, build, action))
        children.answers(started)
        for child in started:
            child.tell()
        return started

    yield make
    for child in started:
        child.kill()


def test_answers_are_in_the_order_of_who_was_asked(start):
    assert children.answers(start("b", "a"), 60.0) == ["b", "a"]


def test_who_waits_for_one_that_failed_is_not_waited_for(start):
    asked = start("stand still", "fail")
    with pytest.raises(children.ChildError, match="ValueError: the reason"):
        children.answers(asked, 30.0)


def test_the_wait_for_answers_is_bounded(start):
    asked = start("stand still")
    with pytest.raises(children.ChildError, match="not answer within 0.2 s"):
        children.answers(asked, 0.2)


@pytest.mark.nightly
def test_cpu_seconds_are_those_of_the_process():
    before = sum(children.cpu_seconds(os.getpid()))
    began = time.process_time()
    while time.process_time() - began < 0.2:
        pass
    after = sum(children.cpu_seconds(os.getpid()))
    used = time.process_time() - began
    # Each of four numbers may be a tick of 10 ms too low.
    assert after - before == pytest.approx(used, abs=0.05)
