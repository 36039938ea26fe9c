"""Compute times of workers: a distribution of seconds per step."""

import abc
from collections.abc import Mapping
from collections.abc import Sequence
import math
from typing import Any

import numpy as np

from tfdist import checks


class ComputeTime(abc.ABC):
    """Seconds of computation of each step of each worker.

    Add two to have both one after the other.
    """

    @abc.abstractmethod
    def draw(
        self, worker: int, step: int, stream: np.random.Generator
    ) -> float:
        """The seconds of one step.

        Args:
          worker: Its number, int.
          step: Number of the step among the worker's, from 0.
          stream: The worker's own `np.random.Generator`.

        Returns:
          A float, at least 0.
        """

    @abc.abstractmethod
    def mean(self, worker: int) -> float:
        """The mean of a worker's steps, seconds."""

    def __add__(self, other):
        if not isinstance(other, ComputeTime):
            return NotImplemented
        return _Sum(self, other)


class _Sum(ComputeTime):
    def __init__(self, first, second):
        self._parts = (first, second)

    def __repr__(self):
        return " + ".join(map(repr, self._parts))

    def draw(
        self, worker: int, step: int, stream: np.random.Generator
    ) -> float:
        return sum(part.draw(worker, step, stream) for part in self._parts)

    def mean(self, worker: int) -> float:
        return sum(part.mean(worker) for part in self._parts)


class Constant(ComputeTime):
    """Every step of every worker takes as long.

    Args:
      seconds: At least 0.
    """

    def __init__(self, seconds: Any):
        self.seconds = checks.not_negative("Constant: seconds", seconds)

    def __repr__(self):
        return f"Constant({self.seconds:g})"

    def draw(
        self, worker: int, step: int, stream: np.random.Generator
    ) -> float:
        return self.seconds

    def mean(self, worker: int) -> float:
        return self.seconds


class LogNormal(ComputeTime):
    """The logarithm is normally distributed.

    Args:
      seconds: The mean.
      sigma: Standard deviation of the logarithm, above 0.
    """

    def __init__(self, seconds: Any, sigma: float = 0.5):
        self.seconds = checks.not_negative("LogNormal: seconds", seconds)
        self.sigma = checks.positive("LogNormal: sigma", sigma)

    def __repr__(self):
        return f"LogNormal({self.seconds:g}, sigma={self.sigma:g})"

    def draw(
        self, worker: int, step: int, stream: np.random.Generator
    ) -> float:
        normal = stream.standard_normal()
        return self.seconds * math.exp(self.sigma * normal - self.sigma**2 / 2)

    def mean(self, worker: int) -> float:
        return self.seconds


class Gamma(ComputeTime):
    """Workers of one kind, with a little noise.

    DANA's paper draws with shape 100 and scale 1.28, so with a mean of 128 of
    its units and a standard deviation of a tenth of the mean (Hakimi et al.
    2019, arXiv:1907.11612, after Ali et al. 2000).

    Args:
      seconds: The mean.
      shape: Above 0; the standard deviation is `seconds / sqrt(shape)`.
    """

    def __init__(self, seconds: Any, shape: float = 100.0):
        self.seconds = checks.not_negative("Gamma: seconds", seconds)
        self.shape = checks.positive("Gamma: shape", shape)

    def __repr__(self):
        return f"Gamma({self.seconds:g}, shape={self.shape:g})"

    def draw(
        self, worker: int, step: int, stream: np.random.Generator
    ) -> float:
        return stream.gamma(self.shape, self.seconds / self.shape)

    def mean(self, worker: int) -> float:
        return self.seconds


class Pareto(ComputeTime):
    """Most steps are fast, a few take very long.

    `minimum * u ** (-1 / shape)` with `u` uniform in (0, 1] and
    `minimum = seconds * (shape - 1) / shape`.

    Args:
      seconds: The mean.
      shape: Exponent of the tail, above 1; up to 2 the variance is infinite.
    """

    def __init__(self, seconds: Any, shape: float = 2.5):
        self.seconds = checks.not_negative("Pareto: seconds", seconds)
        self.shape = checks.number(
            "Pareto: shape", shape, lambda value: value > 1, "above 1"
        )

    def __repr__(self):
        return f"Pareto({self.seconds:g}, shape={self.shape:g})"

    def draw(
        self, worker: int, step: int, stream: np.random.Generator
    ) -> float:
        minimum = self.seconds * (self.shape - 1) / self.shape
        return minimum * (1.0 - stream.random()) ** (-1 / self.shape)

    def mean(self, worker: int) -> float:
        return self.seconds


