"""Calls of `strategy.barrier`, in which all workers wait for each other."""

import math

from absl import logging

from tfdist.cluster import member_table
from tfdist.cluster import termination
from tfdist.cluster import waiting


class Barriers:
    """The barriers of one strategy, on this worker.

    Args:
      membership: This process's `Membership`, None in a single process.
      config: The `ClusterConfig`.
      tolerance: The `FaultTolerance`.
    """

    def __init__(self, membership, config, tolerance):
        self._membership = membership
        self._expected = termination.Expected(
            config.initial_workers, tolerance.start_timeout
        )
        waits = tolerance.on_stall == "wait"
        self._patience = math.inf if waits else tolerance.stall_timeout

    def meet(self, over_losses):
        """Waits until all workers that are there have called it as often.

        For `stall_timeout` at most, unless `on_stall` is "wait"; then it logs
        without whom it goes on.

        Args:
          over_losses: Callable that calls a function again when servers that
            were lost are there again.
        """
        if self._membership is None:
            return
        number = self._membership.call_barrier()
        over_losses(lambda: self._wait(number))

    def _wait(self, number):
        self._membership.tell()
        missing = []

        def all_there():
            missing[:] = termination.missing(
                self._membership.read(),
                lambda member: member.barriers >= number,
                self._expected,
                lost_after=member_table.LOST_AFTER_SECONDS,
            )
            return not missing

        try:
            waiting.wait_until(
                all_there,
                what=lambda: f"{', '.join(missing)} to call strategy.barrier()",
                timeout=self._patience,
            )
        except TimeoutError as error:
            logging.warning("%s Going on without.", error)
