"""What virtual servers do with what workers push of several local steps."""

import keras
import tensorflow as tf

from tfdist.runtime.corrections.slots import widened
from tfdist.simulation.compiled import Compiled
from tfdist.simulation.server import VirtualServer
from tfdist.simulation.server import divided


class LocalServer(VirtualServer):
    """A `VirtualServer` whose optimizer is the outer one of `LocalSteps`.

    Args:
      parameters: List of `keras.Variable` with the parameters' first values,
        which are copied.
      rest: List of tensors, first values of what is kept beside them: the
        model's other variables, and slots of the inner optimizer that are
        averaged.
      method: A `Method` with local steps, resolved.
      num_workers: Number of workers.

    Attributes:
      rest: The same as they are now.
    """

    def __init__(self, parameters, rest, method, num_workers):
        self._local = method.local_steps
        self._num_workers = num_workers
        self._weighs = method.synchronization.averages and self._local.weighted
        super().__init__(
            [
                keras.Variable(value.numpy(), dtype=value.dtype)
                for value in parameters
            ],
            self._local.outer_optimizer(),
            method,
            num_workers,
        )
        self.rest = list(rest)
        self._total = None
        self._widen = Compiled(_widened)
        self._weigh = Compiled(_weighed)
        self._share = Compiled(self._build_share)

    @property
    def parameters(self):
        """What the servers hold, a list of tensors."""
        return [parameter.value.read_value() for parameter in self._parameters]

    def carry_out(self, entry, pushed, anchor, rest=None):
        """Carries out an entry of the log.

        Args:
          entry: An `Entry`.
          pushed: List of tensors, None without a push.
          anchor: List of tensors: what the servers gave its worker before.
          rest: Dict of a place in `rest` to a tensor, the worker's own.
        """
        if entry.forget:
            super().carry_out(entry, None, None)
            return
        if pushed is not None:
            if self._averages:
                pushed = self._widen(pushed)
                rest = dict(
                    zip(rest, self._widen(list(rest.values())), strict=True)
                )
            pushed = self._correct(
                pushed,
                anchor if self._pulled_is_needed else [],
                tf.constant(entry.staleness, tf.int64),
                tf.constant(entry.worker, tf.int64),
            )
            if not self._averages:
                self.given = self._update(pushed)
                known = [self.rest[place] for place in rest]
                self._put(rest, self._share(known, list(rest.values())))
                return
            self._collect(entry, pushed, rest)
        if entry.count:
            mean = divided(self._sum, self._total)
            number = len(self._parameters)
            self.given = self._update(mean[:number])
            self._put(self._places, mean[number:])
            self._sum = None

    def _collect(self, entry, pushed, rest):
        weight = entry.job.local.examples if self._weighs else 1
        values = [*pushed, *rest.values()]
        if self._weighs:
            values = self._weigh(values, tf.constant(weight, tf.float64))
        if entry.first:
            self._sum, self._total, self._places = values, weight, list(rest)
        else:
            self._sum = self._add(self._sum, values)
            self._total += weight
        if self._slots is not None and self._correction.looks_ahead:
            self.given = self._give()

    def _put(self, places, values):
        for place, value in zip(places, values, strict=True):
            self.rest[place] = tf.cast(value, self.rest[place].dtype)

    # Compiled.

    def _apply(self, gradients):
        outer = self._optimizer
        rate = keras.ops.convert_to_tensor(outer.learning_rate)
        for parameter, pushed in zip(self._parameters, gradients, strict=True):
            variable = parameter.value
            applied = self._local.apply(variable.read_value(), pushed)
            if applied is None:
                outer.update_step(
                    pushed, variable, tf.cast(rate, variable.dtype)
                )
            else:
                variable.assign(applied)
        outer.iterations.assign_add(1)

    def _build_share(self, known, theirs):
        """Statistics where each push is an update: its worker's share."""
        return [
            value
            + tf.cast(1.0 / self._num_workers, value.dtype) * (own - value)
            for value, own in zip(known, theirs, strict=True)
        ]


def _widened(values):
    """So that sums of them times examples do not overflow."""
    return [widened(value) for value in values]


def _weighed(values, weight):
    return [value * tf.cast(weight, value.dtype) for value in values]
