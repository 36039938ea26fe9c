"""Histories made by hand, whose figures are known."""

import numpy as np

from tfdist.simulation.actions import Job
from tfdist.simulation.history import History
from tfdist.simulation.history import jobs_array


def made(
    method="async",
    num_workers=2,
    *,
    values=(0.1, 0.5, 0.9),
    metric="accuracy",
    seconds=2.0,
    steps=4,
    staleness=1,
    dropped=0,
    seed=0,
    diverged=False,
):
    """A run of one epoch in which every worker does the same.

    Args:
      method: Its name.
      num_workers: Number of workers.
      values: Of the metric, at times as far apart as each other.
      metric: Its name.
      seconds: Of the whole training.
      steps: Of each worker; each spends a quarter of it on the pull, the
        computation, the push and the wait.
      staleness: Of every gradient.
      dropped: So many first steps of worker 0 are dropped.
      seed: Seed.
      diverged: Whether it did.
    """
    length = seconds / steps
    jobs = []
    for step in range(steps):
        for worker in range(num_workers):
            times = [(step + quarter / 4) * length for quarter in range(5)]
            jobs.append(
                Job(
                    number=len(jobs),
                    worker=worker,
                    step=step,
                    batch=len(jobs),
                    pulled=0,
                    **dict(
                        zip(
                            (
                                "pulling",
                                "began",
                                "computed",
                                "arrived",
                                "decided",
                            ),
                            times,
                            strict=True,
                        )
                    ),
                    accepted=worker > 0 or step >= dropped,
                    staleness=staleness,
                )
            )
    places = np.linspace(0, 1, len(values))
    return History(
        method=method,
        num_workers=num_workers,
        num_servers=1,
        seed=seed,
        batch_size=10,
        seconds=seconds,
        updates=steps,
        evaluations=[
            {
                "seconds": float(place * seconds),
                "epoch": float(place),
                "updates": int(place * steps),
                "train_loss": None if place == 0 else 1.0,
                metric: value,
            }
            for place, value in zip(places, values, strict=True)
        ],
        jobs=jobs_array(jobs),
        update_seconds=np.linspace(length, seconds, steps),
        push_bytes=1000,
        pull_bytes=1000,
        diverged=diverged,
    )
