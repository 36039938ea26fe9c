"""Measurement of a model's training step on this machine alone."""

import contextlib
import dataclasses
import math
import time
import types
from typing import Any
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf
import tqdm

from tfdist import checks
from tfdist import one_replica
from tfdist.sandblaster import lbfgs
from tfdist.simulation import data as data_lib
from tfdist.simulation import traffic
from tfdist.simulation.gradients import loss_of
from tfdist.strategies.method import Method

# Calls that trace, allocate and fill caches.
_WARM_UP = 3


class Variable(NamedTuple):
    """The shape and kind of a variable, which decide over its traffic.

    Attributes:
      shape: Tuple of ints.
      dtype: Name, such as "float32".
      trainable: Whether gradients of it are pushed.
      is_fixed: Whether no step changes it, so that it is never sent.
      row_bytes: Bytes of its gradient where that is of some rows alone, as of
        an embedding; None: those of its value.
    """

    shape: tuple
    dtype: str = "float32"
    trainable: bool = True
    is_fixed: bool = False
    row_bytes: int | None = None


@dataclasses.dataclass(frozen=True)
class Measurement:
    """One machine's step of a model, and what a cluster's would send.

    Attributes:
      batch_size: Examples of one gradient.
      compute_seconds: Of each measured computation of a gradient, forward and
        backward, a tuple.
      update_seconds: Of an update of all parameters by the optimizer.
      step_seconds: Of a whole training step of plain Keras.
      variables: Tuple of `Variable`, all of the model's.

    Raises:
      ValueError: A number is not allowed.
    """

    batch_size: int
    compute_seconds: tuple
    update_seconds: float
    step_seconds: float
    variables: tuple

    def __post_init__(self):
        seconds = tuple(map(float, self.compute_seconds))
        object.__setattr__(self, "compute_seconds", seconds)
        object.__setattr__(self, "variables", tuple(self.variables))
        if not seconds:
            raise ValueError(
                "Argument `compute_seconds` of Measurement must have one step "
                "at least. Received: compute_seconds=()"
            )
        for value in seconds:
            checks.positive("compute_seconds", value)
        checks.not_negative("update_seconds", self.update_seconds)
        checks.positive("step_seconds", self.step_seconds)

    @property
    def compute(self) -> float:
        """The median of `compute_seconds`."""
        return float(np.median(self.compute_seconds))

    @property
    def examples_per_second(self) -> float:
        """Of one machine that trains without a cluster."""
        return self.batch_size / self.step_seconds

    @property
    def num_parameters(self) -> int:
        """Elements of all trainable variables."""
        return sum(math.prod(v.shape) for v in self.variables if v.trainable)

    @property
    def push_bytes(self) -> int:
        """Of one push to all servers, without what a correction adds."""
        return sum(self.traffic(Method(), 1)[0])

    @property
    def pull_bytes(self) -> int:
        """Of one pull from all servers."""
        return sum(self.traffic(Method(), 1)[1])

    def traffic(
        self, method: Method, num_servers: int
    ) -> tuple[list[int], list[int]]:
        """Bytes of a push and of a pull by server; see `of_exchanges`."""
        model = types.SimpleNamespace(variables=self.variables)
        fixed = {k for k, v in enumerate(self.variables) if v.is_fixed}
        rows = {
            k: v.row_bytes
            for k, v in enumerate(self.variables)
            if v.row_bytes is not None
        }
        return traffic.of_exchanges(model, method, num_servers, fixed, rows)

    def scaled(self, factor: float) -> "Measurement":
        """An estimate for a batch `factor` times as large.

        Computing a gradient is taken to last `factor` times as long, and to
        have `factor` times as many rows of embeddings; an update lasts as
        long, and of all else as many bytes are sent.
        """
        return dataclasses.replace(
            self,
            batch_size=int(round(self.batch_size * factor)),
            compute_seconds=[factor * s for s in self.compute_seconds],
            step_seconds=self.step_seconds + (factor - 1) * self.compute,
            variables=[
                v
                if v.row_bytes is None
                else v._replace(row_bytes=round(factor * v.row_bytes))
                for v in self.variables
            ],
        )

    def as_dict(self) -> dict[str, Any]:
        """Its figures, as JSON can hold them."""
        return {
            "batch_size": self.batch_size,
            "compute_seconds": list(self.compute_seconds),
            "compute_seconds_median": self.compute,
            "update_seconds": self.update_seconds,
            "step_seconds": self.step_seconds,
            "examples_per_second": self.examples_per_second,
            "push_bytes": self.push_bytes,
            "pull_bytes": self.pull_bytes,
        }


