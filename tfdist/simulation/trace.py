"""The trace of a real run, as a `ClusterMonitor` has recorded it."""

import dataclasses
import json
import os
import pathlib
import re

from tfdist.exchange_record import ExchangeRecord
from tfdist.simulation.compute import Recorded

_FIELDS = {
    field.name: field.type for field in dataclasses.fields(ExchangeRecord)
}
_COUNTS = ("version", "pulled", "staleness", "bytes_sent", "bytes_received")


@dataclasses.dataclass(frozen=True)
class Trace:
    """The steps of all workers of a real run.

    Attributes:
      workers: By the workers' numbers, tuples of `ExchangeRecord` in the order
        in which that worker made them, with `time` in seconds since its
        training began.
      files: By the workers' numbers, names for messages.

    Raises:
      ValueError: There is no worker, one has no steps, or they speak of
        different numbers of servers.
    """

    workers: tuple
    files: tuple

    def __post_init__(self):
        if not self.workers:
            raise ValueError(
                "Argument `workers` of Trace must have one at least."
            )
        for worker, steps in enumerate(self.workers):
            if not steps:
                raise ValueError(
                    f"{self.files[worker]}: the file has no steps: the trace "
                    "is not complete."
                )
            for number, step in enumerate(steps):
                if len(step.pulled_by_server) != self.num_servers:
                    raise ValueError(
                        f"{self.where(worker, number)}: pulled_by_server must "
                        f"be of {self.num_servers} servers, as in the first "
                        f"step of worker 0. Received: {step.pulled_by_server}."
                    )

    @property
    def num_workers(self) -> int:
        """Number of workers."""
        return len(self.workers)

    @property
    def num_servers(self) -> int:
        """Number of servers."""
        return len(self.workers[0][0].pulled_by_server)

    @property
    def is_decided(self) -> bool:
        """Whether a ledger decided over gradients, not each server alone."""
        return self.workers[0][0].arrival >= 0

    @property
    def has_local_steps(self) -> bool:
        """Whether workers took several steps between two exchanges."""
        return any(s.local_steps > 1 for steps in self.workers for s in steps)

    def where(self, worker: int, number: int) -> str:
        """Name of the step, for messages.

        Args:
          worker: Number of the worker.
          number: Of its step, from 0.
        """
        return f"{self.files[worker]}, worker {worker}, step {number + 1}"

    def compute(self) -> Recorded:
        """The compute times of the steps.

        Local steps between two exchanges are taken to have lasted the same.

        Returns:
          A `Recorded`, without the first exchange of each worker: in it
          functions are traced.

        Raises:
          ValueError: A worker has no other step.
        """
        for worker, steps in enumerate(self.workers):
            if len(steps) < 2:
                raise ValueError(
                    f"{self.files[worker]}: a second step is needed to know "
                    "how long one takes; the first one does not count. "
                    f"Received: {len(steps)} step."
                )
        return Recorded(
            [
                [
                    step.compute_seconds / step.local_steps
                    for step in steps[1:]
                    for _ in range(step.local_steps)
                ]
                for steps in self.workers
            ]
        )

    def order(self) -> list[tuple[int, int]]:
        """The order in which all gradients arrived.

        Returns:
          A list of (worker, number of its step).

        Raises:
          ValueError: Some are missing, or two came at once.
        """
        found = []
        for worker, steps in enumerate(self.workers):
            for number, step in enumerate(steps):
                if (step.arrival >= 0) != self.is_decided:
                    raise ValueError(
                        f"{self.where(worker, number)}: arrival must be "
                        f"{'0 or more' if self.is_decided else '-1'}, as in "
                        "the first step of worker 0. Received: "
                        f"{step.arrival}."
                    )
                # Where a server applies what arrives, its updates tell.
                place = step.pulled + step.staleness
                if self.is_decided:
                    place = step.arrival
                found.append((place, worker, number))
        found.sort()
        last = [-1] * self.num_workers
        for expected, (place, worker, number) in enumerate(found):
            self._check_place(found, expected)
            if number != last[worker] + 1:
                raise ValueError(
                    f"{self.where(worker, number)}: it came as "
                    f"{self._called(place)}, before the step before it."
                )
            last[worker] = number
        return [(worker, number) for _, worker, number in found]

    def _check_place(self, found, expected):
        place, worker, number = found[expected]
        if place == expected:
            return
        here = f"{self.where(worker, number)}: it came as {self._called(place)}"
        if place < expected:
            _, other, earlier = found[expected - 1]
            raise ValueError(
                f"{here}, and so did {self.where(other, earlier)}."
            )
        raise ValueError(
            f"{here}, and no step as {self._called(expected)}: the trace is "
            "not complete. It must have the steps of all workers from their "
            "beginning, of one call of fit."
        )

    def _called(self, place):
        return f"{'arrival' if self.is_decided else 'update'} {place}"


