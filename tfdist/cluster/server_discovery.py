"""Addresses of a cluster's parameter servers, and their lives."""

import dataclasses
import math
import time

from absl import logging

from tfdist.cluster import incarnation
from tfdist.cluster import refusal
from tfdist.cluster import versions
from tfdist.cluster import waiting

# `look_up` may ask a service that all workers ask.
_LOOK_UP_SECONDS = 1.0
_OF_ANOTHER = " (a server of another cluster listens there)"


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
        self._looked_up = -math.inf
        # What `look_up` says instead of where all servers are.
        self._trouble = ""
        # What this cluster's servers tell of it: see `versions.checksum`.
        self._checksums = {versions.checksum(config)}
        # Incarnations of this cluster's servers; None before the first wait.
        self._own = None
        # Where servers of another cluster listen.
        self._foreign = set()

    def lives(self):
        """Incarnations of the servers, a list; None for who is silent.

        Silent is also who is not known and does not say that it is one of
        this cluster: another one's server may have got the address.
        """
        lives, foreign = incarnation.read_all(self.config), set()
        if self._own is None:
            return lives  # They have been compared just before.
        for task, life in enumerate(lives):
            if life is None or life in self._own:
                continue
            address = self.config.ps_addresses[task]
            told = versions.told_by(address, task, incarnation.SECONDS)
            if told is None:
                lives[task] = None
            elif told.get("workers") in self._checksums:
                self._own.add(life)
            else:
                lives[task] = None
                foreign.add(address)
        self._foreign = foreign
        return lives

    def silent(self, lives):
        """Names of those that are silent, a list of str.

        Args:
          lives: As returned by `lives`.
        """
        config = self.config
        return [
            f"{name} at {address}" + _OF_ANOTHER * (address in self._foreign)
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
        """
        end = time.monotonic() + timeout
        goal = "to answer" if self._own is None else "to come back"
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
                self.look()
                lives = self.lives()
            return None not in lives

        waiting.wait_until(
            all_answer,
            what=lambda: f"{self._described(lives)} {goal}{self._why()}",
            timeout=end - time.monotonic(),
            hint="Is it running? A server that is started again at the same "
            "address is found by all workers.",
        )
        if self._own is None:
            self._own = set(lives)
        return lives

    def _described(self, lives):
        return ", ".join(
            f"parameter server {name}" for name in self.silent(lives)
        )

    def look(self):
        """Asks where the servers are now, and notes it in `config`.

        `look_up` is called once a second at most.
        """
        if self._look_up is None:
            return
        if time.monotonic() - self._looked_up < _LOOK_UP_SECONDS:
            return
        try:
            config = self._look_up()
        except Exception as error:
            # Some fail while a server is away.
            self._note(f"{type(error).__name__}: {error}")
            return
        finally:
            self._looked_up = time.monotonic()
        if config.num_ps != self.config.num_ps:
            # One is away, or is listed where it was and where it is.
            self._note(f"{config.num_ps} parameter servers")
            return
        self._checksums.add(versions.checksum(config))
        if config.ps_addresses != self.config.ps_addresses:
            try:
                self.config = self._moved_to(config)
            except refusal.ClusterConfigError as error:
                self._note(str(error))
                return
            logging.warning(
                "The parameter servers are at %s now.",
                ", ".join(config.ps_addresses),
            )
        self._trouble = ""

    def _moved_to(self, config):
        """This cluster with servers, and tasks that are all listed, moved.

        A server may be where another task has been. Of tasks that are away,
        and not listed, addresses stay as they were.
        """
        spec = {
            job: now
            if len(now := config.spec.get(job, ())) == len(before)
            else before
            for job, before in self.config.spec.items()
        }
        return dataclasses.replace(self.config, spec=spec)

    def _note(self, trouble):
        if not self._trouble:
            logging.warning(
                "`cluster_resolver` does not give the %d parameter servers now "
                "(it gives: %s). They are looked for where they were, too.",
                self.config.num_ps,
                trouble,
            )
        self._trouble = trouble

    def _why(self):
        if not self._trouble:
            return ""
        return f" (`cluster_resolver` gives: {self._trouble})"
