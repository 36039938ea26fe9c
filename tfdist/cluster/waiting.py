"""Waits that end, and that say what they wait for."""

import time

from absl import logging

from tfdist.cluster import preemption

_POLL_SECONDS = 0.1
REPORT_SECONDS = 5.0
# Seconds without progress after which training has stalled, if all is fast.
STALLED_AFTER_SECONDS = 600.0


def wait_until(condition, *, what, timeout, hint=""):
    """Waits until `condition()` is true.

    Ends the process if it gets notice to leave meanwhile (`preemption`).

    Args:
      condition: Callable without arguments; returns something true when the
        wait is over, else something false.
      what: What is waited for, to be read after 'waiting for'; a string, or a
        callable that returns one.
      timeout: Seconds after which to give up.
      hint: Sentence for the error that says what to check.

    Returns:
      The true value.

    Raises:
      TimeoutError: Nothing true within `timeout` seconds.
    """
    started = time.monotonic()
    reported = started
    while True:
        value = condition()
        if value:
            return value
        preemption.leave_if_noticed()
        now = time.monotonic()
        described = what() if callable(what) else what
        bound = preemption.bounded(timeout)
        if now - started > bound:
            message = (
                f"Gave up after {_seconds(bound)} s waiting for {described}."
            )
            raise TimeoutError(f"{message} {hint}".strip())
        if now - reported > REPORT_SECONDS:
            reported = now
            logging.warning(
                "Waiting for %s (%.0f s of at most %s s).",
                described,
                now - started,
                _seconds(timeout),
            )
        time.sleep(_POLL_SECONDS)


def _seconds(number):
    """Seconds as people say them: whole ones, but for short times."""
    return f"{number:.0f}" if number >= 10 else f"{number:.3g}"


def wait_while_it_gets_on(condition, *, what, stalled_after, progress):
    """Waits until `condition()` is true, or until nothing gets on any more.

    Args:
      condition: See `wait_until`.
      what: See `wait_until`.
      stalled_after: Callable that gives the seconds without progress after
        which to give up, with a warning.
      progress: Callable without arguments; what it returns differs as long as
        something gets on.

    Returns:
      The true value; None if it gave up.
    """
    seen = None
    while True:
        try:
            return wait_until(condition, what=what, timeout=stalled_after())
        except TimeoutError as error:
            before, seen = seen, progress()
            if seen == before:
                logging.warning("%s Going on without.", error)
                return None
