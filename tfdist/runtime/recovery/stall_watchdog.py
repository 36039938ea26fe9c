"""Says what a worker waits for when it makes no progress."""

import os
import sys
import threading
import time

from absl import logging

from tfdist import thread_frames

_POLL_SECONDS = 1.0
# A look that comes later than that after the last one: this process itself was
# stopped, and that is no time in which servers have let it wait.
_LATE_SECONDS = 5.0
_DESCRIBE_SECONDS = 15.0
# The exit status of a worker that gives up, as of a software error in sysexits.
STALLED_STATUS = 70


class Watchdog:
    """Watches the calls of one strategy to servers, in a thread.

    A call that waits in TensorFlow's runtime cannot be interrupted from
    Python. So whoever wants it to fail ends the process.

    Args:
      name: This task's name.
      progress: Callable without arguments that returns something that changes
        when this worker makes progress.
      describe: Callable without arguments that returns what is waited for, a
        str.
      timeout: Seconds without progress, within a call, that are a stall.
      fails: Whether the process then ends with `STALLED_STATUS`.
    """

    def __init__(self, name, progress, describe, *, timeout, fails):
        self._name = name
        self._progress = progress
        self._describe = describe
        self._timeout = timeout
        self._fails = fails
        # The call that is under way: what, and its thread; None between calls.
        self._call = None
        self._thread = None

    def begin(self, what):
        """A call has begun, in this thread.

        Args:
          what: For the message.

        Returns:
          What `end` takes.
        """
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()
        before, self._call = self._call, (what, threading.get_ident())
        return before

    def end(self, before):
        """The call has ended.

        Args:
          before: What `begin` has returned.
        """
        self._call = before

    def _run(self):
        seen, since, told = None, time.monotonic(), 0
        now = since
        while True:
            time.sleep(_POLL_SECONDS)
            call = self._call
            state = (call, self._progress())
            before, now = now, time.monotonic()
            since += max(0.0, now - before - _LATE_SECONDS)
            if call is None or state != seen:
                seen, since, told = state, now, 0
                continue
            # Once for each time that the time has doubled.
            if now - since < self._timeout * 2**told:
                continue
            told += 1
            self._tell(call, now - since)
            if self._fails:
                logging.error("%s ends, as on_stall='fail' says.", self._name)
                logging.flush()
                sys.stderr.flush()
                os._exit(STALLED_STATUS)

    def _tell(self, call, seconds):
        what, thread = call
        logging.error(
            "%s has made no progress for %.0f s in %s. %s The stack:\n%s",
            self._name,
            seconds,
            what,
            self._description(),
            thread_frames.stack(thread) or "(gone)\n",
        )

    def _description(self):
        """Describes what is waited for; asks servers, which may hang, too."""
        told = ["Servers do not say who is waited for."]
        thread = threading.Thread(
            target=lambda: told.append(self._describe()), daemon=True
        )
        thread.start()
        thread.join(_DESCRIBE_SECONDS)
        return told[-1]
