"""Workers under `GossipStrategy`: programs, and training with faults."""

import keras

from tests.all_reduce import main
from tests.multi_process import handshake
from tests.peers import faults
from tests.peers import programs
import tfdist


def strategy_of(**tolerance):
    """The strategy of a test.

    Args:
        **tolerance: of `FaultTolerance`, beyond a start timeout.
    """
    settings = {"start_timeout": 60.0, "stall_timeout": 40.0, **tolerance}
    return tfdist.GossipStrategy(
        seed=1, fault_tolerance=tfdist.FaultTolerance(**settings)
    )


def run(modules, **tolerance):
    """Runs programs; reports what each returns, or its error.

    Args:
        modules: module of `tests` -> names of its functions.
        **tolerance: as of `strategy_of`.
    """
    main.run_programs(strategy_of(**tolerance), modules)


def model_of(strategy):
    """That of `programs`, of float64: sums of averages hardly round."""
    with strategy.scope():
        layer = keras.layers.Dense(
            programs.COLUMNS,
            use_bias=False,
            kernel_initializer="zeros",
            dtype="float64",
        )
        model = keras.Sequential(
            [keras.Input([programs.ROWS], dtype="float64"), layer]
        )
        model.compile(keras.optimizers.SGD(programs.RATE), programs.Product())
    return model


def train(
    steps, pace=0.0, hold=None, until=None, worker_timeout=10.0, **tolerance
):
    """Trains with constant gradients; reports what it sees in the end.

    Args:
        steps: Of this worker.
        pace: Seconds to pause after each step.
        hold: After this number of steps wait until told to go on.
        until: What the test tells to stop.
        worker_timeout: Of the strategy.
        **tolerance: As of `strategy_of`.
    """
    strategy = strategy_of(worker_timeout=worker_timeout, **tolerance)
    model = model_of(strategy)
    paces = faults.Pace(pace, hold, until)
    seen = faults.fit(strategy, model, steps, paces)
    if seen is not None:
        handshake.report(
            **seen,
            counts=strategy.exchange_counts(),
            distance=strategy.consensus_distance(),
        )
