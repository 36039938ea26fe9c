"""The strategies that users construct."""

import atexit
from collections.abc import Callable
import functools
import os
import sys
import time
from typing import Any
from typing import Literal
import warnings
import weakref

import tensorflow as tf

from tfdist.averaging import LocalSteps
from tfdist.cluster import config as cluster_config
from tfdist.cluster import connection
from tfdist.cluster import life
from tfdist.cluster import peers
from tfdist.cluster import preemption
from tfdist.cluster import reports
from tfdist.cluster import server
from tfdist.correction import Correction
from tfdist.runtime import store as store_lib
from tfdist.runtime.all_reduce import ring
from tfdist.runtime.coordination import coordination
from tfdist.runtime.corrections import corrector
from tfdist.runtime.exchange import gradient_counts
from tfdist.runtime.exchange import marks
from tfdist.runtime.exchange import nonfinite as nonfinite_lib
from tfdist.runtime.keras_hooks import extended
from tfdist.runtime.keras_hooks import following
from tfdist.runtime.keras_hooks import leaving
from tfdist.runtime.keras_hooks import warm_start
from tfdist.runtime.recovery import recovery
from tfdist.runtime.variables import freeing
from tfdist.runtime.variables import kernels
from tfdist.runtime.variables import layout
from tfdist.runtime.variables import variable_list
from tfdist.saving import files
from tfdist.saving import refusals
from tfdist.strategies import construction
from tfdist.strategies import options
from tfdist.strategies import training
from tfdist.synchronization import Async
from tfdist.synchronization import Synchronization

_FOREVER_SECONDS = 1e9


