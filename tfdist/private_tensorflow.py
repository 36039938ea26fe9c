"""Every name that tfdist takes from TensorFlow's private modules.

Nothing else in the package imports from `tensorflow.python`. Each name says
why the public interface does not do, so that an upgrade of TensorFlow has one
file to check.
"""

import contextlib
import os
import sys
from typing import NamedTuple

import keras
import tensorflow as tf
from tensorflow.python.data.experimental.ops import (
    distribute as _data_distribute,
)
from tensorflow.python.eager import context
from tensorflow.python.framework import ops
from tensorflow.python.ops import control_flow_util
from tensorflow.python.ops import resource_variable_ops

# A replica variable is a stock resource variable whose handle depends on
# where it is used (the local copy, or the primary on a server). `tf.Variable`
# is an abstract front whose constructor cannot be subclassed that way.
ResourceVariable = resource_variable_ops.ResourceVariable


def auto_shard_dataset(dataset, num_workers, index):
    """The share of worker `index` of `num_workers` of a `tf.data.Dataset`.

    The rewrite (by file, or by element where there are no files) is what
    TensorFlow's own strategies apply; there is no public function for it.
    `Dataset.shard` at the end of a pipeline would compute every element on
    every worker, and could not share out files.
    """
    # pylint: disable-next=protected-access
    return _data_distribute._AutoShardDataset(dataset, num_workers, index)


def is_cached(dataset):
    """Whether a `tf.data.Dataset` keeps its elements in a cache.

    All iterators of such a data set share its cache, so that looking into it
    in another way changes what they give. A data set has no public name for
    what it is made of.
    """
    if type(dataset).__name__ == "CacheDataset":
        return True
    # pylint: disable-next=protected-access
    return any(is_cached(part) for part in dataset._inputs())


# What hands on what other data sets read.
_PLAIN_STAGES = (
    "CacheDataset",
    "_BatchDataset",
    "_ConcatenateDataset",
    "_FilterDataset",
    "_MapDataset",
    "_OptionsDataset",
    "_PaddedBatchDataset",
    "_ParallelBatchDataset",
    "_ParallelMapDataset",
    "_PrefetchDataset",
    "_RepeatDataset",
    "_ShuffleDataset",
    "_SkipDataset",
    "_TakeDataset",
    "_ZipDataset",
)


def readers_of(dataset):
    """The parts of a `tf.data.Dataset` that read its files, a list.

    Whether there are enough files is asked of these, and not of what the user
    does to their lines. What a data set is made of has no public name; where
    it is not known, the list has the whole.
    """
    if type(dataset).__name__ not in _PLAIN_STAGES:
        return [dataset]
    # pylint: disable-next=protected-access
    parts = dataset._inputs()
    return [reader for part in parts for reader in readers_of(part)]


def is_from_memory(dataset):
    """Whether a `tf.data.Dataset` is known to read tensors or a generator only.

    TensorFlow finds the same out when it is to share out files, and then
    writes the description of the whole data set to standard error. What a data
    set is made of has no public name; where it is not known, it may read files.
    """
    name = type(dataset).__name__
    # pylint: disable=protected-access
    if name == "_TensorSliceDataset":
        # A list of names of files looks like any other tensor.
        specs = tf.nest.flatten(dataset.element_spec)
        return not any(spec.dtype == tf.string for spec in specs)
    if name in ("_RangeDataset", "_TensorDataset"):
        return True
    if name == "_FlatMapDataset":  # What `from_generator` makes.
        return any(
            operation.type == "GeneratorDataset"
            for wrapped in dataset._functions()
            for operation in wrapped.function.graph.get_operations()
        )
    if name not in (*_PLAIN_STAGES, "_ShardDataset"):
        return False
    return all(is_from_memory(part) for part in dataset._inputs())


def adapts_generator(adapter):
    """Whether a Keras `DataAdapter` is that of a Python generator.

    What it reads can be read once only, and its attribute `generator` says
    what its data set reads. The class has no public name.
    """
    return type(adapter).__name__ == "GeneratorDataAdapter"


def without_prefetch(dataset):
    """The `tf.data.Dataset` before it was told to `prefetch`, if it was.

    Keras prefetches what a Python generator gives. What is read and not used
    is lost, and nothing public takes a stage of a pipeline away.
    """
    if type(dataset).__name__ == "_PrefetchDataset":
        # pylint: disable-next=protected-access
        (dataset,) = dataset._inputs()
    return dataset


def add_control_inputs(operation, inputs):
    """Makes `operation` run after `inputs`, which were built later.

    A lock must wait for all that is sent to its server, and what is sent is
    known only when the operations under the lock have been built.
    """
    # pylint: disable-next=protected-access
    operation._add_control_inputs(inputs)


def is_compiled_by_xla():
    """Whether what is being traced is part of a `jit_compile=True` function.

    XLA cannot compile the exchange with servers, and nothing public tells a
    step how it will be compiled.
    """
    return control_flow_util.GraphOrParentsInXlaContext(ops.get_default_graph())