def measure(
    model: keras.Model,
    x: Any,
    y: Any,
    *,
    batch_size: int,
    steps: int = 20,
    step_seconds: float | None = None,
    progress: bool = False,
) -> Measurement:
    """Measures a model's training step on this machine.

    Gradients are computed without XLA, as on a cluster; the step of plain
    Keras is compiled as the model is. The input pipeline is in neither. The
    three that are measured take turns, so that what else the machine does
    meets them alike.

    The model is as it was afterwards: weights, optimizer and metrics.

    Args:
      model: A compiled and built `keras.Model`.
      x: Examples, an array.
      y: Labels, an array.
      batch_size: Examples of one gradient.
      steps: How often each is measured.
      step_seconds: Seconds of a training step on the machine that is meant,
        where this is another: taken for the whole step and for a gradient,
        and only the update is measured.
      progress: Whether to show a bar.

    Returns:
      A `Measurement`.

    Raises:
      TypeError: `model` is no Keras model.
      ValueError: An argument does not fit; the message says which.
    """
    steps = checks.count("steps", steps)
    if step_seconds is not None:
        checks.positive("step_seconds", step_seconds)
    data_lib.check_model(model)
    data = data_lib.Data((x, y), batch_size, shuffle=False)
    full = data.num_examples // batch_size
    batches = [data.take(data.rows(k))[:2] for k in range(min(full, steps))]
    with _with_steps(model), _as_it_was(model):
        compute, update, whole = _times(
            model, batches, steps, step_seconds is None, progress
        )
    if step_seconds is not None:
        compute, whole = [step_seconds], [step_seconds]
    fixed = traffic.fixed_places(model, data)
    rows = traffic.rows_pushed(model, data)
    return Measurement(
        batch_size=batch_size,
        compute_seconds=compute,
        update_seconds=float(np.median(update)),
        step_seconds=float(np.median(whole)),
        variables=[
            Variable(
                tuple(v.shape),
                str(v.dtype),
                v.trainable,
                k in fixed,
                rows.get(k),
            )
            for k, v in enumerate(model.variables)
        ],
    )


def _times(model, batches, steps, all_three, progress):
    """Seconds of gradients, updates and whole steps, three lists."""
    parameters = model.trainable_variables

    def gradients(x, y):
        with tf.GradientTape() as tape:
            loss = loss_of(model, x, y)
        return tape.gradient(loss, parameters)

    def update(gradients):
        with one_replica.stepping():
            model.optimizer.apply(gradients, parameters)

    gradients = tf.function(gradients, autograph=False)
    update = tf.function(update, autograph=False)
    step = tf.function(model.train_step, jit_compile=model.jit_compile or None)
    seconds = [], [], []
    # Where the gradient's own time is not wanted, one will do.
    found = gradients(*batches[0])
    numbers = tqdm.tqdm(
        range(_WARM_UP + steps),
        desc="Measuring a training step",
        bar_format="{desc}: {percentage:3.0f} %|{bar}| {elapsed}",
        disable=not progress,
    )
    for number in numbers:
        x, y = batches[number % len(batches)]
        taken = [0.0, 0.0, 0.0]
        if all_three:
            taken[0], found = _timed(gradients, x, y)
            taken[2], _ = _timed(step, (x, y))
        taken[1], _ = _timed(update, found)
        if number >= _WARM_UP:
            for one, value in zip(seconds, taken, strict=True):
                one.append(value)
    return seconds


def _timed(function, *arguments):
    begin = time.perf_counter()
    result = function(*arguments)
    # An accelerator computes after the call has returned.
    tf.test.experimental.sync_devices()
    return time.perf_counter() - begin, result


@contextlib.contextmanager
def _with_steps(model):
    """Scope in which an `LBFGS`, which has no step of one batch, is an SGD.

    That adds a multiple of one vector to the parameters, and so does L-BFGS.
    """
    optimizer = model.optimizer
    if isinstance(optimizer, lbfgs.LBFGS):
        model.optimizer = keras.optimizers.SGD()
    try:
        yield
    finally:
        model.optimizer = optimizer


@contextlib.contextmanager
def _as_it_was(model):
    """Gives a model back its weights, its optimizer's and its metrics'."""
    model.optimizer.build(model.trainable_variables)
    kept = [
        *model.variables,
        *model.optimizer.variables,
        *model.metrics_variables,
    ]
    values = [variable.numpy() for variable in kept]
    try:
        yield
    finally:
        # Metrics that are only made by the first step begin from nothing.
        model.reset_metrics()
        for variable, value in zip(kept, values, strict=True):
            variable.assign(value)
