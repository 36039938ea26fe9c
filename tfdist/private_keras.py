"""Every private name that tfdist takes from Keras.

Names of how it builds models are in `private_keras_building`, of adapters of
data in `private_keras_data`, and Keras's call stack is read in
`private_keras_calls` and `private_keras_variables`. Nothing else in the
package imports from `keras.src` or uses an attribute of Keras's that begins
with an underscore. Each function says why the public interface does not do.
`tests/private_keras_test.py` has a canary for each, and a name whose absence
would go unnoticed is required here (`require`).
"""

import keras
from keras.src.backend.common import global_state
import tensorflow as tf

from tfdist import dynamic_subclasses
from tfdist import private_tensorflow
from tfdist.program_error import ProgramError

# Name of Keras's generator for draws without a seed.
_SEED_GENERATOR = "global_seed_generator"


def require(owner, *names):
    """Refuses a Keras whose objects lack a private attribute.

    Python would set it all the same, and nothing would read it.

    Args:
      owner: An object of Keras's.
      *names: Of its attributes.

    Raises:
      ProgramError: It lacks one; the message names it.
    """
    for name in names:
        if not hasattr(owner, name):
            raise ProgramError(
                f"tfdist does not support Keras {keras.version()}: "
                f"{type(owner).__name__} has no attribute `{name}`. Install a "
                "version of Keras that tfdist's setup.py allows."
            )


def make_seed_generator_in(strategy):
    """Has Keras's generator for draws without a seed made in a scope.

    It is made at the first draw, which may have been outside of the scope: no
    strategy would know its state, and all workers would draw the same. Keras
    has no public name for it but `keras.utils.set_random_seed`, which seeds
    Python and NumPy, too.

    Args:
      strategy: The strategy in whose scope the next draw is.
    """
    generator = global_state.get_global_attribute(_SEED_GENERATOR)
    in_scope = strategy.extended.variable_created_in_scope
    if generator is not None and not in_scope(generator.state.value):
        global_state.set_global_attribute(_SEED_GENERATOR, None)


def sublayers(layer):
    """The layers that are direct parts of a Keras layer, in order.

    A model has `layers`; a layer that is made of layers has no public name
    for them.
    """
    return layer._flatten_layers(include_self=False, recursive=False)


def with_sublayers(layer):
    """Returns a Keras layer and all layers within it, a list."""
    return list(layer._flatten_layers())


def own_metrics(layer):
    """The metrics that are attributes of a Keras layer itself, in order.

    `metrics` of a model has also the ones that it is compiled with, and those
    of its layers.
    """
    require(layer, "_metrics")
    return list(layer._metrics)


def counter_of(optimizer):
    """The variable in which a Keras optimizer counts its batches.

    `iterations` of an optimizer that accumulates gradients is a tensor that
    is computed from it: what can be read is the variable alone.

    Returns:
      The `keras.Variable`, and how many batches an update has, an int.
    """
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    require(optimizer, "_iterations")
    return optimizer._iterations, optimizer.gradient_accumulation_steps or 1


def move_variable(variable, device):
    """Moves the value of a Keras variable to another device.

    A `tf.Variable` stays where it was made, and Keras has no public way to
    give a variable another one. Whoever holds the Keras variable sees the
    same value on the new device. A function that was traced with the old one
    fails when it is called, and does not go on with a value that nobody sees.
    Keras's optimizers know it by the identity of the `tf.Variable`, which the
    new one takes over.
    """
    require(variable, "_value")
    value = variable.value
    if hasattr(value, "move_replica"):
        # A worker's replica of what is on a server.
        value.move_replica(device)
        return
    with tf.init_scope(), tf.device(device):
        # Not `tf.Variable`: a function that is being traced would object.
        moved = private_tensorflow.ResourceVariable(
            initial_value=tf.identity(value),
            trainable=value.trainable,
            name=value.name.partition(":")[0],
            synchronization=value.synchronization,
            aggregation=value.aggregation,
        )
    if hasattr(value, "files"):
        moved.files = value.files
    private_tensorflow.take_over_identity(moved, value)
    variable._value = moved
    private_tensorflow.empty_variable(value.handle, value.dtype)


def set_initial_epoch(model, epoch):
    """Makes the `fit` of a Keras model that is beginning begin with `epoch`.

    Its own `BackupAndRestore` does so; there is no public name for it.
    """
    require(model, "_initial_epoch")
    model._initial_epoch = epoch


