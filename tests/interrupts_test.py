"""Ctrl-C that waits for the end of a scope."""

import signal
import threading

import pytest

from tests.all_reduce.ctrl_c import handler
from tfdist import interrupts

__all__ = ["handler"]


def test_ctrl_c_takes_effect_at_the_end_of_the_outer_scope():
    done = []

    @interrupts.deferred()
    def inner():
        signal.raise_signal(signal.SIGINT)
        done.append("inner")

    with pytest.raises(KeyboardInterrupt):
        with interrupts.deferred():
            inner()
            done.append("outer")
        done.append("after")
    assert done == ["inner", "outer"]
    with interrupts.deferred():
        done.clear()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_error_is_not_lost():
    with pytest.raises(KeyboardInterrupt) as caught, interrupts.deferred():
        signal.raise_signal(signal.SIGINT)
        raise ZeroDivisionError
    assert isinstance(caught.value.__context__, ZeroDivisionError)


def test_other_threads_have_no_ctrl_c():
    before, seen = signal.getsignal(signal.SIGINT), []

    def run():
        with interrupts.deferred():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [before]
