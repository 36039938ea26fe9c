"""Every name that tfdist takes from TensorFlow's private modules.

Nothing else in the package imports from `tensorflow.python`. Each name says
why the public interface does not do, so that an upgrade of TensorFlow has one
file to check; `tests/private_tensorflow_test.py` has a canary for each.
"""

import contextlib
import functools
import sys

import tensorflow as tf
from tensorflow.python.autograph.core import ag_ctx
from tensorflow.python.autograph.impl import api as autograph
from tensorflow.python.data.experimental.ops import (
    distribute as _data_distribute,
)
from tensorflow.python.eager import context
from tensorflow.python.eager import record
from tensorflow.python.eager.polymorphic_function import tf_method_target
from tensorflow.python.framework import func_graph
from tensorflow.python.framework import ops
from tensorflow.python.ops import control_flow_util
from tensorflow.python.ops import custom_gradient
from tensorflow.python.ops import resource_variable_ops

# A replica variable is a stock resource variable whose handle depends on
# where it is used (the local copy, or the primary on a server). `tf.Variable`
# is an abstract front whose constructor cannot be subclassed that way.
ResourceVariable = resource_variable_ops.ResourceVariable


def inlined(function):
    """A `tf.function` as a part of the function that is being traced.

    AutoGraph converts it as it would have, also where it is switched off, as in
    Keras's steps; only private names can switch it on. `Strategy.run` of the
    `python_function` of a method would call it without its object.
    """
    python_function = function.python_function

    def call(*args, **kwargs):
        return python_function(*args, **kwargs)

    if function._autograph:
        enabled = ag_ctx.ControlStatusCtx(status=ag_ctx.Status.ENABLED)
        call = autograph.tf_convert(call, enabled)
    call.__wrapped__ = python_function
    return call


def object_of(method):
    """The object of a method, or None.

    A method that is a `tf.function` is bound to an object of a private class.
    """
    bound = getattr(method, "__self__", None)
    if isinstance(bound, tf_method_target.TfMethodTarget):
        return bound.target
    return bound


class UnreadHandle:
    """Stands for a handle in the place where eager operations look for it.

    They read a variable by its `_handle` and ask nobody. Where that is no
    tensor, they convert the variable to one, which it sees to.

    Args:
      handle: The handle, whose attributes this has.
    """

    def __init__(self, handle):
        self._handle = handle

    def __getattr__(self, name):
        return getattr(self._handle, name)


def auto_shard_dataset(dataset, num_workers, index):
    """The share of worker `index` of `num_workers` of a `tf.data.Dataset`.

    The rewrite (by file, or by element where there are no files) is what
    TensorFlow's own strategies apply; there is no public function for it.
    `Dataset.shard` at the end of a pipeline would compute every element on
    every worker, and could not share out files.
    """
    return _data_distribute._AutoShardDataset(dataset, num_workers, index)


def handle_of_iterator(iterator):
    """Returns the handle of an iterator of a `tf.data.Dataset`, or None.

    Whoever holds the last reference to it deletes the iterator, and waits for
    that. An iterator has no public way to be deleted elsewhere. In debug mode
    of `tf.data` it has no handle.
    """
    return getattr(iterator, "_iterator_resource", None)


def number_of(tensor):
    """Returns the number of an eager tensor, larger for each later one.

    None of a tensor in a graph. There is no public way to tell which of two
    tensors was there before.
    """
    return tensor._id if hasattr(tensor, "numpy") else None


def add_control_inputs(operation, inputs):
    """Makes `operation` run after `inputs`, which were built later.

    A lock must wait for all that is sent to its server, and what is sent is
    known only when the operations under the lock have been built.
    """
    operation._add_control_inputs(inputs)


def is_compiled_by_xla():
    """Whether what is being traced is part of a `jit_compile=True` function.

    XLA cannot compile the exchange with servers, and nothing public tells a
    step how it will be compiled.
    """
    return control_flow_util.GraphOrParentsInXlaContext(ops.get_default_graph())


def is_in_branch(graph):
    """Whether what is being traced is a branch or a loop's body in `graph`.

    Such a body may run never, or several times; nothing public tells it from
    the body of a `tf.function`, which runs when it is called.
    """
    inner = ops.get_default_graph()
    while inner is not None and inner is not graph:
        if type(inner).__name__ in _BRANCHES:
            return True
        inner = getattr(inner, "outer_graph", None)
    return False


def name_in(graph, resource):
    """The name of a resource in a graph, None if that has not captured it.

    A graph has no public name for what it has captured.

    Args:
      graph: The graph of a `tf.function`.
      resource: Handle of a variable.
    """
    if not isinstance(graph, func_graph.FuncGraph):
        return None
    outer = name_in(graph.outer_graph, resource)
    for external, internal in graph.captures:
        # An eager tensor has no name.
        is_outer = outer is not None and getattr(external, "name", "") == outer
        if external is resource or is_outer:
            return internal.name
    return None


def is_under_tape():
    """Whether a `tf.GradientTape` records; in public only its maker knows."""
    return record.could_possibly_record()


def is_in_custom_gradient(variable=None):
    """Whether a function with a gradient of its own is being called.

    TensorFlow looks for a variable behind each handle that such a function
    uses, and fails where there is none; nothing public tells of it before.

    Args:
      variable: What the function uses: if it is one of its arguments, the
        function has a gradient of it, and does not count.
    """
    frame = sys._getframe(1)
    modes = (
        custom_gradient._graph_mode_decorator.__code__,
        custom_gradient._eager_mode_decorator.__code__,
    )
    while frame is not None:
        if frame.f_code in modes:
            # Later they are tensors, where it is traced.
            given = tf.nest.flatten(frame.f_locals["args"])
            if variable is None or all(one is not variable for one in given):
                return True
        frame = frame.f_back
    return False


