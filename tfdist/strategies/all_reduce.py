"""Synchronous training without servers, as users construct it."""

import atexit
import weakref

from typing_extensions import Unpack

from tfdist.all_reduce import collectives as collectives_lib
from tfdist.all_reduce import engine as engine_lib
from tfdist.all_reduce import extended
from tfdist.all_reduce import nonfinite as nonfinite_lib
from tfdist.all_reduce import state as state_lib
from tfdist.cluster import reports
from tfdist.saving import files
from tfdist.saving import refusals
from tfdist.strategies import construction
from tfdist.strategies import fault_tolerance as fault_tolerance_lib
from tfdist.strategies import options
from tfdist.strategies import strategy as strategy_lib
from tfdist.strategies import without_servers
from tfdist.synchronization import Sync


class AllReduceStrategy(without_servers.StrategyWithoutServers):
    """Synchronous SGD without servers: workers average gradients themselves.

    The updates of `ParameterServerStrategy(synchronization=Sync())`, by
    TensorFlow's ring collectives (Patarasuk and Yuan 2009): each worker sends
    2 (N - 1) / N of the gradients' bytes per step, whatever their number N,
    and holds all parameters and the optimizer's state itself. `TF_CONFIG` has
    workers alone. Gradients are averaged before Keras's own step, so that
    clipping, accumulation and loss scales see the mean. Where a worker has
    died, the others raise `tf.errors.UnavailableError`, which names it, within
    about `worker_timeout`; with `ClusterCheckpoint` and `tfdist launch
    --max_restarts=2` all begin again where it was saved. Moving statistics,
    the ends of epochs, and rules for callbacks: docs/strategies.md.

    Args:
      **kwargs: Arguments of `ParameterServerStrategy`, documented there, that
        are not about servers. Of `fault_tolerance`: `start_timeout`,
        `worker_timeout`, and `stall_timeout`, the seconds that a worker may
        keep the others waiting (with `on_stall="wait"` without bound).
    """

    def __init__(self, **kwargs: Unpack[options.WithoutServers]):
        self._construct(**kwargs)

    def _construct(
        self,
        cluster_resolver=None,
        nonfinite="drop",
        fault_tolerance=None,
        seed=None,
        **old_arguments,
    ):
        construction.check_arguments(None, nonfinite, "chief")
        tolerance = fault_tolerance_lib.given(
            fault_tolerance, old_arguments, type(self)
        )
        config, look_up = construction.cluster(cluster_resolver, False)
        construction.check_without_servers(config, None)
        self._resolver = construction.resolver_of(cluster_resolver, config)
        connections = construction.connect(
            config, look_up, config.num_workers == 1, tolerance
        )
        construction.begin_program(config)
        construction.set_seed(config, seed)
        self._cluster = config
        self._reports = reports.OwnReports(config)
        collectives = collectives_lib.of(connections.peers, tolerance)
        if not config.is_chief:
            refusals.refuse_to_open()

        def make_engine(strategy):
            return engine_lib.Engine(
                strategy,
                config,
                collectives,
                nonfinite_lib.FiniteCheck(nonfinite, config.task_name),
                files.of(config),
            )

        made = extended.AllReduceExtended(
            self, make_engine, connections.worker_device
        )
        self._engine = made.engine
        self._run_state = state_lib.AllReduceState(self._engine)
        made.on_variable = self._run_state.variable_was_made
        super().__init__(made)
        atexit.register(without_servers.end, weakref.ref(self._engine))

    @property
    def synchronization(self) -> Sync:
        """`Sync()`: all workers' gradients make each update."""
        return Sync()


options.write_out(AllReduceStrategy, strategy_lib.ParameterServerStrategy)
