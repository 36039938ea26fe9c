"""Programs that each worker runs one after the other in one process."""

import importlib
import traceback

import keras

from tests.multi_process import handshake
import tfdist


def run(modules, period=None, **more):
    """Runs programs; reports what each returns, or its error.

    Args:
        modules: module of `tests` -> names of its functions.
        period: of parameter averaging; all-reduce of gradients without.
        **more: arguments of the strategy.
    """
    settings = {
        "seed": 1,
        "fault_tolerance": tfdist.FaultTolerance(
            start_timeout=60.0, stall_timeout=120.0
        ),
        **more,
    }
    if period is None:
        strategy = tfdist.AllReduceStrategy(**settings)
    else:
        strategy = tfdist.ParameterAveragingStrategy(
            period, communication="ring", **settings
        )
    run_programs(strategy, modules)


def run_programs(strategy, modules):
    """The same under a strategy.

    Args:
        strategy: the strategy.
        modules: as of `run`.
    """
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