def epoch_set_on(model):
    """The epoch that `set_initial_epoch` or a callback has set; None if none.

    There is no public name for it.
    """
    require(model, "_initial_epoch")
    return model._initial_epoch


def calls_of(model):
    """The calls that a functional Keras model is made of, in order.

    Keras runs a functional model as a whole; a pipeline runs parts of it. A
    part can be made in public as a model from tensors to tensors, but that
    adds a call to each of its layers, after which `layer.output` fails.

    Returns:
      A list of (operation, fill_in, inputs, outputs): the layer or operation,
      a function from a dict (id of a symbolic tensor to its value) to the
      arguments of the call, and the symbolic tensors.
    """
    by_depth = model._nodes_by_depth
    return [
        (
            node.operation,
            node.arguments.fill_in,
            node.input_tensors,
            node.outputs,
        )
        for depth in sorted(by_depth, reverse=True)
        for node in by_depth[depth]
        if node.operation and not node.is_input
    ]


def strategy_of(model):
    """The strategy that a Keras model was made under, None without any.

    TensorFlow's default strategy, which is there without any, has no public
    name.
    """
    strategy = getattr(model, "distribute_strategy", None)
    if type(strategy).__name__ == "_DefaultDistributionStrategy":
        return None
    return strategy


def strategy_of_optimizer(optimizer):
    """The strategy that a Keras optimizer was made under.

    Keras has an optimizer make its variables there, and says so nowhere else.
    """
    return optimizer._distribution_strategy


class OptimizerOfOneReplica:
    """A mixin: a Keras optimizer that sums gradients over no other replica.

    Without a strategy, Keras hands all gradients to `all_reduce` of the only
    replica, which does nothing, in one operation: gradients of all devices
    would meet on one of them and go back. There is no public way around it.
    """

    def _all_reduce_sum_gradients(self, grads_and_vars):
        if tf.distribute.has_strategy():
            return super()._all_reduce_sum_gradients(grads_and_vars)
        return grads_and_vars


def slot(optimizer, name, variable):
    """The Keras variable that an optimizer keeps for one of its variables.

    All slots are in the public `optimizer.variables`, but which is which is
    only in the names of the attributes that the update rules use.

    Args:
      optimizer: A built `keras.Optimizer`.
      name: Of the attribute, such as "_momentums" of Adam.
      variable: A Keras variable that it was built with.
    """
    return getattr(optimizer, name)[optimizer._get_variable_index(variable)]


def averages_of(optimizer):
    """The averages of weights that a Keras optimizer keeps (`use_ema`), a list.

    Each step assigns all of them, right after its last update. Among the
    public `optimizer.variables`, only parts of names tell which they are.

    Args:
      optimizer: A built `keras.Optimizer`.

    Returns:
      A list of Keras variables; empty without `use_ema`.
    """
    if not optimizer.use_ema:
        return []
    require(optimizer, "_model_variables_moving_average")
    averages = optimizer._model_variables_moving_average
    return [average for average in averages if average is not None]


def has_step_of_its_own(optimizer):
    """Whether a step is more than `update_step` of each variable.

    As Nadam's, which counts something for all of them first. Only the names of
    the methods that call `update_step` tell, one of which is private.

    Args:
      optimizer: A `keras.Optimizer`.
    """
    kind, base = type(optimizer), keras.optimizers.Optimizer
    names = ("apply", "apply_gradients", "_backend_update_step")
    return any(getattr(kind, name) is not getattr(base, name) for name in names)


def loss_tracker(model):
    """The metric in which the training step of a Keras model keeps the loss.

    The public `metrics` may be overridden, and hold another one of its name.

    Args:
      model: A compiled `keras.Model`.
    """
    require(model, "_loss_tracker")
    return model._loss_tracker


def output_loss_trackers(model):
    """The metrics in which a Keras model keeps the loss of each output, a list.

    Empty for one output, and before they are built. Among the public `metrics`
    only names tell them from others.

    Args:
      model: A Keras model that is compiled with a loss.
    """
    require(model, "_compile_loss")
    return list(model._compile_loss.metrics)


def mask_of(output):
    """The mask that Keras hands on with a tensor, or None.

    It travels as a private attribute, and no public name reads it.
    """
    return getattr(output, "_keras_mask", None)


