"""Connecting again to servers that were gone, or that were started again."""

import time

import tensorflow as tf

from tfdist.cluster import connection

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


class Reconnection:
    """This process's connection to servers, over the deaths of these.

    Args:
      discovery: The `ServerDiscovery`.
      membership: This process's `Membership`.
      timeout: Seconds to wait for servers that are gone.
    """

    def __init__(self, discovery, membership, timeout):
        self._discovery = discovery
        self._membership = membership
        self._timeout = timeout
        self._hiccups = []

    def check_hiccups(self, error):
        """Says that a call has failed, though all servers are there.

        Args:
          error: The `tf.errors.OpError` of the call.

        Raises:
          tf.errors.OpError: `error`, if servers cannot be what it is about.
        """
        now = time.monotonic()
        self._hiccups = [t for t in self._hiccups if now - t < _HICCUP_SECONDS]
        self._hiccups.append(now)
        if not isinstance(error, _TRANSIENT) or len(self._hiccups) > _HICCUPS:
            raise error
        time.sleep(_HICCUP_PAUSE_SECONDS * (len(self._hiccups) - 1))

    def check_time(self, began, error):
        """Gives up after the timeout.

        Args:
          began: Time at which the recovery began.
          error: The last `tf.errors.OpError`.

        Raises:
          TimeoutError: The time is over.
        """
        if time.monotonic() - began > self._timeout:
            raise TimeoutError(
                f"Gave up after {self._timeout:g} s of recovery from the loss "
                f"of a server: {error.message}"
            ) from error

    def connect(self, incarnations, began):
        """Connects to servers that are new, and enters their tables.

        Args:
          incarnations: Of all servers, a list of int.
          began: Time at which the recovery began.

        Raises:
          TimeoutError: A server does not get ready in time.
          tf.errors.OpError: A server has died again.
        """
        config = self._discovery.config
        connection.reconnect(config)
        self._membership.reconnected(config, incarnations)
        while True:
            try:
                self._membership.enter_again()
                return
            except tf.errors.OpError as error:
                # It answers before it is ready, or has died again.
                self.check_time(began, error)
                time.sleep(_POLL_SECONDS)
                if self._discovery.lives() != incarnations:
                    raise