class Sometimes(ComputeTime):
    """A part of the steps takes some time, the others none; for sums.

    `Gamma(0.1) + Sometimes(Constant(1.0), 0.05)` has one step in twenty that
    takes a second longer.

    Args:
      extra: A `ComputeTime`.
      probability: Of it, in [0, 1].
      workers: Numbers of the workers that it happens to; None for all.
    """

    def __init__(
        self,
        extra: ComputeTime,
        probability: float = 1.0,
        workers: Sequence[int] | None = None,
    ):
        _check_time("Sometimes", "extra", extra)
        self.extra = extra
        self.probability = checks.number(
            "Sometimes: probability",
            probability,
            lambda value: 0 <= value <= 1,
            "from 0 to 1",
        )
        self.workers = None if workers is None else frozenset(workers)

    def __repr__(self):
        workers = None if self.workers is None else sorted(self.workers)
        return f"Sometimes({self.extra!r}, {self.probability:g}, {workers})"

    def draw(
        self, worker: int, step: int, stream: np.random.Generator
    ) -> float:
        if self.workers is not None and worker not in self.workers:
            return 0.0
        if stream.random() >= self.probability:
            return 0.0
        return self.extra.draw(worker, step, stream)

    def mean(self, worker: int) -> float:
        if self.workers is not None and worker not in self.workers:
            return 0.0
        return self.probability * self.extra.mean(worker)


class SlowWorkers(ComputeTime):
    """Some machines are always slower (or faster) than the others.

    Args:
      base: The `ComputeTime` of a worker that is not named.
      factors: Dict of a worker's number to how many times as long it takes.
    """

    def __init__(self, base: ComputeTime, factors: Mapping[int, float]):
        _check_time("SlowWorkers", "base", base)
        if not isinstance(factors, Mapping):
            raise ValueError(
                "Argument `factors` of SlowWorkers must be a dict of worker "
                f"to number. Received: factors={factors!r}"
            )
        self.base = base
        self.factors = {
            int(worker): checks.not_negative(
                f"SlowWorkers: factors[{worker}]", factor
            )
            for worker, factor in factors.items()
        }

    def __repr__(self):
        return f"SlowWorkers({self.base!r}, {self.factors})"

    def draw(
        self, worker: int, step: int, stream: np.random.Generator
    ) -> float:
        seconds = self.base.draw(worker, step, stream)
        return self.factors.get(worker, 1.0) * seconds

    def mean(self, worker: int) -> float:
        return self.factors.get(worker, 1.0) * self.base.mean(worker)


class Recorded(ComputeTime):
    """Compute times of a real run's workers, repeated in their order.

    See `tfdist.simulation.read_trace` for the records of a `ClusterMonitor`.

    Args:
      seconds: List of the steps of each worker, each a list of seconds. If
        more workers are simulated than were recorded, they are given the
        records in turn, each beginning elsewhere.
    """

    def __init__(self, seconds: Any):
        self.seconds = [np.asarray(steps, "float64") for steps in seconds]
        if not self.seconds or not all(map(len, self.seconds)):
            raise ValueError(
                "Argument `seconds` of Recorded must hold at least one step "
                "of each of at least one worker. Received: "
                f"seconds={seconds!r}"
            )
        for worker, steps in enumerate(self.seconds):
            if not np.all(np.isfinite(steps)) or steps.min() < 0:
                raise ValueError(
                    "Argument `seconds` of Recorded must be finite and at "
                    f"least 0. Received: {steps.tolist()} for worker {worker}"
                )

    def __repr__(self):
        return f"Recorded({len(self.seconds)} workers)"

    def draw(
        self, worker: int, step: int, stream: np.random.Generator
    ) -> float:
        turn, own = divmod(worker, len(self.seconds))
        steps = self.seconds[own]
        # The golden section spreads the beginnings of all turns.
        begin = int(turn * 0.6180339887 % 1.0 * len(steps))
        return float(steps[(begin + step) % len(steps)])

    def mean(self, worker: int) -> float:
        return float(self.seconds[worker % len(self.seconds)].mean())


_BY_NAME = {
    "constant": Constant,
    "lognormal": LogNormal,
    "gamma": Gamma,
    "pareto": Pareto,
}


def parse(text):
    """The `ComputeTime` that a flag names: `gamma:0.1` or `gamma:0.1:100`.

    Args:
      text: `distribution:seconds` or `distribution:seconds:shape`, with one
        of constant, lognormal, gamma, pareto; `seconds` is the mean.

    Raises:
      ValueError: `text` is not of this form.
    """
    name, *values = str(text).split(":")
    most = 1 if name == "constant" else 2
    try:
        if name not in _BY_NAME or not 1 <= len(values) <= most:
            raise ValueError("the form is wrong")
        return _BY_NAME[name](*map(float, values))
    except ValueError as error:
        raise ValueError(
            "A compute time must be `distribution:seconds` or "
            "`distribution:seconds:shape` with one of "
            f"{', '.join(_BY_NAME)} (constant has no shape), such as "
            f"`gamma:0.1:100`. Received: {text!r} ({error})."
        ) from None


def _check_time(owner, name, value):
    if not isinstance(value, ComputeTime):
        allowed = "a tfdist.simulation.ComputeTime"
        raise ValueError(checks.refusal(f"{owner}: {name}", allowed, value))
