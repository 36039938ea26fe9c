"""A worker that builds, evaluates and forgets models beside one that lives."""

import pathlib

import tensorflow as tf

from tests.multi_process import failure_tasks
from tests.multi_process import freeing_tasks
from tests.multi_process import handshake
from tests.multi_process import tasks
import tfdist

STEPS = 4


def many_models(rounds, models, server):
    """Reports the server's memory, and what has become of the living model.

    Args:
        rounds: how often the living model is trained.
        models: how many others there are in each round.
        server: number of the server's process.
    """
    strategy = tfdist.AsyncStrategy(
        fault_tolerance=tfdist.FaultTolerance(start_timeout=60.0)
    )
    living = tasks.build_sum_of_weights(strategy)
    local = tf.Variable(3.0)
    memory = []
    for _ in range(rounds):
        for _ in range(models):
            freeing_tasks.train_one(strategy)
        living.fit(tasks.own_data(1.0), steps_per_epoch=STEPS, verbose=0)
        memory.append(resident_mib(server))
    handshake.report(
        memory=memory,
        local=float(local),
        **failure_tasks.outcome(strategy, living),
    )


def resident_mib(process):
    """Memory of a process, in MiB."""
    status = pathlib.Path(f"/proc/{process}/status").read_text()
    (line,) = (x for x in status.splitlines() if x.startswith("VmRSS"))
    return int(line.split()[1]) / 1024
