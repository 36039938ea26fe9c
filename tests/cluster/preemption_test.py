"""What SIGTERM does to a process that takes it for a notice."""

import pathlib
import signal
import sys
import textwrap

from tests import waits

ROOT = pathlib.Path(__file__).parents[2]
PREAMBLE = """
import atexit, os, signal, sys, threading, time
from tfdist.cluster import preemption, waiting
def notify(pid=os.getpid()):
    os.kill(pid, signal.SIGTERM)
"""


def run(body):
    """Runs a script; returns its status and output."""
    done = waits.run(
        [sys.executable, "-c", PREAMBLE + textwrap.dedent(body)],
        capture_output=True,
        cwd=ROOT,
        text=True,
    )
    return done.returncode, done.stdout + done.stderr


# As of a process that does nothing about it.
TOLD = 128 + signal.SIGTERM


def test_the_process_ends_as_by_the_signal_and_cleans_up():
    status, text = run(
        """
        atexit.register(
            lambda: print(
                "atexit", preemption.received() and preemption.is_leaving()
            )
        )
        assert preemption.install() and preemption.install()
        try:
            notify()
            time.sleep(60)
        finally:
            print("finally")
        """
    )
    assert status == TOLD
    assert text.endswith("finally\natexit True\n")


def test_a_handler_of_the_script_is_left_alone():
    status, text = run(
        """
        signal.signal(signal.SIGTERM, lambda *_: os._exit(7))
        assert not preemption.install()
        notify()
        time.sleep(60)
        """
    )
    assert status == 7, text


def test_a_handler_that_the_script_sets_later_is_left_alone():
    status, text = run(
        """
        preemption.install()
        signal.signal(signal.SIGTERM, lambda *_: print("own handler"))
        notify()
        # A thread would have heard by now.
        time.sleep(0.5)
        assert not preemption.received()
        waiting.wait_until(lambda: True, what="nothing", timeout=60.0)
        """
    )
    assert (status, text) == (0, "own handler\n")


def test_the_loop_that_runs_may_choose_when_to_end():
    status, text = run(
        """
        stopped = []
        preemption.install(stop=lambda frame: stopped.append(frame) or True)
        notify()
        print("goes on", len(stopped))
        # A wait of ours is no better moment than any.
        waiting.wait_until(lambda: False, what="nothing", timeout=60.0)
        """
    )
    assert status == TOLD
    assert "goes on 1" in text and "Gave up" not in text


def test_a_process_that_only_takes_note_goes_on():
    status, text = run(
        """
        preemption.install(exits=False)
        assert not preemption.received()
        notify()
        assert preemption.received()
        waiting.wait_until(lambda: True, what="nothing", timeout=60.0)
        preemption.leave_if_noticed()
        sys.exit(5)
        """
    )
    assert status == 5, text


def test_a_process_leaves_only_if_its_end_has_to_do_with_the_notice():
    status, text = run(
        """
        preemption.install(exits=False)
        assert not preemption.tell_script()
        notify()
        assert preemption.received() and not preemption.is_leaving()
        print("told", preemption.tell_script(), preemption.is_leaving())
        """
    )
    assert (status, text) == (0, "told True True\n")


def test_a_forked_process_dies_of_it_and_its_parent_hears_nothing():
    status, text = run(
        """
        preemption.install()
        child = os.fork()
        if not child:
            time.sleep(60)
            os._exit(1)
        notify(child)
        print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        # A thread would have heard by now.
        time.sleep(0.5)
        assert not preemption.received()
        """
    )
    assert status == 0, text
    assert f"child {-signal.SIGTERM}" in text


def test_what_is_left_to_do_at_the_end_does_not_take_long():
    status, text = run(
        """
        def wait():
            try:
                waiting.wait_until(lambda: False, what="x", timeout=600.0)
            except TimeoutError as error:
                print(error)
        preemption._LAST_SECONDS = 0.1
        preemption.install()
        atexit.register(wait)
        notify()
        """
    )
    assert status == TOLD
    assert "Gave up after 0.1 s waiting for x." in text
