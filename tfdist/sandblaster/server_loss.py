"""Calls to servers that are made again when servers were lost."""

import time

import tensorflow as tf

from tfdist.cluster import reconnection
from tfdist.cluster import server_discovery
from tfdist.cluster import waiting


class CoordinatorGoneError(RuntimeError):
    """The coordinator is gone for good: no recovery of servers helps."""


class NoLoss:
    """The part that `ServerLoss` has, in one process."""

    events = ()

    def call(self, function, put_back):
        return function()


class ServerLoss:
    """Makes calls of one strategy to servers, over the deaths of these.

    Args:
      config: The `ClusterConfig` of a worker.
      look_up: Callable without arguments that gives the `ClusterConfig` as it
        is now, or None.
      membership: This process's `Membership`.
      fence: The `Fence`.
      timeout: Seconds to wait for servers that are gone, and then for the
        coordinator.

    Attributes:
      events: List of `ServerReturn`.
    """

    def __init__(self, config, look_up, membership, fence, timeout):
        self._names = config.ps_names
        self._fence = fence
        self._timeout = timeout
        self._reconnection = reconnection.Reconnection(
            server_discovery.ServerDiscovery(config, look_up),
            membership,
            timeout,
            config.task_name,
        )
        self._is_active = False
        self.events = []

    def call(self, function, put_back):
        """Calls a function that talks to servers, again if need be.

        Args:
          function: Callable without arguments that may be called several times.
          put_back: Callable without arguments that is called when all servers
            are there: it returns when they hold what they should.

        Returns:
          What `function` returns.

        Raises:
          TimeoutError: A server is gone for too long; the message names it.
          RuntimeError: Another process of the chief has taken this one's place.
          CoordinatorGoneError: The chief is gone for good.
        """
        if self._is_active:
            return function()  # Whoever calls this handles errors.
        self._is_active = True
        try:
            while True:
                try:
                    return function()
                except tf.errors.OpError as error:
                    failed = error
                self._recover(failed, put_back)
        finally:
            self._is_active = False

    def wait_until_whole(self, check):
        """Waits until the coordinator has put back what servers have lost.

        Args:
          check: Callable of the seconds so far, called each time; raises what
            ends the wait.

        Raises:
          TimeoutError: It has not in time; the message names the servers.
        """
        began = time.monotonic()
        missing = []

        def is_whole():
            check(time.monotonic() - began)
            missing[:] = self._fence.missing()
            return not missing

        waiting.wait_until(
            is_whole,
            what=lambda: (
                "the chief to put back what parameter server "
                f"{', '.join(self._names[k] for k in missing)} held"
            ),
            timeout=self._timeout,
        )

    def _recover(self, error, put_back):
        self._fence.explain(error)

        def put_all_back(shards, now):
            try:
                put_back()
            except tf.errors.OpError as again:
                self._fence.explain(again)
                raise

        self.events.append(self._reconnection.recover(error, put_all_back))
