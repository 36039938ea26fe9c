"""Election of the worker that gives a server back what it has lost.

There is no leader. Each worker *offers* the server the version that its
replicas show, and the number of assignments, which counts where versions are
equal. The one with the newest restores, and if it does not, the next best does.
That there is but one is not decided here: see `restoring`.
"""

import time

from absl import logging

# Seconds for other workers to say what they hold, after this one has.
_GATHER_SECONDS = 2.0
# The same for a worker that has nothing to offer, and would go on from a
# snapshot: others notice the loss of a server within 10 s.
_NEWCOMER_SECONDS = 12.0
# Seconds after which the next best worker restores instead.
_STAGGER_SECONDS = 3.0
_POLL_SECONDS = 0.1


class Election:
    """One worker's part in it.

    Args:
      worker_id: Number of this worker.
      local: Its `Local`.
      synchronizer: Its `Synchronizer`.
      restorer: Its `Restorer`.
      config: The `ClusterConfig` of a worker or an evaluator.
      timeout: Seconds to wait for a worker that restores.
    """

    def __init__(
        self, worker_id, local, synchronizer, restorer, config, timeout
    ):
        self._worker = worker_id
        self._local = local
        self._synchronizer = synchronizer
        self._config = config
        self._timeout = timeout
        self._restorer = restorer

    def restore(self, shard, began):
        """Sees to it that a server holds the newest that any worker has.

        Args:
          shard: Number of the server.
          began: `time.monotonic()` when the server was missed, for the log.

        Returns:
          Whether it was this worker that restored it; and a list of bool,
          which workers are there.

        Raises:
          TimeoutError: No worker restores it.
        """
        name = self._config.ps_names[shard]
        takes_part = self._config.is_worker and self._synchronizer.committed > 0
        is_elected, here = self._wait_for_turn(shard, name, takes_part)
        if not takes_part:
            return False, here
        self._local.show_anchor()
        done = False
        if is_elected:
            restored = self._restorer.restore(shard)
            done = restored.done
            if done:
                lost = self._restorer.lost_by_rows(shard)
                seconds = time.monotonic() - began
                self._report(name, restored, lost, here, seconds)
        if missing := self._restorer.complete(shard):
            logging.warning(
                "%s lacked %d variables that this worker knows; they are as "
                "%s has read them last, and rows of tables have their first "
                "values.",
                name,
                missing,
                self._config.task_name,
            )
        return done, here

    def _wait_for_turn(self, shard, name, takes_part):
        """Whether it is this worker that restores a server, once that shows.

        And, as `restore` says it, which workers are there.
        """
        started = time.monotonic()
        patience = _GATHER_SECONDS if takes_part else _NEWCOMER_SECONDS
        while True:
            offers = self._restorer.offer(shard, takes_part)
            best = max(offers.orders)
            waited = time.monotonic() - started
            here = [order > 0 for order in offers.orders]
            all_there = all(offers.orders)
            # To train on from a snapshot that is newer than this worker's
            # replicas, where another worker has newer ones still, would lose
            # what these hold.
            known = offers.settled or all_there or waited >= patience
            if offers.held and offers.held >= best and known:
                return False, here
            mine = offers.orders[self._worker] if takes_part else 0
            rank = sum(
                (order, -k) > (mine, -self._worker)
                for k, order in enumerate(offers.orders)
            )
            due = rank * _STAGGER_SECONDS
            if not all_there:
                due += _GATHER_SECONDS
            if mine > offers.held and waited >= due:
                return True, here
            if not best and waited > patience:
                # Nobody has anything: the chief gives first values again.
                return False, here
            if waited > self._timeout:
                raise TimeoutError(
                    f"Gave up after {waited:.0f} s waiting for a worker that "
                    f"restores {name}."
                )
            time.sleep(_POLL_SECONDS)

    def _report(self, name, restored, lost, here, seconds):
        """Logs what was restored from what, and who had no say in it."""
        slots = ""
        if restored.kept:
            slots += f"; {restored.kept} of its other variables (optimizer "
            slots += f"state) are from its snapshot of update {restored.before}"
        if restored.stale:
            slots += f"; {restored.stale} of its other variables (optimizer "
            slots += (
                "state) start afresh, for want of a snapshot (FaultTolerance("
            )
            slots += "snapshot_dir=...) makes servers keep some)"
        slots += _about_tables(restored, lost)
        logging.warning(
            "%s restored %s, %.1f s after it was missed: parameters from this "
            "worker's replicas, as of update %d%s. Updates that no worker had "
            "pulled yet are lost%s.",
            self._config.task_name,
            name,
            seconds,
            restored.version,
            slots,
            self._absent(here),
        )

    def lost_by_rows(self, shard):
        """See `Restorer.lost_by_rows`."""
        return self._restorer.lost_by_rows(shard)

    def _absent(self, here):
        """Names, for the log, who has not said in time what it holds."""
        names = zip(self._config.worker_names, here, strict=True)
        absent = [name for name, is_here in names if not is_here]
        if not absent:
            return ""
        return (
            f"; so are those that only {', '.join(absent)} had pulled, if any"
        )


def _about_tables(restored, lost):
    """Says, for the log, what became of the rows of tables on a server."""
    text = ""
    if restored.kept_tables:
        text += (
            f"; the rows of {restored.kept_tables} tables (with optimizer "
            f"state) are from its snapshot, and {lost[0]} to {lost[1]} of its "
            "updates are lost in them"
        )
    if restored.new_tables:
        text += (
            f"; the rows of {restored.new_tables} tables (with optimizer "
            "state) start again from their first values, for want of a "
            "snapshot: all that they had learned is lost"
        )
    return text
