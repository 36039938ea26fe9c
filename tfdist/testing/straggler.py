"""A worker that is slow on purpose."""

from collections.abc import Iterable
from collections.abc import Sequence
import time
from typing import Any

import keras
import numpy as np

from tfdist import checks

DISTRIBUTIONS = ("constant", "lognormal", "pareto")
_DEFAULT_SHAPES = {"lognormal": 1.0, "pareto": 2.5}


class Straggler(keras.callbacks.Callback):
    """Delays training steps, to see what a method does about slow workers.

    Pass it to `fit` on every worker: each finds out by itself whether it is
    one of `workers`. A delayed step begins that much later, as if the device
    were busy, without using the processor. With `steps_per_execution` above
    one Keras calls it once per execution, so the delay is one for all the
    steps of an execution.

    Which steps are delayed, and by how much, depends on `seed` and on the
    worker's number alone, and goes on from one `fit` to the next; see
    `draw_delays`.

    Args:
      seconds: Mean of the delay of a step that is delayed, at least 0.
      distribution: Of that delay:
        `"constant"`: always `seconds`.
        `"lognormal"`: `seconds * exp(shape * z - shape**2 / 2)` with `z`
        standard normal; the median is `seconds * exp(-shape**2 / 2)`.
        `"pareto"`: `minimum * u ** (-1 / shape)` with `u` uniform in (0, 1]
        and `minimum = seconds * (shape - 1) / shape`, which is the least
        delay.
      shape: For `"lognormal"` sigma, the standard deviation of the
        logarithm, above 0; default 1. For `"pareto"` alpha, the exponent of
        the tail, above 1 (up to 2 the variance is infinite); default 2.5.
        None for `"constant"`.
      probability: That a step is delayed at all, in [0, 1].
      workers: Numbers of the workers to delay, as in
        `strategy.cluster.worker_id`; None for all. A model that was built
        without a strategy of tfdist is that of worker 0.
      seed: Integer of at least 0.

    Attributes:
      delays: Steps delayed so far, int.
      total_seconds: Sum of their delays.

    Raises:
      ValueError: An argument is not what is said above.

    Example:
    >>> # Worker 1 takes half a second longer in one step of ten.
    >>> slow = Straggler(0.5, probability=0.1, workers=[1])
    >>> model.fit(data, callbacks=[slow])
    """

    def __init__(
        self,
        seconds: float,
        *,
        distribution: str = "constant",
        shape: float | None = None,
        probability: float = 1.0,
        workers: Sequence[int] | None = None,
        seed: int = 0,
    ):
        super().__init__()
        checks.one_of("distribution", distribution, DISTRIBUTIONS)
        self._seconds = checks.not_negative("seconds", seconds)
        self._distribution = distribution
        self._shape = _checked_shape(distribution, shape)
        self._probability = checks.number(
            "probability", probability, lambda x: 0 <= x <= 1, "from 0 to 1"
        )
        self._workers = _checked_workers(workers)
        self._seed = checks.count("seed", seed, least=0)
        self._streams = None
        self.delays = 0
        self.total_seconds = 0.0

    @classmethod
    def parse(cls, text: str, **arguments: Any) -> "Straggler":
        """Makes one from the text of a flag, as `--straggler=1:0.5`.

        Args:
          text: `worker:seconds` or `worker:seconds:distribution`.
          **arguments: Others of the constructor.

        Returns:
          A `Straggler` for that one worker.

        Raises:
          ValueError: `text` is not of this form.
        """
        worker, colon, rest = str(text).partition(":")
        seconds, _, distribution = rest.partition(":")
        if distribution:
            arguments["distribution"] = distribution
        try:
            return cls(float(seconds), workers=[int(worker)], **arguments)
        except ValueError as error:
            raise ValueError(
                "Argument `text` must be `worker:seconds` or "
                "`worker:seconds:distribution`, such as `1:0.5` or "
                f"`1:0.5:lognormal`. Received: text={text!r} ({error})"
            ) from None

    def draw_delays(self, count: int, worker: int = 0) -> np.ndarray:
        """The delays of a worker's first steps, without waiting.

        Args:
          count: Number of steps.
          worker: Number of the worker, whether in `workers` or not.

        Returns:
          `(count,) float64`, seconds; 0 where the step is not delayed.
        """
        return self._draw(self._new_streams(worker), count)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        if self._streams is None:
            strategy = self.model.distribute_strategy
            cluster = getattr(strategy, "cluster", None)
            worker = 0 if cluster is None else cluster.worker_id
            if self._workers is None or worker in self._workers:
                self._streams = self._new_streams(worker)

    def on_train_batch_begin(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        if self._streams is None:
            return
        (delay,) = self._draw(self._streams, 1)
        if delay > 0:
            self.delays += 1
            self.total_seconds += float(delay)
            time.sleep(delay)

    def _new_streams(self, worker):
        # One for whether and one for how long: so drawing one by one gives
        # the same as drawing all at once.
        return [
            np.random.default_rng([self._seed, worker, purpose])
            for purpose in range(2)
        ]

    def _draw(self, streams, count):
        whether, how_long = streams
        happens = whether.random(count) < self._probability
        return np.where(happens, self._sizes(how_long, count), 0.0)

    def _sizes(self, stream, count):
        shape = self._shape
        if self._distribution == "lognormal":
            normal = stream.standard_normal(count)
            return self._seconds * np.exp(shape * normal - shape**2 / 2)
        if self._distribution == "pareto":
            minimum = self._seconds * (shape - 1) / shape
            return minimum * (1.0 - stream.random(count)) ** (-1 / shape)
        return np.full(count, self._seconds)


def _checked_shape(distribution, shape):
    if distribution == "constant":
        if shape is not None:
            allowed = "None for distribution='constant'"
            raise ValueError(checks.refusal("shape", allowed, shape))
        return None
    if shape is None:
        return _DEFAULT_SHAPES[distribution]
    least = 1 if distribution == "pareto" else 0
    return checks.number(
        "shape",
        shape,
        lambda x: x > least,
        f"above {least} for distribution={distribution!r}",
    )


def _checked_workers(workers):
    if workers is None:
        return None
    numbers = list(workers) if isinstance(workers, Iterable) else [None]
    if not all(checks.is_count(number, 0) for number in numbers):
        allowed = "None or an iterable of integers of at least 0"
        raise ValueError(checks.refusal("workers", allowed, workers))
    return frozenset(numbers)
