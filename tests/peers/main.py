"""Programs that each worker runs one after the other in one process."""

from tests.all_reduce import main as programs
import tfdist


def strategy_of(compression=None, warmup_peers=None, **tolerance):
    """The strategy of a test.

    Args:
        compression: of `PeerToPeerStrategy`.
        warmup_peers: the same; they make 20 steps before others join.
        **tolerance: of `FaultTolerance`, beyond a start timeout.
    """
    settings = {"start_timeout": 60.0, "stall_timeout": 40.0, **tolerance}
    return tfdist.PeerToPeerStrategy(
        compression,
        warmup_peers=warmup_peers,
        warmup_updates=20,
        seed=1,
        fault_tolerance=tfdist.FaultTolerance(**settings),
    )


def run(modules, compression=None, **tolerance):
    """Runs programs; reports what each returns, or its error.

    Args:
        modules: module of `tests` -> names of its functions.
        compression: as of `strategy_of`.
        **tolerance: as of `strategy_of`.
    """
    programs.run_programs(strategy_of(compression, **tolerance), modules)