def take_back_from_xla():
    """Has the functions that are being traced not compiled by XLA as a whole.

    `jit_compile=True` is an attribute that a `tf.function` gives its graph
    when that has been traced. Keras makes such functions around
    `strategy.run`, and nothing public changes what they are.

    Returns:
      Whether the functions were found.
    """
    found = False
    frame = sys._getframe(1)
    while frame is not None:
        options = frame.f_locals.get("tracing_options")
        attributes = getattr(options, "attributes", None) or {}
        if "_XlaMustCompile" in attributes:
            attributes["_XlaMustCompile"] = False
            found = True
        frame = frame.f_back
    return found


@contextlib.contextmanager
def outside_of_xla():
    """Scope in which what is built is built as for no XLA.

    Loops and branches are built in another way for XLA, and then cannot have
    parts on other machines. `control_dependencies(None)` is the public way
    to leave such a context in one graph; which graphs enclose one is not
    public.
    """
    with contextlib.ExitStack() as stack:
        graph = ops.get_default_graph()
        while graph is not None:
            stack.enter_context(graph.control_dependencies(None))
            graph = getattr(graph, "outer_graph", None)
        yield


def clear_attribute(operation, name):
    """Takes an attribute from an operation of a graph.

    In public, attributes are given when it is built, by code of others.
    """
    # pylint: disable-next=protected-access
    operation._clear_attr(name)


def run_independently(operation):
    """Takes `operation` out of the order of the function that is traced.

    A `tf.function` runs all stateful operations without a resource among
    their inputs one after the other, in the order in which they were built:
    handles, locks and clocks of one server would wait for those of another,
    each time across the network. What is taken out still runs, after its
    inputs and control inputs.
    """
    manager = getattr(operation.graph, "experimental_acd_manager", None)
    if manager is not None:
        manager.run_independently(operation)


def enable_collectives(server_def):
    """Starts this process's server, for collectives with other processes.

    In public, only `MultiWorkerMirroredStrategy` does so, and brings with it
    what `tfdist.cluster.peers` says it does.
    """
    context.context().enable_collective_ops(server_def)


# For how long a server keeps what is of a client that it does not hear of,
# about 4 MB. Clients send a heartbeat each second; one that was stopped for
# longer connects anew. In public it is 600 s.
_CONTEXT_SECONDS = 60


def move_servers(addresses):
    """Connects this process to servers that are new or at other addresses.

    In public, connecting to a cluster with other addresses makes a new runtime,
    and was seen to end the process (TensorFlow 2.21); what a restarted server
    at the same address goes through does not.

    Args:
      addresses: List of `host:port`, one for each `ps` task.
    """
    definition = context.get_server_def()
    jobs = {job.name: job for job in definition.cluster.job}
    servers = jobs.get("ps") or definition.cluster.job.add(name="ps")
    for task, address in enumerate(addresses):
        servers.tasks[task] = address
    _connect(definition)


def leave_servers():
    """Ends this process's connection to servers, and what they keep for it.

    In public there is no end of a connection but the process's.
    """
    definition = context.get_server_def()
    others = [job for job in definition.cluster.job if job.name != "ps"]
    definition.cluster.ClearField("job")
    definition.cluster.job.extend(others)
    _connect(definition)


def _connect(definition):
    context.context().update_server_def(
        definition, keep_alive_secs=_CONTEXT_SECONDS
    )


def check_peer(task, seconds):
    """Asks another process of the collectives whether it is there.

    Nothing public does; it is what `MultiWorkerMirroredStrategy` asks.

    Raises:
      tf.errors.OpError: It is not; `FailedPreconditionError` if it has been
        started again.
    """
    context.context().check_collective_ops_peer_health(
        task, timeout_in_ms=int(seconds * 1000)
    )


def abort_collectives(message):
    """Makes all collectives of this process fail, now and later.

    Nothing public ends a collective that waits for a process that is gone.
    """
    context.context().abort_collective_ops(tf.errors.UNAVAILABLE, message)


def sublayers(layer):
    """The layers that are direct parts of a Keras layer, in order.

    A model has `layers`; a layer that is made of layers has no public name
    for them.
    """
    # pylint: disable-next=protected-access
    return layer._flatten_layers(include_self=False, recursive=False)


def move_variable(variable, device):
    """Moves the value of a Keras variable to another device.

    A `tf.Variable` stays where it was made, and Keras has no public way to
    give a variable another one. Whoever holds the Keras variable sees the
    same value on the new device. A function that was traced with the old one
    fails when it is called, and does not go on with a value that nobody sees.
    """
    value = variable.value
    if hasattr(value, "move_replica"):
        # A worker's replica of what is on a server.
        value.move_replica(device)
        return
    with tf.init_scope(), tf.device(device):
        # Not `tf.Variable`: a function that is being traced would object.
        # pylint: disable-next=protected-access
        variable._value = ResourceVariable(
            initial_value=tf.identity(value),
            trainable=value.trainable,
            name=value.name.partition(":")[0],
            synchronization=value.synchronization,
            aggregation=value.aggregation,
        )
    empty_variable(value.handle, value.dtype)


