"""The strategies that users construct."""

import atexit
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any
from typing import Literal
import weakref

import keras
import tensorflow as tf
from typing_extensions import Unpack

from tfdist.averaging import LocalSteps
from tfdist.cluster import preemption
from tfdist.cluster import status_file
from tfdist.cluster import waiting
from tfdist.correction import Correction
from tfdist.runtime import compose
from tfdist.runtime.checkpoint.training_state import TrainingState
from tfdist.runtime.exchange.journal import Journal
from tfdist.runtime.keras_hooks import extended
from tfdist.runtime.keras_hooks import warm_start
from tfdist.runtime.variables import layout
from tfdist.strategies import construction
from tfdist.strategies import fault_tolerance as fault_tolerance_lib
from tfdist.strategies import options
from tfdist.strategies import training
from tfdist.strategies import whole_cluster
from tfdist.strategies.fault_tolerance import FaultTolerance
from tfdist.strategies.method import Method
from tfdist.synchronization import Async
from tfdist.synchronization import Synchronization


class ParameterServerStrategy(
    training.TrainingMixin, whole_cluster.ClusterMixin, tf.distribute.Strategy
):
    """Trains a Keras model on workers that share parameters on servers.

    Every task of the cluster runs the same script. Constructing the strategy
    on a `ps` task serves until training is over and then ends the process
    with status 0; on a worker it connects to the servers. Without `TF_CONFIG`
    the same code runs in one process without servers.

    Each worker computes gradients on its own share of the data, sends them to
    the servers, where the optimizer applies them, and gets the fresh
    parameters back. By default they are applied at once (asynchronously, as
    in DistBelief's Downpour SGD, Dean et al. 2012, section 4.1);
    `synchronization` says otherwise.

    Args:
      cluster_resolver: A `tf.distribute.cluster_resolver.ClusterResolver`;
        default: read `TF_CONFIG`. It is asked again where a server that has
        died is.
      synchronization: When pushed gradients become parameters, and who waits:
        one of `tfdist.synchronization`; default: `Async()`.
      correction: What is done about late gradients: one of
        `tfdist.correction`; default: nothing.
      local_steps: What a worker does between two exchanges: one of
        `tfdist.averaging`, or for `ParameterAveraging` their number; default:
        every step is exchanged.
      communication: "parameter_server", or "ring": without servers, by
        TensorFlow's ring collectives between workers, with the same results.
        For `Sync()` with `local_steps` that average; without local steps use
        `tfdist.AllReduceStrategy`. `TF_CONFIG` has no `ps` then. Nobody goes
        on without a worker: where one has died, the others raise
        `tf.errors.UnavailableError` at their next exchange, at once or within
        about 10 s (one that is stopped or cut off: `worker_timeout` if that is
        longer). `publish` and `collect`, and so `cluster_metrics`, know of
        this worker alone.
      variable_partitioner: Splits large parameters over servers along their
        first axis: a `tf.distribute.experimental.partitioners` object
        (`MinSizePartitioner`, `MaxSizePartitioner`, `FixedShardsPartitioner`)
        or any callable of `shape` and `dtype` that returns the number of
        pieces per axis. For optimizers that update each element for itself.
        Default: every variable is whole.
      table_bytes: Embeddings of so many bytes or more are tables: they live on
        the servers alone and are read and updated by rows, so that a model
        may be larger than a worker. 64 MiB (`64 << 20`) is a good size. For
        `Async()`, and for `Sync()` without backup workers, which averages all
        but the rows of tables; without corrections and local steps. See
        docs/tables.md. Default: each worker has a replica of every variable.
      table_rule: How an optimizer updates tables. "lazy": rows that have a
        gradient, each with its slots, and no other. "dense": all rows, as
        Keras does; with `Async()` only. For SGD without momentum and Adagrad
        it is the same.
      warmup_worker_steps: Steps that the first worker trains alone before the
        others begin (Dean et al. 2012); 0 for none. For synchronizations
        without waiting. `fit` waits by itself, a loop of one's own calls
        `wait_for_warm_start`.
      worker_start: How the workers start. "together": in `fit`, each waits
        after its first step until the others have made theirs (a minute for
        a worker that never came, `start_timeout` for one that is preparing),
        unless `decisions` is "each"; where workers wait for each other's
        gradients, they wait `start_timeout` for both; with
        `warmup_worker_steps` all but the first start after these.
        "staggered": each starts `warmup_worker_steps` after the one before.
        "independent": no worker waits. A worker that is restarted or joins
        later never waits.
      nonfinite: What is done about an update that has NaN or Inf: "drop"
        leaves all of it out, on all servers, and logs it; "fail" makes the
        worker whose update it is raise `tf.errors.InvalidArgumentError`
        before anything is sent, which leaves the others alone; "ignore" does
        not look.
      decisions: Who decides, in `fit`, on its end and on learning rates.
        "chief": where the chief's callbacks or code stop training or set the
        rate, all do so at their next step, and what others decide does not
        count while the chief trains; a later call of `fit` begins when the
        chief's does. "each": each worker for itself. See docs/decisions.md.
      work: How `fit` divides training data over the workers. "shares": each
        has a fixed share. "queue": each takes portions when it is free, so
        that fast workers train on more, and an epoch ends when all its
        examples have been seen, each once, although workers die. For methods
        in which nobody waits for others, without local steps; see
        docs/training.md.
      portions_per_worker: With work="queue", into how many portions an epoch
        is cut, for each of the workers that begin.
      fault_tolerance: What is done about tasks that die, hang or come back,
        a `tfdist.FaultTolerance`.
      seed: Integer for `keras.utils.set_random_seed`, the same on all
        workers, so that they shuffle and split data alike. Default: in a
        cluster, a number derived from the workers' addresses unless a seed
        has been set; in one process, none.

    Raises:
      ClusterConfigError: The cluster's description is malformed.
      TimeoutError: The servers could not be reached within `start_timeout`.
    """

    def __init_subclass__(cls, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        options.write_out(cls, ParameterServerStrategy)

    def __init__(
        self,
        cluster_resolver: tf.distribute.cluster_resolver.ClusterResolver
        | None = None,
        *,
        synchronization: Synchronization | None = None,
        correction: Correction | None = None,
        local_steps: LocalSteps | int | None = None,
        communication: Literal["parameter_server", "ring"] = "parameter_server",
        variable_partitioner: Callable[..., Any] | None = None,
        table_bytes: int | None = None,
        table_rule: Literal["lazy", "dense"] = "lazy",
        warmup_worker_steps: int = 0,
        worker_start: Literal[
            "together", "staggered", "independent"
        ] = "together",
        nonfinite: Literal["drop", "fail", "ignore"] = "drop",
        decisions: Literal["chief", "each"] = "chief",
        work: Literal["shares", "queue"] = "shares",
        portions_per_worker: int = 8,
        fault_tolerance: FaultTolerance | None = None,
        seed: int | None = None,
        **unknown: Unpack[options.Unknown],
    ):
        fault_tolerance_lib.refuse(unknown, type(self))
        construction.check_arguments(variable_partitioner, nonfinite, decisions)
        seed = construction.checked_seed(seed)
        tolerance = fault_tolerance_lib.checked(fault_tolerance)
        self._method = Method(
            Async() if synchronization is None else synchronization,
            correction,
            local_steps=local_steps,
            communication=communication,
        )
        if self._method.is_among_peers:
            raise ValueError(
                "Argument `communication` must be one of parameter_server, "
                "ring. For updates between workers use "
                "tfdist.PeerToPeerStrategy(), and tfdist.GossipStrategy() "
                f"where they average. Received: communication={communication!r}"
            )
        if self._method.all_reduces_gradients:
            raise ValueError(
                "Argument `local_steps` must be one of tfdist.averaging, or "
                'their number, with communication="ring". For gradients of '
                "every step use tfdist.AllReduceStrategy(). Received: "
                "local_steps=None"
            )
        self._warm_start = warm_start.WarmStart(
            warmup_worker_steps,
            worker_start,
            self._method.synchronization,
            waiting.STALLED_AFTER_SECONDS,
        )
        config, look_up = construction.cluster(
            cluster_resolver, self._method.needs_servers
        )
        if not self._method.needs_servers:
            construction.check_without_servers(config, variable_partitioner)
        resolved = construction.resolve(self._method, config)
        tables = construction.tables(self._method, table_bytes, table_rule)
        construction.check_helpers(config, self._method, table_bytes)
        portions = construction.portions(
            self._method, decisions, work, portions_per_worker
        )
        construction.serve_if_server(config, look_up, tolerance)
        self._resolver = construction.resolver_of(cluster_resolver)
        connections = construction.connect(
            config, look_up, resolved.needs_servers, tolerance
        )
        config = connections.config
        construction.begin_program(config)
        construction.set_seed(config, seed)
        self._begin(config, connections, tolerance)
        self._runtime = compose.compose(
            self._method,
            resolved,
            connections,
            tolerance,
            namespace=construction.namespace(config),
            partitioner=variable_partitioner,
            nonfinite=nonfinite,
            decisions=decisions,
            starts_together=self._warm_start.starts_together,
            tables=tables,
            portions_per_worker=portions,
        )
        if config.num_ps:
            self._runtime.recovery.on_first_lost.append(
                self._reports.publish_again
            )
        atexit.register(
            construction.end_local_steps, weakref.ref(self._runtime.local)
        )
        status_file.watch(self._runtime.journal, connections.membership)
        super().__init__(
            extended.ParameterServerExtended(self, self._runtime, config)
        )

    def __repr__(self) -> str:
        return construction.described(
            self, self.synchronization, self.correction, self.local_steps
        )

    @property
    def method(self) -> Method:
        """The `Method`, as it was given."""
        return self._method

    @property
    def synchronization(self) -> Synchronization:
        """The `Synchronization`, as it was given."""
        return self._method.synchronization

    @property
    def correction(self) -> Correction | None:
        """The `Correction`, as it was given, or None."""
        return self._method.correction

    @property
    def local_steps(self) -> LocalSteps | None:
        """The `LocalSteps`, as it was given, or None."""
        return self._method.local_steps

    @property
    def journal(self) -> Journal:
        """The record of this worker's exchanges, a `Journal`."""
        return self._runtime.journal

    @property
    def state(self) -> TrainingState:
        """All that the training has come to, a `TrainingState`.

        Also trackable: `tf.train.Checkpoint(model=model, state=strategy.state)`
        saves with the model what Keras does not know of.
        """
        return self._runtime.state

    def commit(self) -> None:
        """Makes sure that servers hold all variables made so far.

        The chief gives them their first values, the others wait for that.
        Happens by itself at the first step.

        Raises:
          ModelMismatchError: The chief's variables are others.
          TimeoutError: The chief did not do so within `start_timeout`.
        """
        self._runtime.commit()

    @property
    def uses_lookahead(self) -> bool:
        """Whether workers compute with other values than the parameters.

        Then `pull` before you read the weights by other means than
        `evaluate`, `predict`, the `ClusterMonitor` and those that
        docs/checkpoints.md lists.
        """
        return self._runtime.corrector.uses_lookahead

    @property
    def bytes_per_server(self) -> tuple[int, ...]:
        """Bytes of variables placed on each server, a tuple of ints."""
        return self._runtime.store.bytes_per_shard

    @property
    def preempted(self) -> bool:
        """Whether this process has got SIGTERM and is to leave.

        For loops of one's own with `on_preemption="note"`. A script that has
        seen True should end with `sys.exit(143)`: it counts as one that has
        left, and may be started again.
        """
        return preemption.tell_script()

    def layout(self, variables: Sequence[keras.Variable]) -> dict[str, Any]:
        """Layout of `variables` (Keras's) on servers; see `layout.describe`."""
        return layout.describe(self._runtime.store, variables)


options.write_out(ParameterServerStrategy, ParameterServerStrategy)
