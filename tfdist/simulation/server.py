"""Virtual servers: they correct, average and apply updates."""

import contextlib
import dataclasses

import keras
import numpy as np
import tensorflow as tf

from tfdist.correction import Correction
from tfdist.runtime.corrections.parameter_correction import ParameterCorrection
from tfdist.runtime.corrections.slots import WorkerSlots
from tfdist.runtime.corrections.slots import widened
from tfdist.runtime.corrections.slots import zeros
from tfdist.simulation.compiled import Compiled


@dataclasses.dataclass
class Push:
    """A gradient, or what several local steps come to.

    Attributes:
      values: Of each parameter a tensor, `tf.IndexedSlices` or None.
      pulled: What they were computed from, a list of tensors.
      losses: Of the steps that it stands for, a vector.
      weight: What it counts in a mean, an int; None: all count the same, and
        sums are in the type of the parameters.
      rest: What servers keep beside parameters, as this worker has it: place
        -> tensor.
    """

    values: list
    pulled: list
    losses: np.ndarray
    weight: int | None = None
    rest: dict = dataclasses.field(default_factory=dict)


class VirtualServer:
    """The parameters, the optimizer, and what a correction keeps.

    Several servers do to their own parameters what one does to all; so there
    is one here, and `network.Links` knows how many there are.

    Args:
      pushes: The `GradientPushes` or `LocalPushes`, which apply what is pushed.
      method: A `Method`, resolved.
      num_workers: Number of workers.

    Attributes:
      given: What a worker would be given now, a list of tensors.
      rest: What is kept beside parameters, as it is now.
    """

    def __init__(self, pushes, method, num_workers):
        self._pushes = pushes
        self._num_workers = num_workers
        self._averages = method.synchronization.averages
        correction = method.correction
        if correction is None or correction.on_worker:
            correction = _NoCorrection()
        self._correction = correction
        self._corrects = not isinstance(correction, _NoCorrection)
        self._parameters = pushes.parameters
        self._corrections = [
            _on_server(correction, parameter, num_workers)
            for parameter in self._parameters
        ]
        # Of the pushes of the update that is being collected.
        self._sum = []
        self._total = 0
        self._correct = Compiled(self._build_correct)
        self._add = Compiled(self._build_add)
        self._update = Compiled(self._build_update)
        self._both = Compiled(self._build_both)
        self._give = Compiled(self._build_give)
        self._forget = Compiled(self._build_forget)
        self.rest = dict(pushes.first_rest)
        self.given = self._give()

    def carry_out(self, entry, push):
        """Carries out an entry of the log.

        Args:
          entry: A `LogEntry`.
          push: Its `Push`, None without one.
        """
        if entry.forget:
            self.given = self._forget(tf.constant(entry.worker, tf.int64))
            return
        if push is not None and not self._averages:
            known = [self.rest[place] for place in push.rest]
            self.given, rest = self._both(*self._late(entry, push), known)
            self._put(push.rest, rest)
            return
        if push is not None:
            self._collect(entry, push)
        if entry.count:
            total = tf.constant(self._total, tf.float64)
            self.given, rest = self._update(self._sum, total)
            self._put(self._places, rest)
            self._sum = []

    def _collect(self, entry, push):
        if entry.first:
            self._sum, self._total = [], 0
        weight = push.weight
        if weight is not None:
            weight = tf.constant(weight, tf.float64)
        values, rest, *late = self._late(entry, push)
        if self._corrects:
            # By itself: in one graph TensorFlow reorders the additions.
            values = self._correct(values, *late, weight)
        self._sum = self._add([*values, *rest], self._sum, weight)
        self._total += push.weight or 1
        self._places = push.rest
        if self._correction.uses_lookahead:
            self.given = self._give()

    def _late(self, entry, push):
        """Returns a push as the compiled functions take it."""
        return (
            push.values,
            list(push.rest.values()),
            push.pulled if self._correction.copies is not None else [],
            tf.constant(entry.staleness, tf.int64),
            tf.constant(entry.worker, tf.int64),
        )

    def _put(self, places, values):
        for place, value in zip(places, values, strict=True):
            self.rest[place] = tf.cast(value, self.rest[place].dtype)

    # Compiled.

    def _build_correct(self, gradients, pulled, staleness, worker, weight):
        if weight is not None:
            gradients = [widened(gradient) for gradient in gradients]
        return self._corrected(gradients, pulled, staleness, worker)

    def _build_add(self, values, total, weight):
        if weight is not None:
            # Widened, so that sums of them times examples do not overflow.
            values = [widened(value) for value in values]
            values = [value * tf.cast(weight, value.dtype) for value in values]
        if not total:
            return values
        return [_added(*pair) for pair in zip(total, values, strict=True)]

    def _build_update(self, total, count):
        mean = [_divided(one, count) for one in total]
        number = len(self._parameters)
        return self._applied(mean[:number]), mean[number:]

    def _build_both(self, gradients, rest, pulled, staleness, worker, known):
        corrected = self._corrected(gradients, pulled, staleness, worker)
        # Beside parameters a push moves things by its worker's share.
        moved = [
            value
            + tf.cast(1.0 / self._num_workers, value.dtype) * (own - value)
            for value, own in zip(known, rest, strict=True)
        ]
        return self._applied(corrected), moved

    def _corrected(self, gradients, pulled, staleness, worker):
        pulled = pulled or [None] * len(gradients)
        return [
            gradient
            if gradient is None
            else one.correct(
                gradient,
                staleness=staleness,
                worker=worker,
                pulled=_in_the_shape_of(gradient, then),
            )
            for gradient, then, one in zip(
                gradients, pulled, self._corrections, strict=True
            )
        ]

    def _applied(self, gradients):
        """Builds an update; returns what is given after it."""
        rate = None
        if self._correction.observes:
            # Of this step: the optimizer counts it.
            rate = self._pushes.optimizer.learning_rate
            rate = keras.ops.convert_to_tensor(rate)
        with contextlib.ExitStack() as stack:
            for gradient, one in zip(gradients, self._corrections, strict=True):
                if gradient is not None:
                    stack.enter_context(one.observed(lambda: rate))
            self._pushes.apply(gradients)
        return self._build_give()

    def _build_give(self):
        return [
            one.look_ahead(parameter.value.read_value())
            for parameter, one in zip(
                self._parameters, self._corrections, strict=True
            )
        ]

    def _build_forget(self, worker):
        for one in self._corrections:
            one.forget(worker)
        return self._build_give()


