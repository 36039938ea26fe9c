"""Gradients of all workers, averaged in a ring: no servers, nobody is late.

Each worker makes the whole update, of the same mean, on what it holds itself:
all hold the same bits. Other state that a step assigns, such as moving
statistics, is the mean over the workers, too.
"""

import dataclasses

import tensorflow as tf

from tfdist.runtime.all_reduce import ring_exchange
from tfdist.runtime.coordination import no_coordination
from tfdist.runtime.exchange import exchange
from tfdist.runtime.exchange import records as records_lib
from tfdist.runtime.local_steps import every_step
from tfdist.runtime.variables.variables import Role

_WAY = "with all-reduced gradients"
# In which a value may be assigned whose mean is that of the results.
_LINEAR = ("assign", "assign_add", "assign_sub")


@dataclasses.dataclass(eq=False)
class GradientLayout:
    """One kind of exchange: what is pushed in it.

    Attributes:
      specs: List of `tf.TensorSpec`.
    """

    specs: list


class GradientRing(no_coordination.NoCoordination):
    """See `Coordination`, whose part it takes where workers have a ring.

    Args:
      ring: The `Ring`.
      store: The `ParameterStore`.
      gradient_counts: The `GradientCounts`.
      journal: The `Journal`.
    """

    # Each exchange needs all workers.
    waits = True

    def __init__(self, ring, store, gradient_counts, journal):
        super().__init__(gradient_counts, journal)
        self._ring = ring
        self._store = store
        self._journal = journal
        # Variables that were there when training began last.
        self._num_variables = 0
        # Whether others may wait for this worker.
        self._open = False
        self._exchanged = 0

    # A step.

    def exchange(self, *, records, finite, lifter, **kwargs):
        """Builds the means of one step; returns a `RingExchange`."""
        values = {
            k: _value(record)
            for k, record in enumerate(records)
            if _is_shared(record)
        }
        if not values:
            return exchange.ExchangeBuilder(
                records=records, finite=finite, lifter=lifter, **kwargs
            )
        with tf.init_scope():
            self.begin()
            layout = self._layout_of(list(values.values()))
        means, this_round = self._ring.average_gradients(
            layout, list(values.values()), finite
        )
        records = list(records)
        for k, mean in zip(values, means, strict=True):
            records[k] = _with_value(records[k], mean)
        return ring_exchange.RingExchange(
            this_round,
            records=records,
            finite=finite,
            lifter=lifter.with_barriers({mean.op for mean in means}),
            **kwargs,
        )

    def begin(self):
        """All workers wait for each other, and begin with the same values."""
        number = len(self._store.variables)
        if number != self._num_variables:
            self._ring.start.begin(_WAY)
            self._num_variables = number
        self._open = True

    def _layout_of(self, values):
        """Returns the `GradientLayout` that such values are."""
        specs = [tf.TensorSpec(v.shape, v.dtype) for v in values]
        for known in self._ring.inners:
            if known.specs == specs:
                return known
        self._ring.add(GradientLayout(specs))
        return self._ring.inners[-1]

    # Between steps.

    def begin_fit(self):
        """Called when `fit` begins: all have what the chief has."""
        self.finish()
        if self._num_variables:
            self._ring.start.spread()
            self._open = True

    def is_open(self):
        """Whether others may wait for this worker."""
        return self._open or self._journal.count != self._exchanged

    def finish(self):
        """Takes part with nothing until nobody trains any more.

        Then all have what the last of them has come to.
        """
        if not self.is_open():
            return
        while True:
            called = self._ring.call(None, training=False)
            if called.workers:
                number = round(called.number / called.workers)
                self._ring.pass_on(number)
            elif not called.training:
                break
        self._ring.start.spread(self._journal.count)
        self._open = False
        self._exchanged = self._journal.count


class GradientSteps(every_step.EveryStep):
    """See `Local`, whose part it takes where gradients go around a ring.

    Args:
      runtime: The `Runtime`, whose coordination is a `GradientRing`.
    """

    def __init__(self, runtime):
        super().__init__(runtime)
        self._ring = runtime.coordination
        self._fit = None

    def watch(self, call):
        """Takes note of a `RunningFit`."""
        self._fit = call
        self._ring.begin_fit()

    def before_eager_step(self):
        """Called before a step of which nothing is traced.

        Its gradients are to be those of the values that all begin with.
        """
        if self._fit is not None and not self._fit.is_over():
            self._ring.begin()

    def before_pull(self):
        """Called before all replicas are refreshed; whether they may be."""
        self._look_at_end()
        return True

    def before_read(self, variable):
        """Called before a variable is read or assigned eagerly."""
        if variable.role.is_on_server:
            self._look_at_end()

    def _look_at_end(self):
        """Finishes when `fit` is over: what is seen is what all have come to.

        Nothing tells when a training loop of the user's own has ended.
        """
        if self._fit is not None and self._fit.is_over():
            self._ring.finish()

    def finish(self):
        """Called when this worker waits for all others to end training."""
        self._ring.finish()

    def is_open(self):
        """Whether others may wait for this worker, where only it knows."""
        return self._ring.is_open()


def _is_shared(record):
    """Whether the mean over the workers takes the place of what it has."""
    if record.is_gradient:
        return True
    if not isinstance(record, records_lib.Mutation):
        return False
    if record.variable.role is not Role.STATE:
        return False
    if record.kind not in _LINEAR:
        raise ValueError(
            f"{record.variable.name!r} must be set by one of "
            f"{', '.join(_LINEAR)} in a training step whose state is averaged "
            f'over the workers (communication="ring"). Received: {record.kind}'
        )
    return True


def _value(record):
    """Returns what is averaged: dense, of numbers of at least 32 bits."""
    value = record.value if _is_mutation(record) else record.args[0]
    value = tf.convert_to_tensor(value)
    return tf.cast(value, tf.float32) if value.dtype.size < 4 else value


def _with_value(record, value):
    """Returns the record with something else in that place."""
    value = tf.cast(value, record.variable.dtype)
    if _is_mutation(record):
        return dataclasses.replace(record, value=value)
    return dataclasses.replace(record, args=(value, *record.args[1:]))


def _is_mutation(record):
    return isinstance(record, records_lib.Mutation)
