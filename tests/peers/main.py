"""Programs that each worker runs one after the other in one process."""

import importlib
import traceback

import keras

from tests.multi_process import handshake
import tfdist


def strategy_of(compression=None, **tolerance):
    """The strategy of a test.

    Args:
        compression: of `PeerToPeerStrategy`.
        **tolerance: of `FaultTolerance`, beyond a start timeout.
    """
    settings = {"start_timeout": 60.0, "stall_timeout": 40.0, **tolerance}
    return tfdist.PeerToPeerStrategy(
        compression,
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
    strategy = strategy_of(compression, **tolerance)
    worker = strategy.cluster.worker_id
    results = {}
    for module, names in modules.items():
        programs = importlib.import_module(f"tests.{module}")
        for name in names:
            keras.backend.clear_session()
            print("program", name, flush=True)
            try:
                results[name] = getattr(programs, name)(strategy, worker)
            except Exception as error:  # The test of this program shows it.
                traceback.print_exc()
                results[name] = f"{type(error).__name__}: {error}"
            strategy.barrier()
    handshake.report(**results)
