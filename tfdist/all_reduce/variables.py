"""Variables of one worker: plain ones that tell when they are assigned."""

import enum
import functools

import keras
import tensorflow as tf

from tfdist import model_optimizers
from tfdist import one_replica
from tfdist import own_random_numbers
from tfdist import private_keras_calls
from tfdist import private_tensorflow
from tfdist import variable_names
from tfdist.saving import models
from tfdist.saving import refusals

_RATE = "learning_rate"
_STEPS = "iteration"
_AGGREGATED = (tf.VariableAggregation.MEAN, tf.VariableAggregation.SUM)


class Kind(enum.Enum):
    """The maker of a variable, which decides whether workers share it."""

    # Made by `Layer.add_weight`, or trainable: the same on all workers.
    SHARED = "shared"
    # Made by an optimizer: the same on all workers.
    OPTIMIZER = "optimizer"
    # Made by anybody else (metrics, seeds, states of RNNs): one per worker. So
    # are sums of own gradients that an optimizer has yet to apply.
    OWN = "own"


def kind_of(
    maker, trainable, synchronization, aggregation, name, sums_own_gradients
):
    """The `Kind` of a variable that is being created.

    Args:
      maker: From `private_keras_variables.variable_maker`.
      trainable: Whether it is created as trainable.
      synchronization: `tf.VariableSynchronization`.
      aggregation: `tf.VariableAggregation`; MEAN and SUM are of what workers
        share.
      name: Its name, or None.
      sums_own_gradients: Whether optimizers accumulate the gradients of their
        worker alone.
    """
    if isinstance(maker, keras.optimizers.Optimizer):
        is_own = sums_own_gradients and variable_names.is_accumulator(name)
        return Kind.OWN if is_own else Kind.OPTIMIZER
    is_metric = synchronization == tf.VariableSynchronization.ON_READ
    if is_metric or variable_names.is_seed(name):
        return Kind.OWN
    is_shared = maker is not None or trainable or aggregation in _AGGREGATED
    return Kind.SHARED if is_shared else Kind.OWN


class WorkerVariable(private_tensorflow.ResourceVariable):
    """A resource variable that the engine hears of when it is assigned."""

    def __init__(self, *, engine, kind, **kwargs):
        self._engine = engine
        self.kind = kind
        # Of a shared one, and an optimizer's number of steps: its place among
        # them, in order of creation.
        self.place = None
        # Whether all workers have held the same value of it.
        self.is_agreed = False
        # Whether a warning has said that steps assign it on this worker alone.
        self.is_told_as_own = False
        # Of the engine's own, which Keras does not know: its name in a saved
        # state, where others have their number.
        self.saved_as = None
        # Of an optimizer's number of steps: the steps of an update of own
        # gradients, and else 1.
        self.steps_of_update = 1
        super().__init__(**kwargs)

    @property
    def files(self):
        """The `Files` of the task."""
        return self._engine.files

    @property
    def is_rate(self):
        """Whether it is a learning rate: the chief's counts for all."""
        is_rate = variable_names.leaf(self.name) == _RATE
        return is_rate and self.kind is Kind.OPTIMIZER

    @property
    def counts_steps(self):
        """Whether it is an optimizer's number of steps."""
        is_count = variable_names.leaf(self.name) == _STEPS
        return is_count and self.kind is Kind.OPTIMIZER

    def see_accumulation(self, maker):
        """Notes which optimizer has made it, if that sums own gradients."""
        steps = getattr(maker, "gradient_accumulation_steps", None)
        counts = variable_names.leaf(self.name) == _STEPS
        if counts and self._engine.sums_own_gradients:
            self.steps_of_update = steps or 1

    def at_begin_of_update(self, value):
        """Returns what it is on a worker whose accumulators are empty.

        Args:
          value: What it is on another one, a number or an array.
        """
        steps = self.steps_of_update
        return value - value % steps if steps > 1 else value

    @property
    def is_accumulator(self):
        """Whether it is the sum of own gradients, yet to be applied."""
        is_sum = variable_names.is_accumulator(self.name)
        return is_sum and self.kind is Kind.OWN

    @property
    def is_seed(self):
        """Whether it is the state of a Keras `SeedGenerator`."""
        return variable_names.is_seed(self.name)

    def spread_seed(self, worker):
        """See `own_random_numbers`; an optimizer's is that of all."""
        if self.kind is Kind.OPTIMIZER and self._engine.updates_alike:
            return
        state = own_random_numbers.spread_seed(self.numpy(), worker)
        self.assign(tf.constant(state, self.dtype))

    @property
    def trainable(self):
        """Whether tapes watch it: TensorFlow asks at each access.

        It asks also where a function is called that was traced before.
        """
        self._engine.before_access(self)
        return super().trainable

    def __tf_tracing_type__(self, context):
        stock = super().__tf_tracing_type__(context)
        return one_replica.OwnTraceType(self, stock)

    def _restore_from_tensors(self, restored_tensors):
        # A `tf.train.Checkpoint` does not call `assign`.
        if self.kind is not Kind.OWN and not self._engine.is_in_step:
            self._engine.before_assignment(self)
        return super()._restore_from_tensors(restored_tensors)

    def _read_variable_op(self, no_copy=False):
        if self.files.is_shared:
            if tf.executing_eagerly():
                refusals.before_read(self.files)
            else:
                models.see_callers(self.files)
        update = self._engine.update
        is_scalar = self.kind is Kind.OPTIMIZER and not self.shape.rank
        read = functools.partial(super()._read_variable_op, no_copy)
        if update is None or not is_scalar:
            return read()
        return update.read(self, read)


def _is_for_shapes():
    """Whether Keras builds a layer, in a graph that never runs."""
    is_graph = not tf.executing_eagerly()
    return is_graph and private_keras_calls.is_computing_shapes()


def _noted(name):
    method = getattr(private_tensorflow.ResourceVariable, name)

    def assign(self, *args, **kwargs):
        if self.kind is not Kind.OWN and not _is_for_shapes():
            self._engine.before_assignment(self)
        if self._engine.update is not None:
            self._engine.update.before_assignment(self)
        return method(self, *args, **kwargs)

    assign.__name__ = name
    assign.__doc__ = method.__doc__
    return assign


for _name in (
    "assign",
    "assign_add",
    "assign_sub",
    "scatter_add",
    "scatter_div",
    "scatter_max",
    "scatter_min",
    "scatter_mul",
    "scatter_sub",
    "scatter_update",
    "scatter_nd_add",
    "scatter_nd_max",
    "scatter_nd_min",
    "scatter_nd_sub",
    "scatter_nd_update",
    "batch_scatter_update",
    # `variable[...].assign(value)`.
    "_strided_slice_assign",
):
    setattr(WorkerVariable, _name, _noted(_name))


def shared_by(model, lanes=()):
    """The variables of a `keras.Model` that all workers share, a list.

    Args:
      model: The model.
      lanes: Those of its last step. They may train weights that Keras does
        not list, such as those of a network in an object that is no layer.
    """
    owners = model_optimizers.optimizers_of(model)
    listed = [
        *model.weights,
        *(variable for owner in owners for variable in owner.variables),
        *(variable for lane in lanes for variable in lane.shared),
    ]
    return list({id(v): v for v in map(plain, listed) if is_shared(v)}.values())


def is_shared(variable):
    """Whether all workers share a TensorFlow variable."""
    return getattr(variable, "kind", Kind.OWN) is not Kind.OWN


def plain(variable):
    """The TensorFlow variable of a Keras variable."""
    if isinstance(variable, keras.Variable):
        return variable.value
    return variable
