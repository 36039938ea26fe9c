"""Eleven wrong uses of tfdist, each in a line that ends with a mark."""

import keras

import tfdist
from tfdist import simulation


def wrong(model: keras.Model, strategy: tfdist.AsyncStrategy) -> None:
    """Does all that a checker is to complain about."""
    tfdist.AsynchronousStrategy()  # wrong: no such name
    tfdist.BackupWorkersStrategy(backup_worker=1)  # wrong: no such argument
    tfdist.SoftSyncStrategy(s="2")  # wrong: a text for a number
    tfdist.AsyncStrategy(nonfinite="skip")  # wrong: not one of the choices
    tfdist.DANAStrategy(correction=None)  # wrong: that is its own
    tfdist.DANAStrategy("slimmer")  # wrong: no such variant
    tfdist.synchronization.Sync(on_drop="later")  # wrong: no such choice
    tfdist.ParameterServerStrategy(synchronization="async")  # wrong: a text
    tfdist.callbacks.ClusterMonitor(every_batch=2)  # wrong: no such argument
    print(strategy.cluster.is_cheif)  # wrong: no such attribute
    simulation.simulate(lambda: model, None, "async")  # wrong: no num_workers