def read_trace(log_dir: str | os.PathLike[str]) -> Trace:
    """Reads what a `ClusterMonitor` has written.

    Args:
      log_dir: Its `log_dir`, with the files `steps-<task>.jsonl` of all
        workers.

    Returns:
      A `Trace`. Workers are numbered as in a cluster: the chief first.

    Raises:
      ValueError: There are no such files, one is missing, or has other
        content; the message names the file and the line.
    """
    directory = pathlib.Path(log_dir)
    found = {}
    for path in directory.glob("steps-*.jsonl"):
        match = re.fullmatch(r"steps-(chief|worker)-(\d+)\.jsonl", path.name)
        if match is None:
            raise ValueError(
                f"{path}: files of steps must be of workers: "
                "steps-chief-0.jsonl or steps-worker-<number>.jsonl."
            )
        found[match[1], int(match[2])] = path
    if not found:
        raise ValueError(
            "Argument `log_dir` must be the log_dir of a ClusterMonitor, with "
            f"files steps-<task>.jsonl. Received: log_dir={str(directory)!r}, "
            "which has none"
        )
    ordered = sorted(found)
    for job in ("chief", "worker"):
        indices = [index for name, index in ordered if name == job]
        for expected, index in enumerate(indices):
            if index != expected:
                raise ValueError(
                    f"{directory / f'steps-{job}-{expected}.jsonl'} is "
                    f"missing, and there is {found[job, index].name}: the "
                    "trace is not complete."
                )
    paths = [found[task] for task in ordered]
    return Trace(
        tuple(tuple(_read(path)) for path in paths),
        tuple(path.name for path in paths),
    )


def _read(path):
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            try:
                yield _parse(line, number)
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: {error}") from None


def _parse(line, number):
    try:
        row = json.loads(line)
    except ValueError:
        raise ValueError(
            f"a line must be an object of JSON. Received: {line[:60]!r}. Has "
            "the training ended?"
        ) from None
    if not isinstance(row, dict):
        raise ValueError(f"a line must be an object. Received: {line[:60]!r}.")
    missing = sorted({"step", *_FIELDS} - row.keys())
    if missing:
        raise ValueError(
            f"a step must have the fields {', '.join(_FIELDS)}. Missing: "
            f"{', '.join(missing)}; an earlier tfdist did not write all."
        )
    if row["step"] != number:
        raise ValueError(
            f"Field `step` must be {number}, one more than before. Received: "
            f"{row['step']!r}."
        )
    row["pulled_by_server"] = _checked_tuple(row["pulled_by_server"])
    for name, kind in _FIELDS.items():
        _check(name, kind, row[name])
    return ExchangeRecord(**{name: row[name] for name in _FIELDS})


def _checked_tuple(value):
    whole = isinstance(value, list) and all(type(v) is int for v in value)
    if not whole or not value or min(value) < 0:
        raise ValueError(
            "Field `pulled_by_server` must be a list of integers of at least "
            f"0, one for each server. Received: {value!r}."
        )
    return tuple(value)


def _check(name, kind, value):
    kinds = (int, float) if kind is float else (kind,)
    if type(value) not in kinds:
        raise ValueError(
            f"Field `{name}` must be of type {kind.__name__}. Received: "
            f"{value!r}."
        )
    if name == "local_steps" and value < 1:
        raise ValueError(
            f"Field `{name}` must be at least 1. Received: {value!r}."
        )
    if name in _COUNTS and value < 0:
        raise ValueError(
            f"Field `{name}` must be at least 0. Received: {value!r}."
        )
