import threading
import types

from absl import logging
import pytest

from tfdist.runtime.recovery import stall_watchdog

TIMEOUT = 600.0
LATE = stall_watchdog._LATE_SECONDS


class Clock:
    """Time in which the watchdog's thread looks once each time it is told."""

    def __init__(self):
        self.now = 100.0
        self._looks = threading.Semaphore(0)
        self._sleeps = threading.Semaphore(0)

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        """Is called by the watchdog: the end of a look."""
        del seconds
        self._sleeps.release()
        self._looks.acquire()

    def look(self, seconds=0.0):
        """Lets so much time pass, in which the watchdog looks now and then."""
        while seconds > LATE:
            self.pause(LATE)
            seconds -= LATE
        self.pause(seconds)

    def pause(self, seconds):
        """Lets so much time pass, and the watchdog look once."""
        self.now += seconds
        self._sleeps.acquire()
        self._looks.release()
        # It has looked when it sleeps again.
        self._sleeps.acquire()
        self._sleeps.release()


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(stall_watchdog, "time", made)
    return made


@pytest.fixture
def messages(monkeypatch):
    found = []
    monkeypatch.setattr(
        logging, "error", lambda text, *args: found.append(text % args)
    )
    return found


def watch(progress=lambda: 0, describe=None, fails=False):
    return stall_watchdog.Watchdog(
        "/job:worker/task:3",
        progress,
        describe or (lambda: "Waiting for /job:worker/task:1."),
        timeout=TIMEOUT,
        fails=fails,
    )


def test_a_call_without_progress_is_told_with_its_stack(clock, messages):
    dog = watch()
    hangs, ends = threading.Event(), threading.Event()

    def hang():
        before = dog.begin("train_function")
        hangs.set()
        ends.wait(120.0)
        dog.end(before)

    thread = threading.Thread(target=hang)
    thread.start()
    assert hangs.wait(120.0)
    clock.look()
    clock.look(TIMEOUT - 1)
    assert messages == []
    clock.look(1)
    # Again when the time has doubled, and not before.
    clock.look(TIMEOUT - 1)
    assert len(messages) == 1
    clock.look(1)
    for message, seconds in zip(messages, (600, 1200), strict=True):
        assert message.startswith(
            f"/job:worker/task:3 has made no progress for {seconds} s in "
            "train_function. Waiting for /job:worker/task:1. The stack:\n"
        )
        # Where the thread is that hangs, not the one that tells.
        assert "in hang\n" in message
        assert "in _tell\n" not in message
    ends.set()
    thread.join(120.0)
    # It has ended: nothing more is told.
    clock.look(10 * TIMEOUT)
    clock.look(10 * TIMEOUT)
    assert len(messages) == 2


def test_progress_within_a_call_is_no_stall(clock, messages):
    steps = iter(range(10**9))
    dog = watch(lambda: next(steps))
    before = dog.begin("train_function")
    for _ in range(5):
        clock.look(TIMEOUT)
    dog.end(before)
    assert messages == []


def test_time_between_calls_is_no_stall(clock, messages):
    dog = watch()
    dog.end(dog.begin("pull"))
    for _ in range(5):
        clock.look(TIMEOUT)
    # A call that begins now has all its time.
    before = dog.begin("pull")
    clock.look()
    clock.look(TIMEOUT - 1)
    dog.end(before)
    assert messages == []


def test_overlapping_calls_of_two_threads_are_both_over(clock, messages):
    dog = watch()
    begun, ends = threading.Event(), threading.Event()

    def evaluate():
        before = dog.begin("test_function")
        begun.set()
        ends.wait(120.0)
        dog.end(before)

    before = dog.begin("train_function")
    thread = threading.Thread(target=evaluate)
    thread.start()
    assert begun.wait(120.0)
    dog.end(before)
    ends.set()
    thread.join(120.0)
    clock.look()
    clock.look(TIMEOUT)
    assert messages == []


def test_time_in_which_the_process_was_stopped_is_no_stall(clock, messages):
    dog = watch()
    before = dog.begin("train_function")
    clock.look()
    clock.pause(10 * TIMEOUT)
    clock.look(TIMEOUT - LATE - 1)
    assert messages == []
    # Servers let it wait before that as well as after it.
    clock.look(1)
    assert len(messages) == 1
    dog.end(before)


def test_a_description_that_hangs_is_done_without(clock, messages, monkeypatch):
    monkeypatch.setattr(stall_watchdog, "_DESCRIBE_SECONDS", 0.05)
    ends = threading.Event()
    dog = watch(describe=lambda: ends.wait(120.0))
    before = dog.begin("pull")
    clock.look()
    clock.look(TIMEOUT)
    dog.end(before)
    ends.set()
    assert "Servers do not say who is waited for." in messages[0]


def test_the_process_ends_where_a_stall_is_to_fail(
    clock, messages, monkeypatch
):
    statuses = []
    exits = types.SimpleNamespace(_exit=statuses.append)
    monkeypatch.setattr(stall_watchdog, "os", exits)
    dog = watch(fails=True)
    dog.begin("train_function")
    clock.look()
    clock.look(TIMEOUT - 1)
    assert statuses == []
    clock.look(1)
    assert statuses == [stall_watchdog.STALLED_STATUS]
    told, ends = messages
    assert "has made no progress" in told
    assert "ends, as on_stall='fail' says" in ends
