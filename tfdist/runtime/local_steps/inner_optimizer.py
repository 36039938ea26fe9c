"""State of an optimizer that takes local steps."""

import dataclasses
import weakref

import tensorflow as tf

from tfdist import model_optimizers
from tfdist.averaging import base as averaging
from tfdist.runtime.variables.server_scope import read_replica
from tfdist.runtime.variables.variables import Role

# Examples that steps without any count as: beside others' next to nothing.
_NO_EXAMPLES = 2.0**-30


@dataclasses.dataclass
class Inner:
    """State of one inner optimizer on this worker.

    Attributes:
      clock: Its step counter.
      optimizer: The Keras optimizer, by a weak reference: None when nobody
        uses it any more.
      optimizer_state: Its variables, a list.
      outer: The outer one.
      parameters: List of the parameters that it trains.
      states: List of other state that its steps assign.
      speeds: The `Speeds` that its number of steps follows, or None.
      since_push: Steps since its last push, a worker's int64.
      since_fetch: The same since its last fetch.
      examples: Examples in the steps since its last push, the same.
      finite: Whether what is to be pushed is finite, as last looked at, a
        worker's bool.
      accrued: By ordinal, sums of gradients, where these are pushed.
      set_since: Ordinals of parameters that have been set eagerly since the
        last step.
      set_at: Steps that the clock had counted when the last one was set.
    """

    clock: object
    optimizer: weakref.ref
    optimizer_state: list
    outer: object
    parameters: list
    states: list
    speeds: object
    since_push: object
    since_fetch: object
    examples: object
    finite: object
    accrued: dict
    set_since: set = dataclasses.field(default_factory=set)
    set_at: int = -1

    def count(self, examples, gradients):
        """Builds: a step has been taken.

        Args:
          examples: Number of its examples, scalar int64 tensor.
          gradients: Its gradients, by ordinal.
        """
        self.since_push.assign_add(1, read_value=False)
        self.since_fetch.assign_add(1, read_value=False)
        self.examples.assign_add(examples, read_value=False)
        for ordinal, total in self.accrued.items():
            gradient = gradients[ordinal]
            if isinstance(gradient, tf.IndexedSlices):
                total.scatter_add(gradient)
            else:
                total.assign_add(gradient, read_value=False)

    def pushed(self):
        """Builds: what it has done has been pushed."""
        self.since_push.assign(0, read_value=False)
        self.examples.assign(0, read_value=False)
        for total in self.accrued.values():
            total.assign(tf.zeros_like(total), read_value=False)

    def weight(self):
        """Builds how much its steps count in a mean weighted by examples.

        More than nothing: where nobody's steps had examples, what they have
        come to is still averaged.

        Returns:
          A scalar float64 tensor.
        """
        examples = tf.cast(self.examples.read_value(), tf.float64)
        return tf.maximum(examples, _NO_EXAMPLES)

    @property
    def held(self):
        """All of which own values are exchanged, a list of variables."""
        return [*self.parameters, *self.states]

    def has_steps(self):
        """Whether there are steps since its last push."""
        return int(self.since_push.numpy()) > 0

    def forget(self):
        """Drops the steps since the last push."""
        zero = tf.zeros([], tf.int64)
        for counter in (self.since_push, self.since_fetch, self.examples):
            counter.assign_replica(zero)
        for total in self.accrued.values():
            total.assign_replica(tf.zeros(total.shape, total.dtype))

    def was_set(self, variable):
        """A variable has been set eagerly, with own value and anchor alike.

        Once all parameters have been, with no step in between, nothing of
        what was done is left.
        """
        ordinals = {p.ordinal for p in self.parameters}
        if variable.ordinal not in ordinals:
            return
        if self.accrued:
            self.accrued[variable.ordinal].assign_replica(
                tf.zeros(variable.shape, variable.dtype)
            )
        steps = int(read_replica(self.clock))
        if steps != self.set_at:
            self.set_since.clear()
        self.set_at = steps
        self.set_since.add(variable.ordinal)
        if self.set_since == ordinals:
            self.set_since.clear()
            for counter in (self.since_push, self.examples):
                counter.assign_replica(tf.zeros([], tf.int64))

    def state(self, role):
        """Its state of a role, a list of `ReplicaVariable`."""
        return [value for value in self.optimizer_state if value.role is role]


def new_inner(
    store, method, clock, optimizer, outer, parameters, states, speeds
):
    """An `Inner` that has done nothing yet.

    Args:
      store: The `ParameterStore`.
      method: The `LocalSteps`.
      clock: See `Inner`, as the others.
      optimizer: The Keras optimizer.
      outer: The outer one.
      parameters: List of the parameters that it trains.
      states: List of other state that its steps assign.
      speeds: A `Speeds`, or None.
    """

    def zero(name):
        return store.worker_variable(tf.zeros([], tf.int64), name)

    def zeros_like(parameter):
        return store.worker_variable(
            lambda: tf.zeros(parameter.shape, parameter.dtype), "accrued"
        )

    accrues = method.pushed is averaging.Pushed.GRADIENTS
    return Inner(
        clock,
        weakref.ref(optimizer),
        [getattr(v, "value", v) for v in optimizer.variables],
        outer,
        parameters,
        states,
        speeds,
        zero("since_push"),
        zero("since_fetch"),
        zero("examples"),
        store.worker_variable(tf.ones([], tf.bool), "steps_are_finite"),
        {p.ordinal: zeros_like(p) for p in parameters if accrues},
    )


def begin_anew(inner, finite):
    """Builds: unless `finite`, an inner optimizer's own state is so again.

    But for its learning rate, which only the user sets.
    """
    optimizer = inner.optimizer()
    rates = model_optimizers.rates_of(optimizer)
    settings = [rate.value for rate in rates]
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    # Adagrad's sums do not begin with zero.
    sums_begin = getattr(optimizer, "initial_accumulator_value", 0.0)

    def first_of(variable):
        is_sum = averaging.is_sum(variable.name)
        return tf.cast(sums_begin if is_sum else 0.0, variable.dtype)

    def begin():
        for variable in inner.state(Role.LOCAL):
            if not variable.dtype.is_floating or any(
                variable is setting for setting in settings
            ):
                continue
            first = first_of(variable)
            value = variable.read_value()
            value = tf.where(tf.math.is_finite(value), value, first)
            variable.assign(value, read_value=False)
        return True

    tf.cond(finite, lambda: False, begin)


def reset_momentum(inner):
    """Builds: an inner optimizer's momenta are as at the beginning."""
    for variable in inner.state(Role.LOCAL):
        if averaging.is_momentum(variable.name):
            variable.assign(tf.zeros_like(variable), read_value=False)
