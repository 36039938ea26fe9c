"""Every name that tfdist takes from TensorFlow's private modules.

Nothing else in the package imports from `tensorflow.python`. Each name says
why the public interface does not do, so that an upgrade of TensorFlow has one
file to check.
"""

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


def add_control_inputs(operation, inputs):
    """Makes `operation` run after `inputs`, which were built later.

    A lock must wait for all that is sent to its server, and what is sent is
    known only when the operations under the lock have been built.
    """
    # pylint: disable-next=protected-access
    operation._add_control_inputs(inputs)


def is_compiled_by_xla():
    """Whether what is being traced is part of a `jit_compile=True` function.

    A step that talks to servers has to be refused there, and nothing public
    tells a step how it will be compiled.
    """
    return control_flow_util.GraphOrParentsInXlaContext(ops.get_default_graph())


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
