"""Synchronous training without servers, as users construct it."""

from typing_extensions import Unpack

from tfdist.all_reduce import collectives as collectives_lib
from tfdist.all_reduce import engine as engine_lib
from tfdist.saving import files
from tfdist.strategies import construction
from tfdist.strategies import options
from tfdist.strategies import strategy as strategy_lib
from tfdist.strategies import without_servers
from tfdist.strategies.method import Method
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
    about `worker_timeout`; with `ClusterCheckpoint`, `tfdist launch` starts all
    again where it was saved. Moving statistics,
    the ends of epochs, and rules for callbacks: docs/strategies.md.

    Args:
      **kwargs: Arguments of `ParameterServerStrategy`, documented there, that
        are not about servers. Of `fault_tolerance`: `start_timeout`,
        `worker_timeout`, and `stall_timeout`, the seconds that a worker may
        keep the others waiting (with `on_stall="wait"` without bound).
    """

    def __init__(self, **kwargs: Unpack[options.WithoutServers]):
        self._construct(**kwargs)

    def _connect(self, look_up, tolerance):
        config = self._cluster
        return construction.connect(
            config, look_up, config.num_workers == 1, tolerance
        )

    def _engine_of(self, connections, tolerance, check):
        collectives = collectives_lib.of(connections.peers, tolerance)

        def make(strategy):
            return engine_lib.Engine(
                strategy,
                self._cluster,
                collectives,
                check,
                files.of(self._cluster),
            )

        return make

    @property
    def method(self) -> Method:
        """The `Method`."""
        return Method(Sync(), communication="ring")

    @property
    def synchronization(self) -> Sync:
        """`Sync()`: all workers' gradients make each update."""
        return Sync()


options.write_out(AllReduceStrategy, strategy_lib.ParameterServerStrategy)
