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
        # By thread, what is under way there: calls of threads may overlap.
        self._calls = {}
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
        before = self._calls.get(threading.get_ident())
        self._calls[threading.get_ident()] = what
        return before

    def end(self, before):
        """The call has ended, in this thread.

        Args:
          before: What `begin` has returned.
        """
        if before is None:
            self._calls.pop(threading.get_ident(), None)
        else:
            self._calls[threading.get_ident()] = before

    def _run(self):
        looks, now = {}, time.monotonic()
        while True:
            time.sleep(_POLL_SECONDS)
            calls = self._calls.copy()
            progress = self._progress()
            before, now = now, time.monotonic()
            late = max(0.0, now - before - _LATE_SECONDS)
            seen, looks = looks, {}
            for thread, what in calls.items():
                state = what, progress
                known, since, told = seen.get(thread, (None, now, 0))
                if state != known:
                    looks[thread] = state, now, 0
                    continue
                since += late
                # Once for each time that the time has doubled.
                if now - since >= self._timeout * 2**told:
                    told += 1
                    self._tell(what, thread, now - since)
                    self._may_end()
                looks[thread] = state, since, told

    def _may_end(self):
        if self._fails:
            logging.error("%s ends, as on_stall='fail' says.", self._name)
            logging.flush()
            sys.stderr.flush()
            os._exit(STALLED_STATUS)

    def _tell(self, what, thread, seconds):
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
