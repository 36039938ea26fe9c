"""Connecting again to servers that were gone, or that were started again."""

import dataclasses
import random
import time

from absl import logging
import tensorflow as tf

from tfdist.cluster import connection
from tfdist.cluster import helpers

_POLL_SECONDS = 0.1
# Calls that fail while all servers are there and in the life that is known:
# so often in a row within so many seconds, they are not about servers.
_HICCUPS = 5
_HICCUP_SECONDS = 60.0
_HICCUP_PAUSE_SECONDS = 0.3
_TRANSIENT = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    # A server lacks what another worker is about to put back.
    tf.errors.FailedPreconditionError,
)


@dataclasses.dataclass(frozen=True)
class ServerReturn:
    """One recovery of this process.

    Attributes:
      time: Seconds since the epoch at its end.
      seconds: From the failed call to its end.
      servers: Names of the servers that had lost what they held; empty if
        there was but a break in the connection.
    """

    time: float
    seconds: float
    servers: tuple


class Reconnection:
    """This process's connection to servers, over the deaths of these.

    Args:
      discovery: The `ServerDiscovery`.
      membership: This process's `Membership`.
      timeout: Seconds to wait for servers that are gone.
      name: Of this process, for the log.

    Attributes:
      lives: By server, the number of the process that has what it should, a
        list of int.
    """

    def __init__(self, discovery, membership, timeout, name):
        self._discovery = discovery
        self._membership = membership
        self._timeout = timeout
        self._name = name
        self._hiccups = []
        self.lives = discovery.wait(timeout)

    def recover(self, error, put_back):
        """Waits for all servers, and has them get what they have lost.

        Args:
          error: The `tf.errors.OpError` of the call that has failed.
          put_back: Callable of the numbers of the servers that were started
            again, a set, and of all lives as they are now; called again if it
            raises a `tf.errors.OpError`.

        Returns:
          The `ServerReturn`.

        Raises:
          HelperLostError: A helper of this worker is gone.
          TimeoutError: A server is gone for too long; the message names it.
          tf.errors.OpError: `error`, if it has nothing to do with servers.
        """
        began = time.monotonic()
        lost, is_first = set(), True
        while True:
            helpers.check(self._discovery.config)
            left = self._timeout - (time.monotonic() - began)
            now = self._discovery.wait(left, error)
            pairs = zip(self.lives, now, strict=True)
            new = {k for k, (known, life) in enumerate(pairs) if known != life}
            if is_first and not new:
                self._check_hiccups(error)
            is_first = False
            try:
                self._connect(now, began)
                lost |= new
                put_back(new, now)
                self.lives = now
                break
            except tf.errors.OpError as again:
                self._check_time(began, again)
                logging.warning(
                    "Recovery begins again (%s).", type(again).__name__
                )
                time.sleep(random.uniform(0.5, 1.5))
        names = self._discovery.config.ps_names
        done = ServerReturn(
            time=time.time(),
            seconds=time.monotonic() - began,
            servers=tuple(names[k] for k in sorted(lost)),
        )
        logging.warning(
            "%s goes on after %.1f s%s.",
            self._name,
            done.seconds,
            f" without {', '.join(done.servers)}" if lost else "",
        )
        return done

    def _check_hiccups(self, error):
        """Raises `error` if servers cannot be what it is about."""
        now = time.monotonic()
        self._hiccups = [t for t in self._hiccups if now - t < _HICCUP_SECONDS]
        self._hiccups.append(now)
        if not isinstance(error, _TRANSIENT) or len(self._hiccups) > _HICCUPS:
            raise error
        time.sleep(_HICCUP_PAUSE_SECONDS * (len(self._hiccups) - 1))

    def _check_time(self, began, error):
        if time.monotonic() - began > self._timeout:
            raise TimeoutError(
                f"Gave up after {self._timeout:g} s of recovery from the loss "
                f"of a server: {error.message}"
            ) from error

    def _connect(self, lives, began):
        """Connects to servers that are new, and enters their tables."""
        config = self._discovery.config
        connection.reconnect(config)
        self._membership.reconnected(config, lives)
        while True:
            try:
                self._membership.enter_again()
                return
            except tf.errors.OpError as error:
                # It answers before it is ready, or has died again.
                self._check_time(began, error)
                time.sleep(_POLL_SECONDS)
                if self._discovery.lives() != lives:
                    raise