def logits_of(output):
    """The logits that Keras's softmax or sigmoid has made `output` of, or None.

    Keras's crossentropies compute with them instead of with the rounded
    probabilities. They travel as a private attribute, which a tensor that is
    put together from parts does not have.
    """
    return getattr(output, "_keras_logits", None)


def set_logits(output, logits):
    """Says what `output` was made of; see `logits_of`."""
    output._keras_logits = logits


def flat_inputs(model, x):
    """The tensors of the inputs of a sequential or functional Keras model.

    Args:
      model: A built `keras.Model`.
      x: What the model could be called with, such as a dict by names.

    Returns:
      A list of tensors in the order of `model.inputs`, of their dtypes and
      ranks.
    """
    functional = getattr(model, "_functional", None) or model
    return functional._standardize_inputs(x)


def pack_outputs(model, tensors):
    """Packs tensors as a sequential or functional Keras model returns them.

    Args:
      model: A built `keras.Model`.
      tensors: In the order of `model.outputs`.
    """
    functional = getattr(model, "_functional", None) or model
    packed = keras.tree.pack_sequence_as(functional._outputs_struct, tensors)
    lone = isinstance(packed, list) and len(packed) == 1
    return packed[0] if lone else packed


class _ReadByRows:
    """A mixin of Keras variables whose TensorFlow variable gives rows alone."""

    def sparse_read(self, indices, name=None):
        """Returns rows; `tf.gather` asks a variable for them."""
        return self._value.sparse_read(indices, name)


class _RowsDispatcher(tf.__internal__.dispatch.OpDispatcher):
    """Answers for an operation that would read a whole variable.

    Args:
      answer: Callable of a `_ReadByRows`, and of the operation's other
        arguments.
      others: Number of the others; calls with more are not answered.
    """

    def __init__(self, answer, others=0):
        self._answer = answer
        self._others = others

    def handle(self, args, kwargs):
        """Returns the answer if the first argument is a `_ReadByRows`."""
        variable, *others = args or [None]
        if (
            not isinstance(variable, _ReadByRows)
            or len(others) != self._others
            or kwargs
        ):
            return self.NOT_SUPPORTED
        return self._answer(variable, *others)


def _shape(variable):
    return tf.constant(variable.shape.as_list())


def _look_up(variable, ids):
    return tf.nn.embedding_lookup(variable._value, ids)


_RowsDispatcher(_shape).register(tf.shape)
_RowsDispatcher(lambda v: v._value).register(tf.convert_to_tensor)
_RowsDispatcher(_look_up, others=1).register(tf.nn.embedding_lookup)


def read_by_rows(variable):
    """Makes `keras.ops.take` ask a Keras variable for rows, not for all.

    Keras's `take` hands its variable to `tf.shape`, for ids that count from
    the end, and then to `tf.gather` with dense ids, which calls `sparse_read`
    of what has one; Keras's variables have none. With ragged ids it calls
    `tf.nn.embedding_lookup`. With sparse ones it calls `tf.convert_to_tensor`,
    and looks ids up in the result, which here is the TensorFlow variable.
    These three operations read all, and where that raises `ValueError` ask
    dispatchers, which have no public name.

    Args:
      variable: The `keras.Variable`, which may still be in the making.
    """
    dynamic_subclasses.specialize(variable, _ReadByRows)


def learning_rate_schedule(optimizer):
    """Returns the `LearningRateSchedule` of a Keras optimizer, or None.

    The public `learning_rate` is a number, with a schedule or without.
    """
    require(optimizer, "_learning_rate")
    rate = optimizer._learning_rate
    schedule = keras.optimizers.schedules.LearningRateSchedule
    return rate if isinstance(rate, schedule) else None


def has_rate_function(optimizer):
    """Whether a Keras optimizer's rate is a function, not a schedule.

    The public `learning_rate` is a number, which the function returns.
    """
    require(optimizer, "_learning_rate")
    rate = optimizer._learning_rate
    schedule = keras.optimizers.schedules.LearningRateSchedule
    return callable(rate) and not isinstance(rate, schedule)


def trained_by(optimizer):
    """Returns the Keras variables that an optimizer was built with, a list.

    `apply` may be called without them, and they have no public name.
    """
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    require(inner, "_trainable_variables")
    return list(inner._trainable_variables)
