"""Base of strategies with one replica in each process."""

import contextlib
import functools
import weakref

import keras
import tensorflow as tf

from tfdist import loss_scales
from tfdist import private_keras_building
from tfdist import private_keras_calls
from tfdist import private_keras_variables
from tfdist import private_tensorflow

# Of a variable's arguments, what is kept of those that creators hand on.
_KNOWN = (
    "initial_value",
    "trainable",
    "validate_shape",
    "name",
    "dtype",
    "constraint",
    "synchronization",
    "aggregation",
    "shape",
)


# Of one worker's step with others, for messages.
REDUCTIONS = (
    "`all_reduce` or `all_gather` of a replica context, or a reduction in a "
    "`merge_call`, as by BatchNormalization(synchronized=True),"
)


class ReplicaContext(tf.distribute.ReplicaContext):
    """Reduces without a gradient of its own.

    TensorFlow registers one for each trace of an optimizer's step, in a table
    of the process that keeps it, the graph, and all that the graph has
    captured, for good.
    """

    def all_reduce(self, reduce_op, value, options=None):
        if not tf.distribute.has_strategy():
            return value
        return self.strategy.extended._replica_ctx_all_reduce(  # noqa: SLF001
            reduce_op, value, options
        )


def stepping():
    """Scope of an optimizer's step in a function that is to be freed."""
    if tf.distribute.has_strategy():
        return contextlib.nullcontext()
    return ReplicaContext(tf.distribute.get_strategy(), 0)


class OneReplicaExtended(tf.compat.v1.distribute.StrategyExtended):
    """Nothing is reduced, gathered or told apart between replicas.

    What a strategy does with variables, steps and updates is up to those that
    derive from it.

    Attributes:
      lets_variables_move: Whether variables may be put on other devices when
        they have been made.
    """

    lets_variables_move = True

    # Variables.

    def read_var(self, replica_local_var):
        return tf.identity(replica_local_var)

    def value_container(self, value):
        return value

    # Steps.

    def _use_merge_call(self):
        return False

    def _replica_ctx_update(self, var, fn, args=(), kwargs=None, group=True):
        return self._update(var, fn, args, kwargs or {}, group)

    def _update_non_slot(self, colocate_with, fn, args, kwargs, group):
        return fn(*args, **kwargs)

    def _check_reduction(self):
        """Refuses a reduction that would be of this worker's value alone.

        Outside of steps, where a program asks for the values of its replicas,
        there is one.
        """

    def _reduce_to(self, reduce_op, value, destinations, options):
        self._check_reduction()
        return value

    def _batch_reduce_to(self, reduce_op, value_destination_pairs, options):
        self._check_reduction()
        return [value for value, _ in value_destination_pairs]

    def _gather_to_implementation(self, value, destinations, axis, options):
        self._check_reduction()
        return value

    def _local_results(self, val):
        return (val,)

    # Input.

    def _experimental_distribute_values_from_function(self, value_fn):
        return value_fn(tf.distribute.experimental.ValueContext(0, 1))

    def _make_dataset_iterator(self, dataset):
        return iter(dataset)

    # What it looks like from outside.

    def non_slot_devices(self, var_list):
        return min(var_list, key=lambda x: x.name)

    @property
    def _num_replicas_in_sync(self):
        return 1

    @property
    def _global_batch_size(self):
        return True

    @property
    def experimental_require_static_shapes(self):
        return False

    def _in_multi_worker_mode(self):
        return False

    def _get_local_replica_id(self, replica_id_in_sync_group):
        return replica_id_in_sync_group

    def _get_replica_id_in_sync_group(self, replica_id):
        return replica_id


def note_keras_variable(variable):
    """Notes for which `keras.Variable` a variable is being created."""
    made = private_keras_variables.variable_being_made()
    variable.keras_variable = None if made is None else weakref.ref(made)


def is_trainable(variable):
    """Whether Keras may train a variable now.

    The `trainable` of a `tf.Variable` never changes, and that of a layer's
    weights is True even if the layer was made with trainable=False.

    Args:
      variable: One that `note_keras_variable` has seen, or a `tf.Variable`.
    """
    known = _keras_variable_of(variable)
    return variable.trainable if known is None else known.trainable


def constraint_of(variable):
    """Returns what Keras applies to a variable after each update, or None.

    Args:
      variable: As of `is_trainable`.
    """
    return getattr(_keras_variable_of(variable), "constraint", None)


def is_overwritten_with_gradient(variable):
    """Whether an optimizer replaces a variable by its gradient (float8).

    Args:
      variable: As of `is_trainable`.
    """
    known = _keras_variable_of(variable)
    return bool(getattr(known, "overwrite_with_gradient", False))


def how_to_freeze(variable, effect="each worker has its own"):
    """Says how a variable becomes one that nothing trains, for messages.

    Args:
      variable: As of `is_trainable`.
      effect: The effect on a weight of a layer.
    """
    if _keras_variable_of(variable) is None:
        return (
            "make it as tf.Variable(..., trainable=False): then each worker "
            "has its own"
        )
    return f"set trainable=False on its layer or model: then {effect}"


def _keras_variable_of(variable):
    reference = getattr(variable, "keras_variable", None)
    return reference and reference()