_BRANCHES = ("CondBranchFuncGraph", "WhileBodyFuncGraph", "WhileCondFuncGraph")


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


@contextlib.contextmanager
def unoptimized():
    """Scope in which functions are called as they were built.

    TensorFlow optimizes the graph of a function when it is first called, which
    takes longer than to build it, and as long again where a later call is
    outside of this scope. `tf.config.optimizer` does the same for all threads.
    """
    eager = context.context()
    usual = eager.function_call_options
    eager.function_call_options = context.FunctionCallOptions(
        usual.executor_type, _unoptimized(usual.config_proto_serialized)
    )
    try:
        yield
    finally:
        eager.function_call_options = usual


@functools.cache
def _unoptimized(config):
    """A serialized `ConfigProto` without the optimization of graphs."""
    config = tf.compat.v1.ConfigProto.FromString(config)
    config.graph_options.rewrite_options.min_graph_nodes = 2**31 - 1
    return config


@contextlib.contextmanager
def outside_of_functions():
    """Scope in which nothing counts as part of a function that is being traced.

    In `tf.init_scope` code runs eagerly, and yet TensorFlow notes each variable
    that it reads, or that a function reads that it calls, as one of the
    function that is being traced. That one can be part of no other function
    any more when one of these variables is gone.
    """
    if not (tf.inside_function() and tf.executing_eagerly()):
        yield
        return
    with tf.Graph().as_default(), context.eager_mode():
        yield


# By which `tf.xla.experimental.jit_scope` marks what is built in it.
_XLA_MARK = "_XlaCompile"


def is_marked_for_xla(operation):
    """Whether an operation of a graph was built to be compiled by XLA.

    `jit_scope` marks operations; the mark has no public name.
    """
    return operation.node_def.attr[_XLA_MARK].b


def unmark_for_xla(operation):
    """Takes the mark of `is_marked_for_xla` from an operation of a graph.

    In public, attributes are set only when an operation is built.
    """
    operation._clear_attr(_XLA_MARK)


# Attributes of a `tf.function` that is not inlined where it is called: the
# argument `experimental_attributes` is public, the attribute's name is not.
STAYS_A_FUNCTION = {"_noinline": True}


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


def is_connected():
    """Whether this process has connected to others, or been told to.

    In public a connection can be made, and not asked for.
    """
    return context.context().get_server_def() is not None


def enable_collectives(server_def):
    """Starts this process's server, for collectives with other processes.

    In public, only `MultiWorkerMirroredStrategy` does so, and brings with it
    what `tfdist.cluster.peers` says it does.
    """
    context.context().enable_collective_ops(server_def)


# For how long a server keeps what is of a client that it does not hear of,
# about 4 MB. Clients send a heartbeat each second; one that was stopped for
# longer reconnects. In public it is 600 s.
_CONTEXT_SECONDS = 60


def move_servers(addresses, helpers):
    """Connects this process to servers that are new or at other addresses.

    In public, connecting to a cluster with other addresses makes a new runtime,
    and was seen to end the process (TensorFlow 2.21); what a restarted server
    at the same address goes through does not.

    Args:
      addresses: List of `host:port`, one for each `ps` task.
      helpers: Dict of index of a `helper` task to `host:port`.
    """
    definition = context.get_server_def()
    jobs = {job.name: job for job in definition.cluster.job}
    for name, tasks in (
        ("ps", dict(enumerate(addresses))),
        ("helper", helpers),
    ):
        if tasks:
            job = jobs.get(name) or definition.cluster.job.add(name=name)
            for task, address in tasks.items():
                job.tasks[task] = address
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


def abandon(session):
    """Lets go of a `tf.compat.v1.Session` without asking its server.

    In public, closing a session calls the server, and forgetting one closes it
    in whatever thread does so; where the server is gone, that takes as long as
    the session's first operation may.
    """
    session._closed = True


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


def abort_collectives(code, message):
    """Makes all collectives of this process fail, now and later.

    Nothing public ends a collective that waits. A collective's own
    `timeout_seconds` does, but starts a thread for each that lives for as
    long, whether or not the collective has ended: 10,000 threads were seen
    after as many steps.

    Args:
      code: Of the error, such as `tf.errors.UNAVAILABLE`.
      message: Of the error.
    """
    context.context().abort_collective_ops(code, message)


def hidden_variable(value, shape=None):
    """A variable of tfdist's own, whoever is tracing or has a scope.

    `tf.Variable` asks a strategy, or a `tf.function` that is traced a second
    time and refuses.
    """
    return ResourceVariable(initial_value=value, trainable=False, shape=shape)


def take_over_identity(variable, other):
    """Makes a `tf.Variable` pass for another one.

    Keras's optimizers know variables (their slots, exclusion from weight
    decay) by the first attribute, and a strategy those of its scope by the
    second; neither has a public name.
    """
    variable._unique_id = other._unique_id
    variable._distribute_strategy = other._distribute_strategy


def empty_variable(handle, dtype):
    """Takes the value out of a resource variable that is no longer used.

    Nothing public frees its memory while a function that was traced with it
    is there; that function then fails.
    """
    with tf.init_scope(), tf.device(handle.device):
        tf.raw_ops.AssignVariableOp(resource=handle, value=tf.zeros([0], dtype))


def set_device(operation, device):
    """Puts an operation of a graph that has been built on a device.

    A constant is built before what it is for, which knows where it goes.
    """
    operation._set_device(device)
