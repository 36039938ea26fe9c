"""Ctrl-C while TensorFlow waits."""

import signal

import pytest


@pytest.fixture(autouse=True)
def handler():
    """Python's own of Ctrl-C, which a job in the background ignores."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupting(function, seen, name, number):
    """Calls a function as one that waits in TensorFlow during Ctrl-C.

    Args:
        function: the function.
        seen: list to which a name is added with each call.
        name: the name; None for the first argument.
        number: of the names when there is Ctrl-C.
    """

    def call(*args, **kwargs):
        result = function(*args, **kwargs)
        seen.append(name or args[0])
        if len(seen) == number:
            signal.raise_signal(signal.SIGINT)
        return result

    return call
