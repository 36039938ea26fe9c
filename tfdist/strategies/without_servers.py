"""The base of strategies without servers."""

import atexit
from collections.abc import Callable
import contextlib
from typing import Any
import weakref

from absl import logging
import keras
import tensorflow as tf

from tfdist import cluster_metrics
from tfdist.all_reduce import extended
from tfdist.all_reduce import journal as journal_lib
from tfdist.all_reduce import nonfinite as nonfinite_lib
from tfdist.all_reduce import state as state_lib
from tfdist.cluster import reports
from tfdist.cluster import status_file
from tfdist.cluster import termination
from tfdist.saving import refusals
from tfdist.strategies import construction
from tfdist.strategies import fault_tolerance as fault_tolerance_lib
from tfdist.strategies import whole_cluster


class StrategyWithoutServers(
    whole_cluster.ClusterMixin, tf.distribute.Strategy
):
    """A base: each worker has a replica and an optimizer of its own.

    A class that derives from it has `_connect` and `_engine_of`.
    """

    def _construct(
        self,
        cluster_resolver=None,
        nonfinite="drop",
        fault_tolerance=None,
        seed=None,
        **unknown,
    ):
        fault_tolerance_lib.refuse(unknown, type(self))
        construction.check_arguments(None, nonfinite, "chief")
        seed = construction.checked_seed(seed)
        tolerance = fault_tolerance_lib.checked(fault_tolerance)
        config, look_up = construction.cluster(cluster_resolver, False)
        construction.check_without_servers(config, None)
        self._cluster = config
        self._resolver = construction.resolver_of(cluster_resolver)
        self._reports = reports.OwnReports(config)
        connections = self._connect(look_up, tolerance)
        construction.begin_program(config)
        construction.set_seed(config, seed)
        if not config.is_chief:
            refusals.refuse_to_open()
        check = nonfinite_lib.FiniteCheck(
            nonfinite, config.task_name, connections.worker_device
        )
        made = extended.AllReduceExtended(
            self,
            self._engine_of(connections, tolerance, check),
            connections.worker_device,
        )
        self._engine = made.engine
        status_file.watch(self._engine.journal)
        self._run_state = state_lib.AllReduceState(self._engine)
        made.on_variable = self._run_state.variable_was_made
        super().__init__(made)
        atexit.register(_end, weakref.ref(self._engine))

    def _connect(self, look_up, tolerance):
        """Connects this process to the others.

        Args:
          look_up: As of `construction.connect`.
          tolerance: The `FaultTolerance`.

        Returns:
          The connections, of `construction.connect`.
        """
        raise NotImplementedError

    def _engine_of(self, connections, tolerance, check):
        """Returns a callable of the strategy that makes the `Engine`.

        Args:
          connections: From `_connect`.
          tolerance: The `FaultTolerance`.
          check: The `FiniteCheck`.
        """
        raise NotImplementedError

    def __repr__(self) -> str:
        return construction.described(self, *self._axes())

    def _axes(self):
        """Returns the parts of the method that `repr` shows."""
        return (self.synchronization,)

    @property
    def journal(self) -> journal_lib.StepJournal:
        """The record of this worker's steps, a `StepJournal`."""
        return self._engine.journal

    @property
    def state(self) -> state_lib.AllReduceState:
        """All that the training has come to, an `AllReduceState`.

        Also trackable: `tf.train.Checkpoint(model=model, state=strategy.state)`
        saves with the model what Keras does not know of.
        """
        return self._run_state

    @property
    def data_shares(self) -> int | None:
        """Into how many shares the data of the last `fit` was divided, int.

        None where it was not: each worker has all that it is given.
        """
        return self.extended.data_shares

    @property
    def uses_lookahead(self) -> bool:
        """False: workers compute with the parameters."""
        return False

    @property
    def preempted(self) -> bool:
        """False: without servers SIGTERM is left as it is."""
        return False

    @property
    def recoveries(self) -> list[Any]:
        """Losses of servers: none."""
        return []

    def updates_applied(self) -> list[int]:
        """Updates made so far, a list of one int: those of each worker."""
        return [self._engine.journal.updates]

    def updates_pulled(self) -> int:
        """The same, an int: what this worker has applied."""
        return self._engine.journal.updates

    def gradient_counts(self) -> dict[str, dict[str, int]]:
        """Returns the fate of this worker's gradients.

        Returns:
          A dict of this worker's name to a dict with `pushed`, `accepted`,
          `dropped`, `nonfinite` (those that were dropped had NaN or Inf) and
          `staleness` (0), ints.
        """
        journal = self._engine.journal
        return {
            self._cluster.task_name: {
                "pushed": journal.count,
                "accepted": journal.count - journal.dropped,
                "dropped": journal.dropped,
                "nonfinite": journal.dropped,
                "staleness": 0,
            }
        }

    def push_counts(self) -> dict[str, Any]:
        """Returns the same as `ParameterServerStrategy` does."""
        journal = self._engine.journal
        return {
            "pushed": journal.count,
            "dropped": journal.dropped,
            "applied": [journal.count - journal.dropped],
            "elsewhere": [0],
            "lost": [0],
        }

    def training_is_over(self) -> bool:
        """Whether this worker has seen the end of the training of all."""
        return not (self._engine.fits.is_running or self._engine.has_trained)

    def barrier(self) -> None:
        """Waits until all workers have reached their own call of this.

        A worker whose loop has ended before those of others takes part in
        their steps until then, if one model is trained in loops; several
        models must be trained for the same number of steps on all workers.

        Raises:
          tf.errors.UnavailableError: A worker is gone.
          tf.errors.DeadlineExceededError: A worker that is there has not come
            to a common step for `stall_timeout`; with `on_stall="wait"` there
            is no limit.
          RuntimeError: A worker is elsewhere in its program. Or loops of the
            user's own have trained, and workers now hold different weights.
        """
        self._engine.barrier()

    def await_end_of_training(
        self, then: Callable[[], None] | None = None
    ) -> None:
        """Waits until all workers have ended the training that this one has.

        As `barrier` does. Callbacks call it at the end of `fit`: there all have
        just ended their steps, and nobody waits.

        Args:
          then: Called when all have ended, without arguments; at the end of
            `fit` after all callbacks, with the chief's values.
        """
        fits = self._engine.fits
        if not fits.is_ending:
            self._engine.barrier()
            if then is not None:
                then()
        elif then is not None:
            fits.call_at_end(then)

    def own_files(self) -> contextlib.AbstractContextManager[None]:
        """Scope in which this task writes what it saves, chief or not.

        See `ParameterServerStrategy.own_files`.
        """
        return self._engine.files.own()

    def retry_on_server_failure(
        self, function: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Returns `function`: there are no servers."""
        return function

    def commit(self) -> None:
        """Does nothing: the first step or `fit` begins with equal values."""

    def pull(self) -> None:
        """Does nothing: each worker computes with its own parameters."""

    def flush(self) -> None:
        """Does nothing: no step is local."""

    def deregister(self) -> None:
        """Does nothing: all workers are needed for each step."""

    def wait_for_warm_start(self) -> None:
        """Does nothing: all workers begin together."""

    def publish(self, topic: str, content: Any) -> None:
        """Leaves `content` for `collect` on this worker.

        Args:
          topic: Short string.
          content: Anything that JSON can hold.
        """
        self._reports.publish(topic, content)

    def collect(self, topic: str) -> dict[str, Any]:
        """Returns what this worker has published under `topic`.

        Returns:
          A dict of this task's name to content.
        """
        return self._reports.collect(topic)

    def publish_metrics(self, model: keras.Model) -> None:
        """Leaves the state of this worker's metrics for `cluster_metrics`."""
        self.publish(
            cluster_metrics.topic(model, self.state),
            cluster_metrics.state(model),
        )

    def cluster_metrics(self, model: keras.Model) -> dict[str, Any]:
        """The metrics over the data of this worker.

        Args:
          model: The compiled `keras.Model`.

        Returns:
          A dict of metric name to a float, or to nested lists of floats where
          the metric has several numbers.
        """
        states = self.collect(cluster_metrics.topic(model, self.state))
        return cluster_metrics.total(model, states.values())


def _end(reference):
    """At the end of the process: others may still need this worker.

    Args:
      reference: Weak reference to the engine.
    """
    engine = reference()
    if engine is None or termination.script_has_failed():
        return
    try:
        # After an exception, others meet at the end of their `fit`, and may
        # come to no barrier.
        engine.fits.end_abandoned()
        if engine.has_trained:
            engine.barrier()
    except (tf.errors.OpError, RuntimeError) as error:
        logging.warning("The workers did not end together: %s", error)
