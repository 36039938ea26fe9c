"""The record of a simulated run."""

import csv
import dataclasses
import json
import math
import os
import pathlib
from typing import Any

import numpy as np

_JOB_TYPE = np.dtype(
    [
        ("worker", "i4"),
        ("step", "i8"),
        ("batch", "i8"),
        ("steps", "i8"),
        ("pulled", "i8"),
        ("staleness", "i8"),
        ("accepted", "?"),
        ("pulling", "f8"),
        ("began", "f8"),
        ("computed", "f8"),
        ("arrived", "f8"),
        ("decided", "f8"),
        ("fetching", "f8"),
    ]
)


@dataclasses.dataclass(frozen=True)
class History:
    """One simulated run. All times are virtual.

    Attributes:
      method: Name of the method.
      num_workers: Number of workers.
      num_servers: Number of servers.
      seed: Seed.
      batch_size: Examples per gradient.
      seconds: When the last thing happened.
      updates: Updates of the parameters.
      evaluations: List of dicts: `seconds`, `epoch` (gradients that were
        decided over, in passes over the data; none whose batch is computed
        again), `updates`, `train_loss` (mean since the evaluation before), and
        the model's loss and metrics on the validation data.
      jobs: Every gradient, or push of several local steps, a structured array
        with the fields of `actions.Job`; NaN for times that never came.
      update_seconds: When each update was made, float vector.
      push_bytes: Bytes of one push to all servers.
      pull_bytes: Bytes of one pull from all servers.
      fetched_bytes: Bytes of all fetches between two pushes.
      update_bytes: Mean bytes of one encoded update, 0 if it is not known.
      link_bytes: `(machines, 2)`, bytes that each machine has sent and
        received: workers, then the server. None if they are not known.
      evaluation_seconds: With Sandblaster, how long each evaluation over all
        data took, float vector; None with other methods.
      diverged: Whether the loss became infinite or NaN; then the training
        was ended.
      model: The trained `keras.Model`, None if time alone was simulated.
    """

    method: str
    num_workers: int
    num_servers: int
    seed: int
    batch_size: int
    seconds: float
    updates: int
    evaluations: list
    jobs: np.ndarray
    update_seconds: np.ndarray
    push_bytes: int
    pull_bytes: int
    fetched_bytes: int = 0
    update_bytes: float = 0.0
    link_bytes: np.ndarray | None = None
    evaluation_seconds: np.ndarray | None = None
    diverged: bool = False
    model: object = None

    @property
    def staleness(self) -> np.ndarray:
        """Staleness of the gradients that count, an int vector."""
        return self.jobs["staleness"][self.jobs["accepted"]]

    @property
    def utilization(self) -> float:
        """Share of the workers' time in which they computed, 0 to 1.

        Counted for each worker until its last gradient was decided over.
        """
        computing, present = 0.0, 0.0
        for worker in range(self.num_workers):
            jobs = self.jobs[self.jobs["worker"] == worker]
            ended = jobs[~np.isnan(jobs["decided"])]
            if len(ended):
                computing += np.sum(
                    ended["computed"] - ended["began"] - ended["fetching"]
                )
                present += ended["decided"].max()
        return float(computing / present) if present else 0.0

    @property
    def waited(self) -> np.ndarray:
        """Seconds from each gradient's arrival to the decision, a vector."""
        waited = self.jobs["decided"] - self.jobs["arrived"]
        return waited[~np.isnan(waited)]

    @property
    def total_bytes(self) -> int:
        """Bytes that went over the network: pushes, pulls and fetches."""
        pushed = np.count_nonzero(~np.isnan(self.jobs["arrived"]))
        pulled = len(self.jobs) * self.pull_bytes
        return int(pushed * self.push_bytes + pulled + self.fetched_bytes)

    @property
    def largest_link_bytes(self) -> int | None:
        """Bytes of the busiest link, in its busier direction, if known."""
        return None if self.link_bytes is None else int(self.link_bytes.max())

    @property
    def examples_per_second(self) -> float:
        """Examples whose gradients count, per virtual second.

        The shorter batch at the end of an epoch is counted as a full one.
        """
        counted = np.sum(self.jobs["steps"][self.jobs["accepted"]])
        return counted * self.batch_size / self.seconds if self.seconds else 0.0

    def final(self, metric: str) -> float:
        """The last value of a metric, NaN if there is none."""
        if not self.evaluations:
            return float("nan")
        return self.evaluations[-1].get(metric, float("nan"))

    def summary(self) -> dict[str, Any]:
        """Its figures, a dict that JSON can hold."""
        staleness = self.staleness
        some = len(staleness) > 0
        last = self.evaluations[-1] if self.evaluations else {}
        known = ("seconds", "epoch", "updates", "train_loss")
        return {
            "method": self.method,
            "num_workers": self.num_workers,
            "num_servers": self.num_servers,
            "seed": self.seed,
            "seconds": self.seconds,
            "updates": self.updates,
            "gradients": len(self.jobs),
            "dropped": int(np.count_nonzero(~self.jobs["accepted"])),
            "examples_per_second": self.examples_per_second,
            "staleness_mean": float(staleness.mean()) if some else 0.0,
            "staleness_p95": float(np.percentile(staleness, 95)) if some else 0,
            "staleness_max": int(staleness.max()) if some else 0,
            "utilization": self.utilization,
            "waited_mean": float(self.waited.mean()) if some else 0.0,
            "gigabytes": self.total_bytes / 1e9,
            "update_bytes": self.update_bytes,
            "largest_link_bytes": self.largest_link_bytes,
            **self._of_evaluations(),
            "diverged": self.diverged,
            **{f"final_{k}": v for k, v in last.items() if k not in known},
        }

    def _of_evaluations(self):
        seconds = self.evaluation_seconds
        if seconds is None:
            return {}
        portions = self.jobs["worker"][self.jobs["accepted"]]
        return {
            "data_evaluations": len(seconds),
            "seconds_per_data_evaluation": float(np.median(seconds)),
            "portions": np.bincount(
                portions, minlength=self.num_workers
            ).tolist(),
        }

    def as_dict(self) -> dict[str, Any]:
        """All of it but the model, in numbers, lists and dicts."""
        return {
            **self.summary(),
            "batch_size": self.batch_size,
            "evaluations": self.evaluations,
            "update_seconds": self.update_seconds.tolist(),
            "jobs": {
                name: self.jobs[name].tolist() for name in self.jobs.dtype.names
            },
        }

    def write_json(self, path: str | os.PathLike[str]) -> None:
        """Writes `as_dict` to a file, null for NaN and infinity."""
        text = json.dumps(without_nan(self.as_dict()), allow_nan=False)
        pathlib.Path(path).write_text(text + "\n", encoding="utf-8")

    def write_csv(self, path: str | os.PathLike[str]) -> None:
        """Writes `evaluations` to a file, one line each."""
        names = list(dict.fromkeys(k for row in self.evaluations for k in row))
        with open(path, "w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, ["method", "num_workers", *names])
            writer.writeheader()
            for row in self.evaluations:
                writer.writerow(
                    {
                        "method": self.method,
                        "num_workers": self.num_workers,
                        **row,
                    }
                )


def without_nan(value):
    """`value` with Python's numbers, and None for NaN and infinity.

    JSON has neither.
    """
    if isinstance(value, dict):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_nan(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def jobs_array(jobs):
    """The `Job`s as a structured array."""

    def value(job, name):
        found = getattr(job, name)
        if found is not None:
            return found
        return {"accepted": False, "staleness": 0}.get(name, np.nan)

    return np.array(
        [tuple(value(job, n) for n in _JOB_TYPE.names) for job in jobs],
        dtype=_JOB_TYPE,
    )
