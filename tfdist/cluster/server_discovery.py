"""Addresses of a cluster's parameter servers, and their lives."""

import dataclasses
import time

from absl import logging

from tfdist.cluster import incarnation
from tfdist.cluster import waiting


class ServerDiscovery:
    """The servers' addresses, which may change while training runs.

    Args:
      config: The `ClusterConfig` of a worker or an evaluator.
      look_up: Callable without arguments that gives the `ClusterConfig` as it
        is now, where servers may come back at other addresses; or None.

    Attributes:
      config: The `ClusterConfig` as of the last look.
    """

    def __init__(self, config, look_up=None):
        self.config = config
        self._look_up = look_up
        # What `look_up` says instead of where all servers are.
        self._trouble = ""

    def lives(self):
        """Incarnations of the servers, a list; None for who is silent."""
        return incarnation.read_all(self.config)

    def silent(self, lives):
        """Names of those that are silent, a list of str.

        Args:
          lives: As returned by `lives`.
        """
        config = self.config
        return [
            f"{name} at {address}"
            for name, address, life in zip(
                config.ps_names, config.ps_addresses, lives, strict=True
            )
            if life is None
        ]

    def wait(self, timeout, error=None):
        """Waits until all servers answer.

        Args:
          timeout: Seconds.
          error: The exception that made the caller ask, for the log; or None.

        Returns:
          Their incarnations, a list of int.

        Raises:
          TimeoutError: One is silent; the message names it.
          ValueError: There are more servers than there were.
        """
        end = time.monotonic() + timeout
        lives = self.lives()
        if None in lives and error is not None:
            logging.warning(
                "No answer from %s (%s). Waiting for it to come back.",
                self._described(lives),
                type(error).__name__,
            )

        def all_answer():
            nonlocal lives
            if None in lives:
                self._look()
                lives = self.lives()
            return None not in lives

        waiting.wait_until(
            all_answer,
            what=lambda: f"{self._described(lives)} to come back{self._why()}",
            timeout=end - time.monotonic(),
            hint="Is it running? A server that is started again at the same "
            "address is found by all workers.",
        )
        return lives

    def _described(self, lives):
        return ", ".join(
            f"parameter server {name}" for name in self.silent(lives)
        )

    def _look(self):
        """Asks where the servers are now."""
        if self._look_up is None:
            return
        try:
            config = self._look_up()
        except Exception as error:
            # Some fail while a server is away.
            self._note(f"{type(error).__name__}: {error}")
            return
        if config.num_ps < self.config.num_ps:
            self._note(f"{config.num_ps} of {self.config.num_ps} servers")
            return
        self._trouble = ""
        if config.num_ps > self.config.num_ps:
            raise ValueError(
                "Argument `cluster_resolver` must go on giving "
                f"{self.config.num_ps} parameter servers while training runs. "
                f"Received: {config.num_ps} parameter servers"
            )
        if config.ps_addresses != self.config.ps_addresses:
            logging.warning(
                "The parameter servers are at %s now.",
                ", ".join(config.ps_addresses),
            )
            # Others may be away, too, and not be listed.
            spec = {**self.config.spec, "ps": config.ps_addresses}
            self.config = dataclasses.replace(self.config, spec=spec)

    def _note(self, trouble):
        if not self._trouble:
            logging.warning(
                "`cluster_resolver` does not give all parameter servers now "
                "(%s): they are looked for where they were, too.",
                trouble,
            )
        self._trouble = trouble

    def _why(self):
        if not self._trouble:
            return ""
        return f" (`cluster_resolver` gives: {self._trouble})"
