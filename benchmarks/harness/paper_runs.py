"""Simulated runs of the papers' tables, side by side in processes."""

import dataclasses
import gc
import os

from harness import pool


@dataclasses.dataclass(frozen=True)
class Run:
    """One simulated run on the character language model.

    Attributes:
      table: Name of the table that it is for.
      row: Name of the method, as the table shows it.
      strategy: Text for `tfdist.strategies.registry.method`.
      num_workers: Number of workers.
      seed: Seed.
      learning_rate: Of one update.
      momentum: Of the optimizer, Nesterov's.
      warm_up: Share of the training in which the rate goes from
        `learning_rate / num_workers` to `learning_rate`.
      batch_size: Examples of one gradient.
      num_examples: Of the training set.
      epochs: Passes over it.
    """

    table: str
    row: str
    strategy: str
    num_workers: int
    seed: int
    learning_rate: float
    momentum: float = 0.0
    warm_up: float = 0.0
    batch_size: int = 32
    num_examples: int = 12_000
    epochs: int = 8


def play(runs):
    """Plays all runs; list of `History.summary()`, in the order of `runs`."""
    with pool.Pool() as processes:
        return processes.play(_play, runs, _work)


def _work(run):
    return run.epochs * run.num_examples / run.batch_size


def _play(run):
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import keras
    import tensorflow as tf

    from tfdist import simulation
    from tfdist.simulation import tasks
    from tfdist.strategies import registry

    # A process for each processor.
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    task = tasks.text(run.num_examples)
    method = registry.method(run.strategy).resolve(run.num_workers)
    gradients = method.synchronization.gradients_per_update(run.num_workers)
    steps = run.epochs * run.num_examples / run.batch_size / max(1, gradients)

    class Rate(keras.optimizers.schedules.LearningRateSchedule):
        """A warm-up, then a tenth after half and after three quarters."""

        def __call__(self, step):
            share = tf.cast(step, tf.float32) / steps
            scale = tf.where(
                share < 0.5, 1.0, tf.where(share < 0.75, 0.1, 0.01)
            )
            if run.warm_up:
                least = 1 / run.num_workers
                grown = least + (1 - least) * share / run.warm_up
                scale *= tf.minimum(1.0, grown)
            return run.learning_rate * scale

        def get_config(self):
            return {}

    def build():
        model = task.build(Rate())
        model.optimizer.momentum = run.momentum
        model.optimizer.nesterov = bool(run.momentum)
        return model

    history = simulation.simulate(
        build,
        task.train,
        method,
        num_workers=run.num_workers,
        batch_size=run.batch_size,
        epochs=run.epochs,
        validation_data=task.validation,
        evaluate_every=run.epochs,
        seed=run.seed,
    )
    summary = history.summary()
    # Models and their functions refer to each other in circles.
    del history
    gc.collect()
    return summary
