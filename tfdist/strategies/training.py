"""The methods of a strategy that trains: counts, barriers, reports.

The part of `ParameterServerStrategy` that is not its construction.
"""

from collections.abc import Callable
import contextlib
import functools
import os
import time
from typing import Any

import keras

from tfdist import cluster_metrics
from tfdist.cluster import member_table
from tfdist.cluster import reports
from tfdist.cluster import termination
from tfdist.runtime.checkpoint import table_export


class TrainingMixin:
    """A mixin of `ParameterServerStrategy`."""

    def _begin(self, config, connections, tolerance):
        """Takes note of who is there, before there is anything to train."""
        self._cluster = config
        self._membership = connections.membership
        self._connected_at = time.monotonic()
        self._start_timeout = tolerance.start_timeout
        self._expected = termination.Expected(
            config.initial_workers, tolerance.start_timeout
        )
        self._reports = (
            reports.Reports(connections.devices[0], config)
            if config.num_ps
            else reports.OwnReports(config)
        )

    def updates_applied(self) -> list[int]:
        """Updates that each server has applied so far, a list of ints."""
        return self._runtime.updates_applied()

    def updates_pulled(self) -> int:
        """Updates that are in this worker's replicas, an int.

        Where several servers have been asked at different moments, the most.
        """
        servers = range(self._runtime.store.num_shards)
        return max(int(self._runtime.store.pulled_version(k)) for k in servers)

    def training_is_over(self) -> bool:
        """Whether all workers have finished.

        Once one has, a worker that has not been seen for a minute is not
        waited for. On an evaluator under `tfdist launch`, once no worker's
        process runs, nor is started again. Where there are no servers, as
        soon as this worker has seen the end of training (`barrier`).

        Raises:
          TimeoutError: No worker has finished, and none has been seen for
            `start_timeout` seconds.
        """
        if self._membership is None:
            return not self._runtime.local.is_open()
        says = termination.launcher_says()
        over = says or termination.is_over(
            self._runtime.call(self._membership.read),
            known_for=time.monotonic() - self._connected_at,
            patience=self._start_timeout,
            lost_after=member_table.LOST_AFTER_SECONDS,
            initial_workers=self._cluster.initial_workers,
        )
        return over and says is not False

    @property
    def data_shares(self) -> int | None:
        """Into how many shares the data of the last `fit` was divided, int.

        None where it was not: each worker has all that it is given.
        """
        return self._runtime.data_shares

    def portion_counts(self) -> dict[str, int]:
        """Returns how many portions of the data each worker has trained on.

        Returns:
          With `work="queue"` a dict of worker name (such as
          `/job:worker/task:0`) to an int, over all calls of `fit` so far; else
          an empty dict.
        """
        return self._runtime.work.counts()

    def gradient_counts(self) -> dict[str, dict[str, int]]:
        """Returns the fate of each worker's gradients.

        Returns:
          A dict of worker name (such as `/job:worker/task:0`) to a dict with
          `pushed`, `accepted` and `dropped`, ints, over all lives of that
          worker; `pushed` is the sum of the others but for gradients that
          are undecided at this moment. `nonfinite` of the pushed ones were
          NaN or Inf and are dropped for that. `staleness` is the sum of the
          updates that the accepted ones were late by. With
          `communication="ring"` only this worker's are counted.
        """
        return self._runtime.coordination.counts()

    def retry_on_server_failure(
        self, function: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Returns a function that is called again when a server has failed.

        `fit` does so by itself, as does `strategy.run` of a `tf.function`. For
        a `tf.function` of your own that calls `strategy.run`:

        ```
        step = strategy.retry_on_server_failure(tf.function(step))
        ```

        Args:
          function: Callable. When a server fails, it is called again after
            all are back: what it took from an iterator is gone. Its arguments
            are the same: servers that had applied the gradient of a batch
            before the failure apply it twice.

        Returns:
          A callable.
        """
        return functools.partial(self._runtime.call, function)

    def own_files(self) -> contextlib.AbstractContextManager[None]:
        """Scope in which this task writes what it saves, chief or not.

        Every task runs the same program, and of what it saves (`model.save`,
        `save_weights`, `export`, Keras's callbacks) the chief's files are
        written. For files of this task's own, with a name of its own:

        ```
        with strategy.own_files():
            model.save(f"{strategy.cluster.worker_id}.keras")
        ```

        Around `fit`, its callbacks write as well.
        """
        return self._runtime.files.own()

    @property
    def recoveries(self) -> list[Any]:
        """Losses of servers and what was done, a list of `Event`."""
        return list(self._runtime.recovery.events)

    def push_counts(self) -> dict[str, Any]:
        """Returns the fate of this process's gradients.

        Returns:
          A dict of ints: `pushed`, all that it began to send; `dropped`;
          `applied`, a list by server; `elsewhere`, a list by server: those of
          an optimizer none of whose variables lie there; and `lost`, a list
          by server: what neither was applied there nor dropped, because a
          server died or could not be reached in the middle of the exchange.
          Where exchanges are decided over in common, a server has applied
          what has been accepted (with `SoftSync`, also what did not fill an
          update when training ended or the first server died). `pushed` =
          `applied` + `dropped` + `elsewhere` + `lost` on each server.
        """
        self.pull()
        journal = self._runtime.journal
        pushed, dropped = journal.begun, journal.drops
        applied, elsewhere = self._runtime.coordination.own_applied()
        return {
            "pushed": pushed,
            "dropped": dropped,
            "applied": applied,
            "elsewhere": elsewhere,
            "lost": [
                pushed - dropped - done - passed
                for done, passed in zip(applied, elsewhere, strict=True)
            ],
        }

    def deregister(self) -> None:
        """Tells the others not to wait for this worker's gradients.

        Happens by itself when `fit` or the process ends. The worker's next
        gradient takes it in again.
        """
        # A callback may do so in the middle of `fit`.
        ends_fit = not self._runtime.chief_decisions.is_in_loop
        self._runtime.coordination.leave(ends_fit)

    def wait_for_warm_start(self) -> None:
        """Waits until it is this worker's turn to begin to train.

        See `warmup_worker_steps`. Does nothing later on.
        """
        if self._membership is None or not self._cluster.is_worker:
            return
        worker = self._cluster.worker_id
        if not self._warm_start.steps_before(worker):
            return
        self._runtime.commit()
        if self._warm_start.wait(
            worker,
            self._runtime.steps_made,
            lambda: self._runtime.call(self._membership.read)[0],
        ):
            self.pull()

    def export_tables(
        self,
        directory: str | os.PathLike[str],
        model: keras.Model | None = None,
    ) -> None:
        """Writes tables on servers to NumPy files of some rows each.

        For use without tfdist; docs/tables.md says how to load them. The
        chief writes, the other tasks write nothing. It needs memory for some
        files of 64 MB. Rows are read one piece after the other: call it when
        training is over (`barrier`) if all are to be of one moment.

        Args:
          directory: Path of a directory, made if need be. Once the files are
            complete, `index.json` names them, and those of an earlier export
            to this directory are removed.
          model: The `keras.Model` whose tables are written; default: all
            tables of this strategy.

        Raises:
          ValueError: There is no table, or several have one name.
          OSError: A file could not be written.
        """
        files = self._runtime.files
        if not files.writes:
            files.leave_to_chief("strategy.export_tables", directory)
            return
        self._runtime.commit()
        variables = self._runtime.store.variables
        if model is not None:
            variables = [v.value for v in model.variables]
        table_export.write(
            table_export.tables_of(variables),
            directory,
            max(self.updates_applied(), default=0),
        )

    def flush(self) -> None:
        """Exchanges the local steps that no exchange was due for.

        Happens by itself when training ends: in `barrier`, in an evaluation
        after `fit`, at the latest when the process ends.
        """
        self._runtime.local.flush()

    def barrier(self) -> None:
        """Waits until all workers have reached their own call of this.

        Every worker then pulls the newest parameters. At the end of training
        they are final, on all workers the same. A worker that has ended, or
        has not been heard of for a minute, is not waited for, nor one that
        has not come `start_timeout` after this one did; nor is anybody for
        longer than ten minutes without progress of the training.

        With `communication="ring"`, all are waited for instead, in each call.

        Raises:
          tf.errors.UnavailableError: With `communication="ring"`, a worker is
            gone.
          tf.errors.DeadlineExceededError: With `communication="ring"`, a
            worker that is there has not come to a common exchange for
            `stall_timeout`; with `on_stall="wait"` there is no limit.
        """
        ends = self._ends_training(meets=True)
        if self._membership is not None:
            if ends:
                self._membership.arrive()
            number = self._membership.call_barrier()
            self._meet(
                lambda member: member.barriers >= number,
                "to call strategy.barrier()",
            )
            if ends:
                self._runtime.coordination.come_back()
        elif not ends:
            return
        # Not the first values, before `fit`: a checkpoint may have others.
        if ends or self._runtime.committed:
            self.pull()

    def await_end_of_training(
        self, then: Callable[[], None] | None = None
    ) -> None:
        """Waits until all workers have ended the training that this one has.

        As `barrier` does, but those that come to the same end in their own
        way, as a callback of `fit` or in `barrier`, count as there, as do
        those whose call of `fit` an exception has ended. Does not wait if this
        worker has not trained since it last waited.

        Args:
          then: Called when all have ended, without arguments.
        """
        if self._ends_training():
            self._wait_for_end()
        if then is not None:
            then()

    def _wait_for_end(self):
        if self._membership is not None:
            arrivals = self._membership.arrive()
            self._meet(
                lambda member: (
                    member.arrivals >= arrivals
                    or self._membership.fits.is_left_by(member.word)
                ),
                "to finish training",
            )
            self._runtime.coordination.come_back()
        self.pull()

    def _ends_training(self, meets=False):
        """Ends what this worker has trained; returns whether it had."""
        self._runtime.local.finish(meets)
        if not self._runtime.settle():
            return False
        self.deregister()
        return True

    def _meet(self, has_come, what):
        self._runtime.call(self._membership.tell)
        missing = []

        def all_there():
            rows = self._runtime.call(self._membership.read)
            missing[:] = termination.missing(
                rows,
                has_come,
                self._expected,
                lost_after=member_table.LOST_AFTER_SECONDS,
            )
            return not missing

        self._runtime.wait(
            all_there, what=lambda: f"{', '.join(missing)} {what}"
        )

    def publish(self, topic: str, content: Any) -> None:
        """Leaves `content` for the other tasks under `topic`.

        Args:
          topic: Short string.
          content: Anything that JSON can hold.
        """
        self._runtime.call(self._reports.publish, topic, content)

    def collect(self, topic: str) -> dict[str, Any]:
        """Returns what all tasks have published under `topic`.

        Returns:
          A dict of task name to content.
        """
        return self._runtime.call(self._reports.collect, topic)

    def publish_metrics(self, model: keras.Model) -> None:
        """Leaves the state of this worker's metrics for `cluster_metrics`."""
        self.publish(
            cluster_metrics.topic(model, self.state),
            cluster_metrics.state(model, self._last_fit_number()),
        )

    def cluster_metrics(self, model: keras.Model) -> dict[str, Any]:
        """The metrics over the data of all workers.

        The sums that Keras's metrics are made of (totals and counts) are
        added up over the workers, as each has last left them with
        `publish_metrics`; the `ClusterMonitor` does so at the end of each
        epoch. Left out are workers that have failed or left, or that have last
        left metrics of this model of another call of `fit` (with
        `decisions="chief"`), of other names or of other shapes.

        Args:
          model: The compiled `keras.Model`.

        Returns:
          A dict of metric name to a float, or to nested lists of floats where
          the metric has several numbers.
        """
        states = self.collect(cluster_metrics.topic(model, self.state))
        for name in self._gone():
            states.pop(name, None)
        return cluster_metrics.total(
            model, states.values(), self._last_fit_number()
        )

    def _last_fit_number(self):
        """The number of this worker's last `fit`, 0 if none is in common."""
        return self._membership.fits.number if self._membership else 0

    def _gone(self):
        """Names of the workers that will train no more, a list."""
        if self._membership is None:
            return []
        rows = self._runtime.call(self._membership.read)
        return termination.gone(
            rows, lost_after=member_table.LOST_AFTER_SECONDS
        )

    def pull(self) -> None:
        """Brings the newest values from the servers to this worker."""
        self._runtime.pull()
