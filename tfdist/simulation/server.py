"""What virtual servers do: correct, average, apply, and give."""

import keras
import tensorflow as tf

from tfdist import one_replica
from tfdist.correction import LateGradient
from tfdist.correction import Slots
from tfdist.runtime.corrections.slots import WorkerSlots
from tfdist.runtime.corrections.slots import dtype_of
from tfdist.runtime.corrections.slots import widened
from tfdist.simulation.compiled import Compiled


class VirtualServer:
    """The parameters, the optimizer, and what a correction keeps.

    Several servers do to their own parameters what one does to all; so there
    is one here, and `network.Links` knows how many there are.

    Args:
      parameters: List of trainable `keras.Variable`.
      optimizer: The Keras optimizer that updates them.
      method: A `Method`, resolved.
      num_workers: Number of workers.

    Attributes:
      given: What a worker would be given now, a list of tensors.
    """

    def __init__(self, parameters, optimizer, method, num_workers):
        self._parameters = parameters
        self._optimizer = optimizer
        self._correction = method.correction
        self._averages = method.synchronization.averages
        self._pulled_is_needed = False
        self._slots = self._own = None
        self._optimizer.build(self._parameters)
        if self._correction is not None:
            self._correction.check_optimizer(self._optimizer)
            self._pulled_is_needed = (
                self._correction.copies is not None
                and not self._correction.on_worker
            )
            self._make_slots(num_workers)
        # Of the gradients of the update that is being collected.
        self._sum = None
        self._correct = Compiled(self._build_correct)
        self._add = Compiled(_sum_of)
        self._update = Compiled(self._build_update)
        self._both = Compiled(self._build_both)
        self._push = Compiled(self._build_push)
        self._give = Compiled(self._build_give)
        self._forget = Compiled(self._build_forget)
        self.given = self._give()

    def _make_slots(self, num_workers):
        correction = self._correction

        def zeros(parameter, prefix):
            shapes = correction.slots(list(parameter.shape), num_workers)
            dtype = dtype_of(_Typed(parameter))
            return {
                name: tf.Variable(
                    tf.zeros([*prefix, *shape], dtype), trainable=False
                )
                for name, shape in shapes.items()
            }

        if correction.on_worker:
            self._own = [zeros(p, [num_workers]) for p in self._parameters]
        else:
            self._slots = [WorkerSlots(zeros(p, [])) for p in self._parameters]

    # What happens.

    def push(self, gradients, worker):
        """What a worker makes of its gradients before it sends them.

        Args:
          gradients: List of tensors, `tf.IndexedSlices` or None.
          worker: Its number.

        Returns:
          The same.
        """
        if self._own is None:
            return gradients
        return self._push(gradients, tf.constant(worker, tf.int64))

    def restart(self, worker):
        """Another process has come in a worker's place: it knows nothing."""
        for slots in self._own or []:
            for variable in slots.values():
                variable.scatter_update(
                    tf.IndexedSlices(
                        tf.zeros([1, *variable.shape[1:]], variable.dtype),
                        tf.constant([worker]),
                    )
                )

    def carry_out(self, entry, gradients, pulled):
        """Carries out an entry of the log.

        Args:
          entry: An `Entry`.
          gradients: What was pushed, None without a gradient.
          pulled: List of tensors that they were computed from.
        """
        worker = tf.constant(entry.worker, tf.int64)
        if entry.forget:
            if self._slots is not None:
                self.given = self._forget(worker)
            return
        if gradients is not None:
            late = (
                gradients,
                pulled if self._pulled_is_needed else [],
                tf.constant(entry.staleness, tf.int64),
                worker,
            )
            if not self._averages:
                self.given = self._both(*late)
                return
            corrected = self._correct(*late)
            self._sum = (
                corrected if entry.first else self._add(self._sum, corrected)
            )
            if self._slots is not None and self._correction.looks_ahead:
                self.given = self._give()
        if entry.count:
            self.given = self._update(divided(self._sum, entry.count))
            self._sum = None

    # Compiled.

    def _build_push(self, gradients, worker):
        zero = tf.zeros([], tf.int64)
        return [
            gradient
            if gradient is None
            else self._corrected(
                gradient, _RowsOf(slots, worker), None, zero, zero
            )
            for gradient, slots in zip(gradients, self._own, strict=True)
        ]

    def _build_correct(self, gradients, pulled, staleness, worker):
        if self._slots is None:
            return gradients
        pulled = pulled or [None] * len(gradients)
        corrected = []
        for number, gradient in enumerate(gradients):
            if gradient is not None:
                then = pulled[number]
                pair = (
                    None
                    if then is None
                    else (self._parameters[number].value.read_value(), then)
                )
                gradient = self._corrected(
                    gradient, self._slots[number], pair, staleness, worker
                )
            corrected.append(gradient)
        return corrected

    def _corrected(self, gradient, slots, pair, staleness, worker):
        sparse = isinstance(gradient, tf.IndexedSlices)
        values = gradient.values if sparse else gradient
        indices = gradient.indices if sparse else None
        now = then = None
        if pair is not None:
            now, then = (
                widened(tf.gather(p, indices) if sparse else p) for p in pair
            )
        late = LateGradient(
            widened(values), indices, staleness, worker, now, then
        )
        result = tf.cast(self._correction.correct(late, slots), values.dtype)
        if sparse and not self._correction.densifies:
            return tf.IndexedSlices(result, indices, gradient.dense_shape)
        return result

    def _build_update(self, gradients):
        observes = self._slots is not None and self._correction.observes
        if observes:
            before = [widened(p.value.read_value()) for p in self._parameters]
            rate = keras.ops.convert_to_tensor(self._optimizer.learning_rate)
        self._apply(gradients)
        if observes:
            for number, gradient in enumerate(gradients):
                if gradient is not None:
                    after = widened(self._parameters[number].value.read_value())
                    self._correction.observe(
                        before[number],
                        after,
                        tf.cast(rate, after.dtype),
                        self._slots[number],
                    )
        return self._build_give()

    def _apply(self, gradients):
        with one_replica.stepping():
            self._optimizer.apply(gradients, self._parameters)

    def _build_both(self, gradients, pulled, staleness, worker):
        return self._build_update(
            self._build_correct(gradients, pulled, staleness, worker)
        )

    def _build_give(self):
        given = []
        for number, parameter in enumerate(self._parameters):
            value = parameter.value.read_value()
            if self._slots is not None and self._correction.looks_ahead:
                slots = self._slots[number]
                ahead = self._correction.look_ahead(widened(value), slots)
                value = tf.cast(ahead, value.dtype)
            given.append(value)
        return given

    def _build_forget(self, worker):
        for slots in self._slots:
            self._correction.forget(worker, slots)
        return self._build_give()