class ParameterServerStrategy(training.Training, tf.distribute.Strategy):
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
        For `Sync()` with `local_steps` that average. `TF_CONFIG` has no `ps`
        then. Nobody goes on without a worker: where one has died, the others
        raise `tf.errors.UnavailableError` at their next exchange, at once or
        within about 10 s (one that is stopped or cut off: `worker_timeout`
        if that is longer). `publish` and `collect`, and so
        `cluster_metrics`, know of this worker alone.
      variable_partitioner: Splits large parameters over servers along their
        first axis: a `tf.distribute.experimental.partitioners` object
        (`MinSizePartitioner`, `MaxSizePartitioner`, `FixedShardsPartitioner`)
        or any callable of `shape` and `dtype` that returns the number of
        pieces per axis. For optimizers that update each element for itself.
        Default: every variable is whole.
      warmup_worker_steps: Steps that the first worker trains alone before the
        others begin (Dean et al. 2012); 0 for none. For synchronizations
        without waiting. `fit` waits by itself, a loop of one's own calls
        `wait_for_warm_start`.
      joining: How the others begin: "at_once", or "one_by_one", each
        `warmup_worker_steps` after the one before.
      nonfinite: What is done about an update that has NaN or Inf: "drop"
        leaves all of it out, on all servers, and logs it; "fail" makes the
        worker whose update it is raise `tf.errors.InvalidArgumentError`
        before anything is sent, which leaves the others alone; "ignore" does
        not look.
      start_timeout: Seconds to wait for servers, for the chief's variables,
        and, where updates take the gradients of several workers, for workers
        that have not begun to train.
      worker_timeout: Seconds without a sign of life after which nobody waits
        for a worker; when it comes back, it takes part again.
      on_preemption: What a worker or evaluator does that gets SIGTERM, unless
        the script has a handler of its own. "exit": `fit` (or what runs) ends
        by `SystemExit(0)` after the step, which counts; `finally` and
        `atexit` run, and nobody waits for the worker. "note": it goes on, and
        `preempted` is True. Without servers SIGTERM is left as it is.
      decisions: Who decides, in `fit`, on its end and on learning rates.
        "chief": where the chief's callbacks or code stop training or set the
        rate, all do so at their next step, and what others decide does not
        count while the chief trains; a later call of `fit` begins when the
        chief's does. "each": each worker for itself. See docs/decisions.md.
      server_timeout: Seconds to wait for a server that has died, hangs or
        cannot be reached. When it is back, started again at the same address,
        training goes on.
      stall_timeout: Seconds without progress in a call to servers after which
        the log says what this worker waits for, with the stack; again each
        time that this time has doubled.
      on_stall: What else is done then. "drop": nobody waits any more for a
        worker that is there and sends no gradients. "fail": the process ends
        with status 70 (a call that waits in TensorFlow cannot be interrupted
        in another way). "wait": nothing; and servers that are gone are waited
        for without end, where else `TimeoutError` is raised after
        `server_timeout`.
      snapshot_dir: Directory in which servers keep snapshots of what they
        hold, and find them when they are started again: optimizer slots and
        the state of algorithms, which no worker has. Seen by servers alone.
        When training has ended the snapshots are removed. Default: none.
      snapshot_every: Seconds between two snapshots.
      seed: Integer for `keras.utils.set_random_seed`, the same on all
        workers, so that they shuffle and split data alike. Default: in a
        cluster, a number derived from its addresses unless a seed has been
        set; in one process, none.

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
        warmup_worker_steps: int = 0,
        joining: Literal["at_once", "one_by_one"] = "at_once",
        nonfinite: Literal["drop", "fail", "ignore"] = "drop",
        start_timeout: float = 300.0,
        worker_timeout: float = 10.0,
        on_preemption: Literal["exit", "note"] = "exit",
        decisions: Literal["chief", "each"] = "chief",
        server_timeout: float = 300.0,
        stall_timeout: float = 600.0,
        on_stall: Literal["drop", "fail", "wait"] = "drop",
        snapshot_dir: str | os.PathLike[str] | None = None,
        snapshot_every: float = 30.0,
        seed: int | None = None,
    ):
        construction.check_arguments(
            worker_timeout,
            start_timeout,
            variable_partitioner,
            communication,
            nonfinite,
            on_preemption,
        )
        construction.check_decisions(decisions)
        construction.check_recovery(
            server_timeout,
            stall_timeout,
            on_stall,
            snapshot_dir,
            snapshot_every,
        )
        method = construction.check_method(synchronization, correction)
        local_steps = construction.check_local_steps(local_steps)
        self._warm_start = warm_start.WarmStart(
            warmup_worker_steps, joining, method, training.STALLED_AFTER_SECONDS
        )
        in_ring = communication == "ring"
        look_up = None
        if cluster_resolver is None:
            config = cluster_config.ClusterConfig.from_tf_config(
                needs_servers=not in_ring
            )
        else:
            look_up = functools.partial(
                cluster_config.ClusterConfig.from_resolver,
                cluster_resolver,
                needs_servers=not in_ring,
            )
            config = look_up()
        self._cluster = config
        if in_ring:
            ring.check(
                config,
                synchronization=method,
                correction=correction,
                local_steps=local_steps,
                partitioner=variable_partitioner,
            )
        in_ring = in_ring and config.num_workers > 1
        if config.is_ps:
            sys.exit(
                server.serve(
                    config,
                    start_timeout=start_timeout,
                    snapshot_dir=snapshot_dir,
                    snapshot_every=snapshot_every,
                )
            )
        if config.num_ps:
            preemption.install(
                exits=on_preemption == "exit", stop=leaving.stop_loops
            )
        others = None
        if in_ring:
            others = peers.join(config, start_timeout, worker_timeout)
        worker_device, devices = connection.connect(config, start_timeout)
        self._membership = (
            life.join(config, devices, start_timeout) if config.num_ps else None
        )
        self._connected_at = time.monotonic()
        self._start_timeout = start_timeout
        self._reports = (
            reports.Reports(devices[0], config)
            if config.num_ps
            else reports.OwnReports(config)
        )
        self._settled_at = (0, 0)
        construction.set_seed(config, seed)
        if config.num_workers > 1:
            # Keras expects the steps of the whole data set, and calls the
            # end of this worker's share a lack of data.
            warnings.filterwarnings("ignore", "Your input ran out of data")
        self._store = store_lib.ParameterStore(
            namespace=construction.namespace(config),
            devices=devices,
            worker_device=worker_device,
            worker_id=config.worker_id if config.is_worker else 0,
            # Without servers each worker holds all there is.
            is_chief=config.is_chief or in_ring,
            timeout=start_timeout,
            partitioner=variable_partitioner,
        )
        self._store.files = files.of(config)
        if not config.is_chief:
            refusals.refuse_to_open()
        if in_ring:
            # All workers bring all variables to each collective, and would
            # let go of them at different moments.
            self._store.variables = variable_list.VariableList(keeps=True)
        self._store.nonfinite = nonfinite_lib.Nonfinite(
            self._store, nonfinite, config.task_name
        )
        if config.num_ps > 1 and config.num_workers > 1:
            self._store.marks = marks.Marks(
                self._store,
                num_workers=config.num_workers,
                worker_id=self._store.worker_id,
            )
        self._store.state.set_methods(
            num_workers=config.num_workers,
            correction=correction,
            local_steps=local_steps,
        )
        if self._membership is not None:
            self._store.clients = self._membership.clients
            self._store.build_enlisted = functools.partial(
                self._membership.tables[0].build_enlisted,
                config.num_workers,
                config.initial_workers,
            )
        # As they were given: what another cluster would make of them.
        self._synchronization, self._correction = method, correction
        if config.is_local:
            method = method.alone()
        else:
            method = method.resolve(config.num_workers)
        if correction is not None:
            correction = correction.resolve(method, config.num_workers)
            # Who does not train has no gradients that are late.
            if config.is_worker or config.is_local:
                self._store.corrector = corrector.Corrector(
                    self._store,
                    correction,
                    num_workers=config.num_workers,
                    worker_id=self._store.worker_id,
                )
        self._local_steps = local_steps
        if local_steps is not None:
            self._store.local = construction.make_local(
                self._store,
                # Those at the beginning: what follows from their number is
                # part of the method, on which all workers agree.
                local_steps.resolve(method, correction, config.initial_workers),
                method,
                num_workers=config.num_workers,
                others=others,
                timeout=start_timeout,
            )
            atexit.register(
                construction.end_local_steps, weakref.ref(self._store.local)
            )
        by_worker = correction is None or correction.on_worker
        if not (in_ring or (isinstance(method, Async) and by_worker)):
            # Whoever is there and sends nothing is waited for, or not.
            idle = stall_timeout if on_stall == "drop" else _FOREVER_SECONDS
            self._coordinate(method, correction, worker_timeout, idle)
        else:
            self._store.gradient_counts = gradient_counts.GradientCounts(
                self._store,
                config.num_workers,
                # In a ring each counts its own.
                {self._store.worker_id: config.task_name}
                if in_ring
                else dict(enumerate(config.worker_names)),
            )
        if config.num_ps:
            self._store.recovery = recovery.Recovery(
                self._store,
                config,
                self._membership,
                timeout=server_timeout,
                look_up=look_up,
                stall_timeout=stall_timeout,
                on_stall=on_stall,
            )
            self._membership.on_beat.append(self._store.recovery.leave_manifest)
            self._store.freeing = freeing.Freeing(
                self._store, config, self._membership, start_timeout
            )
            self._store.kernels = kernels.Kernels(self._store)
        if (
            decisions == "chief"
            and config.num_ps
            and config.is_worker
            and config.num_workers > 1
        ):
            self._store.following = following.Following(
                self._store,
                self._membership,
                config,
                worker_timeout=worker_timeout,
                start_timeout=start_timeout,
                stalled_after=self._stalled_after,
            )
        super().__init__(
            extended.ParameterServerExtended(self, self._store, config)
        )

    def _coordinate(self, method, correction, worker_timeout, idle):
        config = self._cluster
        membership = self._membership
        self._store.coordination = coordination.Coordination(
            self._store,
            method,
            correction,
            worker_names=config.worker_names,
            initial_workers=config.initial_workers,
            worker_id=self._store.worker_id,
            worker_timeout=worker_timeout,
            start_timeout=self._start_timeout,
            idle_timeout=idle,
            members_table=membership.tables[0] if membership else None,
        )
        if membership is not None:
            membership.on_beat.append(self._store.coordination.tick)

    @property
    def cluster(self) -> cluster_config.ClusterConfig:
        """The `ClusterConfig`: who this task is, who the others are."""
        return self._cluster

    @property
    def synchronization(self) -> Synchronization:
        """The `Synchronization`, as it was given."""
        return self._synchronization

    @property
    def correction(self) -> Correction | None:
        """The `Correction`, as it was given, or None."""
        return self._correction

    @property
    def local_steps(self) -> LocalSteps | None:
        """The `LocalSteps`, as it was given, or None."""
        return self._local_steps

    @property
    def journal(self):
        """The record of this worker's exchanges, a `Journal`."""
        return self._store.journal

    @property
    def state(self):
        """All that the training has come to, a `TrainingState`.

        Also trackable: `tf.train.Checkpoint(model=model, state=strategy.state)`
        saves with the model what Keras does not know of.
        """
        return self._store.state

    def commit(self) -> None:
        """Makes sure that servers hold all variables made so far.

        The chief gives them their first values, the others wait for that.
        Happens by itself at the first step.

        Raises:
          ModelMismatchError: The chief's variables are others.
          TimeoutError: The chief did not do so within `start_timeout`.
        """
        self._store.commit()

    @property
    def looks_ahead(self) -> bool:
        """Whether workers compute with other values than the parameters.

        Then `refresh` before you evaluate or save by other means than
        `evaluate`, `predict` and the `ClusterMonitor`.
        """
        corrector = self._store.corrector
        return corrector is not None and corrector.correction.looks_ahead

    @property
    def bytes_per_server(self) -> tuple[int, ...]:
        """Bytes of variables placed on each server, a tuple of ints."""
        return self._store.bytes_per_shard

    @property
    def preempted(self) -> bool:
        """Whether this process has got SIGTERM and is to leave.

        For loops of one's own with `on_preemption="note"`.
        """
        return preemption.received()

    def layout(self, variables):
        """Where `variables` (Keras's) lie on servers; see `layout.describe`."""
        return layout.describe(self._store, variables)
