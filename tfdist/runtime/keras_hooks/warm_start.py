"""One worker trains alone before the others begin."""

import enum

from absl import logging

from tfdist import checks
from tfdist.cluster import member_table
from tfdist.cluster import waiting


class WorkerStart(enum.Enum):
    """Start of the workers.

    TOGETHER: none before the others are there, or all but the first after its
      steps.
    STAGGERED: each some steps after the one before.
    INDEPENDENT: each when it is there.
    """

    TOGETHER = "together"
    STAGGERED = "staggered"
    INDEPENDENT = "independent"


class Turn:
    """Waits for a worker's turn at its first step in a call of `fit`.

    Not before: its callbacks read what the chief's are to write anew.

    Args:
      wait: Callable without arguments that waits.
    """

    def __init__(self, wait):
        self._wait = wait

    def call(self, call_in_fit, function, *args):
        """Calls a training step of `fit`; waits before the first one."""
        wait, self._wait = self._wait, None
        if wait is not None:
            wait()
        return call_in_fit(function, *args)


class WarmStart:
    """Makes workers wait until those before them have trained for a while.

    Dean et al., "Large scale distributed deep networks", NIPS 2012, section
    5: asynchronous training is begun by a single worker, as gradients of the
    first steps are large and late ones then do harm.

    Args:
      steps: Steps that the first worker trains alone, 0 for none.
      worker_start: A `WorkerStart`, or its value. Staggered: worker i begins
        after i times `steps`.
      synchronization: The `Synchronization`.
      stalled_after: Seconds without a step after which nobody waits any more.

    Raises:
      ValueError: An argument is malformed, or they do not fit together.
    """

    def __init__(self, steps, worker_start, synchronization, stalled_after):
        steps = checks.count("warmup_worker_steps", steps, 0)
        allowed = [one.value for one in WorkerStart]
        if worker_start not in (*WorkerStart, *allowed):
            raise ValueError(
                f"Argument `worker_start` must be one of {', '.join(allowed)}. "
                f"Received: worker_start={worker_start!r}"
            )
        if steps and synchronization.waits:
            raise ValueError(
                "Argument `warmup_worker_steps` must be 0 with "
                f"{synchronization!r}, with which workers wait for each "
                "other; use Async or SoftSync. Received: "
                f"warmup_worker_steps={steps}"
            )
        self._steps = steps
        self._stalled_after = stalled_after
        self._worker_start = WorkerStart(worker_start)

    @property
    def starts_together(self):
        """Whether no worker begins before the others are there."""
        return not self._steps and self._worker_start is WorkerStart.TOGETHER

    def steps_before(self, worker_id):
        """After how many steps of the others a worker begins, an int."""
        if self._worker_start is not WorkerStart.STAGGERED:
            return self._steps * min(worker_id, 1)
        return self._steps * worker_id

    def wait(self, worker_id, steps_made, first_worker):
        """Waits for this worker's turn.

        It begins all the same once the first worker has ended its training,
        or when no step has been made for a long time.

        Args:
          worker_id: Its number.
          steps_made: Callable that gives the steps that have been made.
          first_worker: Callable that gives the first worker's `Member`.

        Returns:
          Whether it has had to wait.
        """
        wanted = self.steps_before(worker_id)
        made = steps_made()
        if made >= wanted:
            return False
        before = first_worker()
        logging.info("Beginning after %d steps of others.", wanted)

        def has_ended():
            member = first_worker()
            return (
                member.state
                in (
                    member_table.MemberState.FINISHED,
                    member_table.MemberState.LEFT,
                )
                or member.arrivals > before.arrivals
                or before.word.reached < member.word.ended
            )

        while made < wanted and not has_ended():
            try:
                self._wait_for_step(made, wanted, steps_made, has_ended)
            except TimeoutError as error:
                logging.warning("%s Beginning now.", error)
                return True
            made = steps_made()
        if made < wanted:
            logging.warning(
                "The first worker has ended its training after %d steps, "
                "before the %d of warmup_worker_steps. Beginning now.",
                made,
                wanted,
            )
        return True

    def _wait_for_step(self, made, wanted, steps_made, has_ended):
        waiting.wait_until(
            lambda: steps_made() > made or has_ended(),
            what=(
                f"the first workers to train for {wanted} steps "
                f"(warmup_worker_steps; {made} so far)"
            ),
            timeout=self._stalled_after,
        )
