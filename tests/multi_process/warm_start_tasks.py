"""Workers of which the first trains alone for a while."""

import dataclasses

from tests.multi_process import handshake
from tests.multi_process import tasks
import tfdist


def train(preset, arguments, warmup_worker_steps, worker_start, value):
    """Pushes `value` in ten steps more than the warm-up takes.

    Args:
        preset: name of a strategy.
        arguments: of it.
        warmup_worker_steps: of the strategy.
        worker_start: of the strategy.
        value: the gradient.
    """
    strategy = getattr(tfdist, preset)(
        **arguments,
        warmup_worker_steps=warmup_worker_steps,
        worker_start=worker_start,
        fault_tolerance=tfdist.FaultTolerance(start_timeout=60.0),
    )
    model = tasks.build_sum_of_weights(strategy, shapes=((7,), (3, 5)))
    model.fit(
        tasks.own_data(value),
        steps_per_epoch=3 * warmup_worker_steps,
        verbose=0,
    )
    strategy.barrier()
    handshake.report(
        exchanges=[dataclasses.asdict(e) for e in strategy.journal.read_new()],
        weights=[float(w.sum()) for w in model.get_weights()],
        updates=strategy.updates_applied(),
    )