class _NoCorrection(Correction):
    """Takes gradients as they are, late or not."""

    def correct(self, late, slots):
        return late.values


def _on_server(correction, parameter, num_workers):
    """The `ParameterCorrection` of a parameter."""
    first = zeros(correction, parameter, num_workers)
    variables = {
        name: tf.Variable(value, trainable=False)
        for name, value in first.items()
    }

    def read(rows):
        value = parameter.value.read_value()
        return value if rows is None else tf.gather(value, rows)

    return ParameterCorrection(correction, WorkerSlots(variables), read)


def _in_the_shape_of(gradient, parameter):
    """Of a sparse gradient the rows of a parameter, which may be None."""
    if parameter is None or not isinstance(gradient, tf.IndexedSlices):
        return parameter
    return tf.gather(parameter, gradient.indices)


def _added(one, other):
    """The sum of two gradients."""
    if one is None or not isinstance(one, tf.IndexedSlices):
        return None if one is None else one + other
    # A row may come several times, as it does within a batch.
    return tf.IndexedSlices(
        tf.concat([one.values, other.values], 0),
        tf.concat([one.indices, other.indices], 0),
        one.dense_shape,
    )


def _divided(one, count):
    """A gradient divided by a number, as servers do it."""
    if one is None or not isinstance(one, tf.IndexedSlices):
        return None if one is None else one / tf.cast(count, one.dtype)
    values = _divided(one.values, count)
    return tf.IndexedSlices(values, one.indices, one.dense_shape)