def _sum_of(one, other):
    """The sum of two lists of gradients."""
    return [
        None if a is None else _added(a, b)
        for a, b in zip(one, other, strict=True)
    ]


def _added(one, other):
    if not isinstance(one, tf.IndexedSlices):
        return one + other
    # A row may come several times, as it does within a batch.
    return tf.IndexedSlices(
        tf.concat([one.values, other.values], 0),
        tf.concat([one.indices, other.indices], 0),
        one.dense_shape,
    )


def divided(gradients, count):
    """A list of gradients divided by a number, as servers do it."""
    found = []
    for gradient in gradients:
        if isinstance(gradient, tf.IndexedSlices):
            gradient = tf.IndexedSlices(
                gradient.values / count, gradient.indices, gradient.dense_shape
            )
        elif gradient is not None:
            gradient = gradient / count
        found.append(gradient)
    return found


class _Typed:
    """A Keras variable with its TensorFlow type."""

    def __init__(self, variable):
        self.dtype = tf.as_dtype(variable.dtype)


class _RowsOf(Slots):
    """The slots of one worker among those of all, in one variable each."""

    def __init__(self, variables, worker):
        self._variables = variables
        self._worker = worker

    def read(self, name, rows=None):
        value = self._variables[name][self._worker]
        return value if rows is None else tf.gather(value, rows)

    def assign(self, name, value, rows=None):
        variable = self._variables[name]
        if rows is None:
            place = self._worker[None]
            variable.scatter_update(tf.IndexedSlices(value[None], place))
        else:
            rows = tf.cast(rows, tf.int64)
            places = tf.stack(
                [tf.fill(tf.shape(rows), self._worker), rows], axis=-1
            )
            variable.scatter_nd_update(places, value)