class WorkerExtended(OneReplicaExtended):
    """The one replica of a process that may be one of several.

    Args:
      container_strategy: The strategy that this belongs to.
      device: Of this worker.
      is_chief: Whether it is the chief.
    """

    def __init__(self, container_strategy, device, is_chief):
        private_keras_calls.check()
        private_keras_variables.check()
        super().__init__(container_strategy)
        self._device = device
        self._is_chief = is_chief
        self._traced = weakref.WeakKeyDictionary()

    def _begin_variable(self, kwargs):
        """Called for each new variable.

        Args:
          kwargs: The arguments that creators hand on, a dict.

        Returns:
          The layer or optimizer that makes it, or None; and the arguments that
          mean something here, a dict.
        """
        # `compile` makes variables of metrics: a model with a `train_step` of
        # its own is then built in its first step.
        model = private_keras_calls.compiling_model()
        if model is not None and private_keras_building.has_own_train_step(
            model
        ):
            private_keras_building.build_without_data(model)
        maker = private_keras_variables.variable_maker()
        known = {key: kwargs[key] for key in _KNOWN if key in kwargs}
        if isinstance(maker, keras.optimizers.Optimizer):
            # Keras leaves some of an optimizer's state (the product of
            # Nadam's momenta) marked as a trainable part of the model.
            known["trainable"] = False
            loss_scales.see(maker)
        known["distribute_strategy"] = self._container_strategy()
        return maker, known

    def _trace(self, fn):
        """`strategy.run(fn)` inside a tf.function, for a tf.function."""
        if fn not in self._traced:
            run, original = self._container_strategy().run, weakref.ref(fn)

            def step(args, kwargs):
                return run(private_tensorflow.inlined(original()), args, kwargs)

            self._traced[fn] = tf.function(step)
        return self._traced[fn]

    # What it looks like from outside.

    @property
    def worker_devices(self):
        return (self._device,)

    @property
    def parameter_devices(self):
        return (self._device,)

    @property
    def experimental_between_graph(self):
        return True

    @property
    def should_checkpoint(self):
        return self._is_chief

    @property
    def should_save_summary(self):
        return self._is_chief


class OwnTraceType(tf.types.experimental.TraceType):
    """The type of one variable as an argument of a `tf.function`.

    A function that has been traced with a variable sends what it does to that
    variable's primary, or means of it: another variable, be it of the same
    shape, needs a trace of its own.

    Args:
      variable: The `tf.Variable`.
      stock: The type that TensorFlow gives it.
    """

    def __init__(self, variable, stock):
        self._variable = weakref.ref(variable)
        self._stock = stock
        self._hash = hash((id(variable), stock))

    def is_subtype_of(self, other):
        return self == other

    def most_specific_common_supertype(self, others):
        return self if all(self == other for other in others) else None

    def placeholder_value(self, placeholder_context):
        return self._stock.placeholder_value(placeholder_context)

    def to_tensors(self, value):
        return self._stock.to_tensors(value)

    def from_tensors(self, tensors):
        return self._stock.from_tensors(tensors)

    def flatten(self):
        return self._stock.flatten()

    def cast(self, value, cast_context):
        return self._stock.cast(value, cast_context)

    def __eq__(self, other):
        if not isinstance(other, OwnTraceType) or self._stock != other._stock:
            return False
        variable = self._variable()
        return variable is not None and variable is other._variable()

    def __hash__(self):
        return self._hash


def with_value(kwargs):
    """A variable's arguments, with a value outside of all functions.

    `tf.saved_model.load` makes variables and then restores their values. Steps
    make accumulators of zeros, which are tensors of theirs.

    Args:
      kwargs: The arguments, a dict.
    """
    value = kwargs.get("initial_value")
    if tf.is_tensor(value) and tf.is_symbolic_tensor(value):
        known = tf.get_static_value(value)
        return kwargs if known is None else {**kwargs, "initial_value": known}
    shape, dtype = tf.TensorShape(kwargs.get("shape")), kwargs.get("dtype")
    if value is not None or dtype is None or not shape.is_fully_defined():
        return kwargs
    zeros = functools.partial(tf.zeros, shape, dtype)
    return {**kwargs, "initial_value": zeros}


@contextlib.contextmanager
def foreign_objects_explained():
    """Scope in which TensorFlow may find an object of another strategy."""
    complaints = ("Mixing different tf.distribute.Strategy", "Must not nest")
    try:
        yield
    except RuntimeError as error:
        if not any(complaint in str(error) for complaint in complaints):
            raise
        raise ValueError(
            "A model or an optimizer was created outside "
            "strategy.scope(): create both, and compile, inside the "
            "scope of the one strategy that trains."
        ) from error


def tensors_in(structure):
    """Returns what to wait for all tensors of a structure with, a list."""
    leaves = tf.nest.flatten(structure, expand_composites=True)
    tensors = [leaf for leaf in leaves if isinstance(leaf, tf.Tensor)]
    if not tensors:
        return []
    with tf.control_dependencies(tensors):
        return [tf.no_op()]


def identity(value):
    """Builds the identity of a tensor, or of `tf.IndexedSlices`."""
    if isinstance(value, tf.IndexedSlices):
        return tf.IndexedSlices(
            tf.identity(value.values),
            tf.identity(value.indices),
            value.dense_shape,
        )
    return tf.identity(value)
