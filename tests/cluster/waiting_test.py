"""Waits end in time and say what they wait for; in virtual time."""

import logging

import pytest

from tfdist.cluster import waiting


class Clock:
    """A clock that only sleeping moves."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        assert seconds > 0
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(waiting, "time", clock)
    return clock


def never():
    return False


def test_what_is_true_at_once_costs_no_wait(clock):
    value = waiting.wait_until(lambda: "value", what="x", timeout=1.0)
    assert value == "value"
    assert clock.now == 1000.0


def test_the_true_value_is_returned_when_it_comes(clock):
    value = waiting.wait_until(
        lambda: clock.now if clock.now > 1003.0 else None,
        what="x",
        timeout=10.0,
    )
    assert 1003.0 < value < 1003.5


def test_giving_up_names_what_was_waited_for_and_the_hint(clock):
    with pytest.raises(TimeoutError) as caught:
        waiting.wait_until(
            never, what="the chief", timeout=2.5, hint="Is it running?"
        )
    message = "Gave up after 2.5 s waiting for the chief. Is it running?"
    assert str(caught.value) == message
    assert 1002.5 <= clock.now <= 1003.0


def test_without_a_hint_the_message_ends_with_what(clock):
    with pytest.raises(TimeoutError, match=r"waiting for the chief\.$"):
        waiting.wait_until(never, what="the chief", timeout=1.0)


def test_what_may_change_while_it_is_waited_for(clock):
    with pytest.raises(TimeoutError, match="waiting for task 1004"):
        waiting.wait_until(
            never, what=lambda: f"task {int(clock.now)}", timeout=4.0
        )


def test_progress_is_told_every_few_seconds(clock, caplog):
    with caplog.at_level(logging.WARNING, logger="absl"):
        with pytest.raises(TimeoutError):
            waiting.wait_until(never, what="ps 3", timeout=17.0)
    messages = [record.getMessage() for record in caplog.records]
    assert messages == [
        f"Waiting for ps 3 ({seconds} s of at most 17 s)."
        for seconds in (5, 10, 15)
    ]


def test_a_short_wait_is_silent(clock, caplog):
    waiting.wait_until(lambda: clock.now > 1003.0, what="x", timeout=9.0)
    assert not caplog.records


def test_errors_of_the_condition_are_its_own(clock):
    def fail():
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        waiting.wait_until(fail, what="x", timeout=1.0)
