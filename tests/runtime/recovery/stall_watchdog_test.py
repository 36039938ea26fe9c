import os
import subprocess
import sys
import threading
import time

from absl import logging

from tfdist.runtime.recovery import stall_watchdog


def watch(messages, progress=lambda: 0, **settings):
    made = stall_watchdog.Watchdog(
        "/job:worker/task:3",
        progress,
        lambda: "Waiting for /job:worker/task:1.",
        **{"timeout": 0.05, "fails": False, **settings},
    )
    return made


def logged(monkeypatch):
    messages = []

    def error(text, *args):
        messages.append(text % args)

    monkeypatch.setattr(logging, "error", error)
    monkeypatch.setattr(stall_watchdog, "_POLL_SECONDS", 0.01)
    return messages


def wait_for(condition):
    end = time.monotonic() + 20.0
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_call_without_progress_is_told_with_its_stack(monkeypatch):
    messages = logged(monkeypatch)
    dog = watch(messages)

    def hang():
        before = dog.begin("train_function")
        wait_for(lambda: len(messages) >= 2)
        dog.end(before)

    thread = threading.Thread(target=hang)
    thread.start()
    thread.join(30.0)
    for message in messages:
        assert message.startswith(
            "/job:worker/task:3 has made no progress for 0 s in "
            "train_function. Waiting for /job:worker/task:1. The stack:\n"
        )
        # Where the thread is that hangs, not the one that tells.
        assert "in hang\n" in message
        assert "in _tell\n" not in message
    # It has ended: nothing more is told.
    number = len(messages)
    time.sleep(0.3)
    assert len(messages) == number


def test_progress_within_a_call_is_no_stall(monkeypatch):
    messages = logged(monkeypatch)
    steps = iter(range(10**9))
    looks = []

    def progress():
        looks.append(None)
        return next(steps)

    dog = watch(messages, progress)
    before = dog.begin("train_function")
    wait_for(lambda: len(looks) > 30)
    dog.end(before)
    assert messages == []


def test_time_between_calls_is_no_stall(monkeypatch):
    messages = logged(monkeypatch)
    looks = []
    dog = watch(messages, lambda: looks.append(None))
    dog.end(dog.begin("pull"))
    wait_for(lambda: len(looks) > 30)
    assert messages == []


def test_a_description_that_hangs_is_done_without(monkeypatch):
    messages = logged(monkeypatch)
    monkeypatch.setattr(stall_watchdog, "_DESCRIBE_SECONDS", 0.05)
    dog = stall_watchdog.Watchdog(
        "/job:worker/task:3",
        lambda: 0,
        lambda: time.sleep(60.0),
        timeout=0.05,
        fails=False,
    )
    before = dog.begin("pull")
    wait_for(lambda: messages)
    dog.end(before)
    assert "Servers do not say who is waited for." in messages[0]


PROGRAM = """
import time
from tfdist.runtime.recovery import stall_watchdog
stall_watchdog._POLL_SECONDS = 0.01
dog = stall_watchdog.Watchdog(
    "/job:worker/task:3", lambda: 0, lambda: "Who knows.", timeout=0.05,
    fails=True,
)
dog.begin("train_function")
time.sleep(60.0)
"""


def test_the_process_ends_where_a_stall_is_to_fail():
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        timeout=55.0,
        check=False,
    )
    assert ended.returncode == stall_watchdog.STALLED_STATUS
    assert "has made no progress" in ended.stderr
    assert "ends, as on_stall='fail' says" in ended.stderr
