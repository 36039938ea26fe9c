"""Bounded waits of tests for what other processes do."""

import subprocess
import time

SECONDS = 120.0
_POLL_SECONDS = 0.02


class Waited(AssertionError):
    """A bounded wait of the harness was over, and nothing else went wrong.

    Never raised for a wrong exit status or a wrong value: a test that fails
    with it may have been starved, one that fails otherwise has found a fault.
    """


def wait_until(condition, what, seconds=SECONDS):
    """Waits until something is so.

    Args:
        condition: callable without arguments.
        what: for the error; a string, or a callable that returns one.
        seconds: after which to give up.

    Returns:
        The true value of `condition()`.

    Raises:
        Waited: It was not so in time.
    """
    end = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > end:
            what = what() if callable(what) else what
            raise Waited(f"{what}: not so in {seconds:g} s")
        time.sleep(_POLL_SECONDS)
    return value


def run(command, seconds=SECONDS, **arguments):
    """Runs a program to its end, as `subprocess.run` does.

    Args:
        command: list of its name and arguments.
        seconds: after which it is killed.
        **arguments: of `subprocess.run`.

    Returns:
        A `subprocess.CompletedProcess`.

    Raises:
        Waited: It has not ended in time.
    """
    try:
        return subprocess.run(command, timeout=seconds, **arguments)
    except subprocess.TimeoutExpired as error:
        raise Waited(
            f"{command} runs after {seconds:g} s:\n{error.stdout}\n"
            f"{error.stderr}"
        ) from None


def wait_for_exit(process, seconds=SECONDS):
    """Returns the exit status of a `subprocess.Popen`.

    Raises:
        Waited: It has not ended in time.
    """
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        raise Waited(f"{process.args} runs after {seconds:g} s") from None