def hidden_variable(value, shape=None):
    """A variable of tfdist's own, whoever is tracing or has a scope.

    `tf.Variable` asks a strategy, or a `tf.function` that is traced a second
    time and refuses.
    """
    return ResourceVariable(initial_value=value, trainable=False, shape=shape)


def empty_variable(handle, dtype):
    """Takes the value out of a resource variable that is no longer used.

    Nothing public frees its memory while a function that was traced with it
    is there; that function then fails.
    """
    with tf.init_scope(), tf.device(handle.device):
        tf.raw_ops.AssignVariableOp(resource=handle, value=tf.zeros([0], dtype))


# What writes models and their variables to files.
_SAVING = (
    "keras.src.saving.",
    "keras.src.export.",
    "tensorflow.python.checkpoint.",
    "tensorflow.python.saved_model.",
)


def is_saving():
    """Whether a model or its variables are being saved by whoever calls.

    What Keras or TensorFlow saves they read variable by variable, and tell
    nobody when they begin. Only the calls that are under way show it.
    """
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith(_SAVING):
            return True
        frame = frame.f_back
    return False


def is_building_model():
    """Whether Keras takes a batch only to build a model for it.

    It asks for that as for an epoch, and throws the iterator away. Only the
    calls that are under way show it.
    """
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "_maybe_symbolic_build":
            return True
        frame = frame.f_back
    return False


class SavingCall(NamedTuple):
    """A call that writes a model or a checkpoint to files.

    Attributes:
      name: What a user calls, such as "keras.saving.save_model".
      path: Where to.
      variables: Of the model, Keras's; empty where there is none.
    """

    name: str
    path: str | os.PathLike
    variables: list


# What writes files, by module and name: what it is in public, and the
# argument that says where to.
SAVING_CALLS = {
    ("keras.src.saving.saving_lib", "save_model"): (
        "keras.saving.save_model",
        "filepath",
    ),
    ("keras.src.saving.saving_lib", "save_weights_only"): (
        "keras.saving.save_weights",
        "filepath",
    ),
    ("keras.src.legacy.saving.legacy_h5_format", "save_model_to_hdf5"): (
        "keras.saving.save_model",
        "filepath",
    ),
    # `tf.saved_model.save` calls it as well.
    ("tensorflow.python.checkpoint.checkpoint", "save"): (
        "tf.train.Checkpoint.save",
        "file_prefix",
    ),
}


def saving_call():
    """The `SavingCall` that is under way, or None.

    As for `is_saving`; a model that is pickled or copied is none.
    """
    frame = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__")
        known = SAVING_CALLS.get((module, frame.f_code.co_name))
        if known is not None:
            path = frame.f_locals.get(known[1])
            if isinstance(path, str | os.PathLike):
                model = frame.f_locals.get("model")
                return SavingCall(
                    known[0], path, getattr(model, "variables", [])
                )
        frame = frame.f_back
    return None


def set_initial_epoch(model, epoch):
    """Makes the `fit` of a Keras model that is beginning begin with `epoch`.

    Its own `BackupAndRestore` does so; there is no public name for it.
    """
    # pylint: disable-next=protected-access
    model._initial_epoch = epoch


def set_device(operation, device):
    """Puts an operation of a graph that has been built on a device.

    A constant is built before what it is for, which knows where it goes.
    """
    # pylint: disable-next=protected-access
    operation._set_device(device)


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
    # pylint: disable=protected-access
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


def know_moved_variables(optimizer):
    """Tells a Keras optimizer that variables of its model have moved.

    It knows them by their TensorFlow variables, and has no public way to be
    built again with the slots that it has.
    """
    # pylint: disable=protected-access
    optimizer._trainable_variables_indices = {
        optimizer._var_key(variable): index
        for index, variable in enumerate(optimizer._trainable_variables)
    }


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
    # pylint: disable-next=protected-access
    return getattr(optimizer, name)[optimizer._get_variable_index(variable)]


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
    # pylint: disable-next=protected-access
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
    # pylint: disable=protected-access
    functional = getattr(model, "_functional", None) or model
    return functional._standardize_inputs(x)


def pack_outputs(model, tensors):
    """What a sequential or functional Keras model returns.

    Args:
      model: A built `keras.Model`.
      tensors: In the order of `model.outputs`.
    """
    # pylint: disable=protected-access
    functional = getattr(model, "_functional", None) or model
    packed = keras.tree.pack_sequence_as(functional._outputs_struct, tensors)
    lone = isinstance(packed, list) and len(packed) == 1
    return packed[0] if lone else packed
