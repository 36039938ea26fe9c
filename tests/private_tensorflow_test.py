"""Canaries: the private names of TensorFlow are there, and mean what they did.

One for each name of `tfdist.private_tensorflow`. Where one fails, TensorFlow
has changed: what tfdist does with the name is in its docstring.
"""

import contextlib
import gc
import inspect
import re
import threading

import pytest
import tensorflow as tf
from tensorflow.python.client import pywrap_tf_session
from tensorflow.python.eager import context

from tests import private_names
from tests import waits
from tfdist import one_replica
from tfdist import private_tensorflow
from tfdist.pipeline import strategy as pipeline_strategy
from tfdist.runtime.keras_hooks import extended
from tfdist.runtime.variables import variables


def test_every_name_has_a_canary():
    assert not private_names.without_a_canary(private_tensorflow, __file__)


def test_variables_are_read_and_restored_by_what_ours_override():
    kind = private_tensorflow.ResourceVariable
    read = inspect.signature(kind._read_variable_op)
    assert "no_copy" in read.parameters
    assert hasattr(kind, "_restore_from_tensors")
    seen = []

    class Seen(kind):
        def _read_variable_op(self, no_copy=False):
            seen.append("read")
            return super()._read_variable_op(no_copy)

        def _restore_from_tensors(self, restored_tensors):
            seen.append("restored")
            return super()._restore_from_tensors(restored_tensors)

    variable = Seen(3.0)
    assert float(variable + 1.0) == 4.0
    assert "read" in seen
    assert variables.ReplicaVariable.__mro__[1] is kind


def test_slices_of_variables_are_assigned_by_what_ours_override():
    seen = []

    class Seen(private_tensorflow.ResourceVariable):
        def _strided_slice_assign(self, begin, end, strides, value, **others):
            seen.append(sorted(others))
            return super()._strided_slice_assign(
                begin, end, strides, value, **others
            )

    variable = Seen([3.0, 4.0])
    variable[1:].assign([5.0])
    assert variable.numpy().tolist() == [3.0, 5.0]
    masks = ["begin", "ellipsis", "end", "new_axis", "shrink_axis"]
    assert seen == [sorted(["name", *(f"{mask}_mask" for mask in masks)])]
    assert {f"{mask}_mask" for mask in masks} < set(
        inspect.signature(tf.raw_ops.TensorStridedSliceUpdate).parameters
    )


@pytest.mark.parametrize(
    "use",
    [
        lambda variable: variable * 1.0,
        lambda variable: tf.gather(variable, [0]),
        lambda variable: tf.gather_nd(variable, [[0]]),
    ],
)
@pytest.mark.parametrize("traced_before", [False, True])
def test_a_variable_is_asked_under_a_tape_whether_it_is_trained(
    use, traced_before
):
    seen = []

    class Seen(private_tensorflow.ResourceVariable):
        @property
        def trainable(self):
            seen.append(private_tensorflow.is_under_tape())
            return super().trainable

    variable = Seen([3.0])
    function = tf.function(lambda: use(variable))
    if traced_before:
        function()
        assert seen and not any(seen)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = function()
        return tape.gradient(loss, variable)

    step()
    assert any(seen)


class Steps:
    """Methods that are functions of TensorFlow's."""

    @tf.function
    def converted(self, x):
        if x > 0.0:
            return x
        return self.zero

    @tf.function(autograph=False)
    def plain(self, x):
        return tf.where(x > 0.0, x, self.zero)

    zero = 0.0


@pytest.mark.parametrize("name", ["converted", "plain"])
def test_a_method_is_a_part_of_a_function_in_which_autograph_is_off(name):
    steps = Steps()
    method = getattr(steps, name)
    found = private_tensorflow.inlined(method)
    bound = method.python_function.__wrapped__
    assert bound.__self__ is not steps
    assert private_tensorflow.object_of(bound) is steps
    outer = tf.function(
        tf.autograph.experimental.do_not_convert(lambda x: found(x))
    )
    graph = outer.get_concrete_function(tf.constant(1.0)).graph
    types = {operation.type for operation in graph.get_operations()}
    assert not types & {"PartitionedCall", "StatefulPartitionedCall"}
    assert [float(outer(x)) for x in (tf.constant(2.0), tf.constant(-1.0))] == [
        2.0,
        0.0,
    ]


@pytest.mark.parametrize("is_hidden", [False, True])
def test_eager_operations_read_variables_by_their_handles(is_hidden):
    class Newer(private_tensorflow.ResourceVariable):
        def _read_variable_op(self, no_copy=False):
            return tf.constant(4.0)

        @property
        def _handle(self):
            if is_hidden:
                return private_tensorflow.UnreadHandle(self.own)
            return self.own

        @_handle.setter
        def _handle(self, handle):
            self.own = handle

        @property
        def handle(self):
            return self.own

    variable = Newer(3.0)
    # Once TensorFlow asks in both cases, nothing needs to be hidden.
    assert float(tf.multiply(variable, 1.0)) == (4.0 if is_hidden else 3.0)
    assert variable._handle.device == variable.own.device


def test_checkpoints_restore_by_what_ours_override(tmp_path):
    seen = []

    class Seen(private_tensorflow.ResourceVariable):
        def _restore_from_tensors(self, restored_tensors):
            seen.append(float(*restored_tensors.values()))
            return super()._restore_from_tensors(restored_tensors)

    path = tf.train.Checkpoint(v=Seen(3.0)).write(str(tmp_path / "a"))
    tf.train.Checkpoint(v=Seen(4.0)).read(path)
    assert seen == [3.0]


@pytest.mark.parametrize(
    "kind",
    [
        one_replica.OneReplicaExtended,
        extended.ParameterServerExtended,
        pipeline_strategy._PipelineExtended,
    ],
)
def test_strategies_override_what_tensorflow_calls(kind):
    # The contract between a strategy, Keras and `tf.data`: a method that
    # TensorFlow no longer had would never be called.
    base = tf.compat.v1.distribute.StrategyExtended
    expected = {
        "_batch_reduce_to",
        "_call_for_each_replica",
        "_create_variable",
        "_distribute_datasets_from_function",
        "_experimental_distribute_dataset",
        "_experimental_distribute_values_from_function",
        "_gather_to_implementation",
        "_get_local_replica_id",
        "_get_replica_id_in_sync_group",
        "_global_batch_size",
        "_in_multi_worker_mode",
        "_local_results",
        "_make_dataset_iterator",
        "_num_replicas_in_sync",
        "_reduce_to",
        "_replica_ctx_all_reduce",
        "_replica_ctx_update",
        "_update",
        "_update_non_slot",
        "_use_merge_call",
        "_validate_colocate_with_variable",
    }
    source = inspect.getsource(inspect.getmodule(base))
    for name in expected & vars(kind).keys():
        assert re.search(rf"\b{name}\b", source), name


def test_a_process_that_is_alone_is_not_connected():
    assert not private_tensorflow.is_connected()
    assert context.context().get_server_def() is None


def test_auto_sharding_shares_out_elements():
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = (
        tf.data.experimental.AutoShardPolicy.DATA
    )
    numbers = tf.data.Dataset.range(5).with_options(options)
    shared = private_tensorflow.auto_shard_dataset(numbers, 2, 1)
    assert [int(x) for x in shared] == [1, 3]


def test_an_iterator_lives_as_long_as_its_handle():
    ended = threading.Event()

    def generate():
        try:
            yield from range(4)
        finally:
            ended.set()

    iterator = iter(
        tf.data.Dataset.from_generator(
            generate, output_signature=tf.TensorSpec([], tf.int64)
        )
    )
    next(iterator)
    handle = private_tensorflow.handle_of_iterator(iterator)
    assert handle.dtype == tf.resource
    del iterator
    gc.collect()
    assert not ended.is_set()
    del handle
    assert ended.wait(waits.SECONDS)


def test_operations_of_a_graph_can_be_changed():
    with tf.Graph().as_default():
        first, second = tf.constant(1), tf.constant(2)
        private_tensorflow.add_control_inputs(second.op, [first.op])
        assert list(second.op.control_inputs) == [first.op]
        private_tensorflow.set_device(second.op, "/device:CPU:1")
        assert second.op.device.endswith("CPU:1")


def test_a_function_that_xla_compiles_as_a_whole_is_known_and_taken_back():
    seen = []

    def outer():
        seen.append(private_tensorflow.is_compiled_by_xla())
        seen.append(private_tensorflow.take_back_from_xla())
        with private_tensorflow.outside_of_xla():
            seen.append(private_tensorflow.is_compiled_by_xla())
        return tf.constant(1.0)

    function = tf.function(outer, jit_compile=True, autograph=False)
    function.get_concrete_function()
    assert seen == [True, True, False]
    tf.function(outer, autograph=False).get_concrete_function()
    assert seen[3:] == [False, False, False]


def test_graphs_are_optimized_outside_of_a_scope_alone():
    def operations_of(scope):
        function = tf.function(lambda: tf.constant(2) + 3, autograph=False)
        concrete = function.get_concrete_function()
        with scope, context.collect_graphs(optimized=True) as graphs:
            assert int(concrete()) == 5
        return {node.op for graph in graphs for node in graph.node}

    assert "AddV2" not in operations_of(contextlib.nullcontext())
    assert "AddV2" in operations_of(private_tensorflow.unoptimized())
    assert "AddV2" not in operations_of(contextlib.nullcontext())


@pytest.mark.parametrize("outside", [True, False])
def test_what_is_read_outside_of_functions_is_no_part_of_one(outside):
    own, read, called = (tf.Variable(k) for k in range(3))
    reads = tf.function(lambda: called.read_value(), autograph=False)

    def step():
        with contextlib.ExitStack() as stack:
            stack.enter_context(tf.init_scope())
            if outside:
                stack.enter_context(private_tensorflow.outside_of_functions())
            assert (int(read), int(reads())) == (1, 2)
            traced = tf.function(lambda: read.read_value(), autograph=False)
            assert int(traced.get_concrete_function()()) == 1
        return own.read_value()

    function = tf.function(step, autograph=False).get_concrete_function()
    assert int(function()) == 0
    found = {id(variable) for variable in function.graph.variables}
    # Else TensorFlow no longer notes them, and nobody has to hide from it.
    noted = [own] if outside else [own, read, called]
    assert found == {id(variable) for variable in noted}


def test_a_function_with_a_gradient_of_its_own_is_known():
    seen = []

    def watched(x):
        seen.append(private_tensorflow.is_in_custom_gradient())
        return x, lambda upstream: upstream

    def step():
        watched(tf.constant(1.0))
        tf.custom_gradient(watched)(tf.constant(1.0))

    tf.function(step, autograph=False).get_concrete_function()
    step()
    assert seen == [False, True] * 2


def test_what_is_built_for_xla_is_marked():
    with tf.Graph().as_default():
        plain = tf.constant(1.0) + 1.0
        with tf.xla.experimental.jit_scope():
            marked = tf.constant(1.0) + 1.0
        assert not private_tensorflow.is_marked_for_xla(plain.op)
        assert private_tensorflow.is_marked_for_xla(marked.op)
        private_tensorflow.unmark_for_xla(marked.op)
        assert not private_tensorflow.is_marked_for_xla(marked.op)


def test_a_function_can_stay_one():
    function = tf.function(
        lambda: tf.constant(1.0),
        experimental_attributes=private_tensorflow.STAYS_A_FUNCTION,
    )
    definition = function.get_concrete_function().function_def
    assert definition.attr["_noinline"].b


@pytest.mark.parametrize("independent", [False, True])
def test_an_operation_can_leave_the_order_of_a_function(independent):
    @tf.function(autograph=False)
    def ordered():
        first = tf.raw_ops.Timestamp()
        second = tf.raw_ops.Timestamp()
        if independent:
            private_tensorflow.run_independently(second.op)
        return first, second

    operations = ordered.get_concrete_function().graph.get_operations()
    first, second = (o for o in operations if o.type == "Timestamp")
    assert (first in second.control_inputs) == (not independent)


# Name -> the method of TensorFlow's context that it calls, and the arguments
# that it gives by name.
CONNECTING = {
    private_tensorflow.enable_collectives: ("enable_collective_ops", ()),
    private_tensorflow.move_servers: (
        "update_server_def",
        ("keep_alive_secs",),
    ),
    private_tensorflow.leave_servers: ("update_server_def", ()),
    private_tensorflow.check_peer: (
        "check_collective_ops_peer_health",
        ("timeout_in_ms",),
    ),
    private_tensorflow.abort_collectives: ("abort_collective_ops", ()),
}


@pytest.mark.parametrize("name", CONNECTING)
def test_connections_can_be_made_and_ended(name):
    # What they do takes processes: tests/multi_process.
    method, arguments = CONNECTING[name]
    known = inspect.signature(getattr(context.context(), method)).parameters
    assert set(arguments) <= set(known)
    assert callable(context.get_server_def)


def test_a_session_can_be_let_go_of_without_a_call(monkeypatch):
    closed = []
    monkeypatch.setattr(pywrap_tf_session, "TF_CloseSession", closed.append)
    tf.compat.v1.Session(graph=tf.Graph()).close()
    assert len(closed) == 1
    session = tf.compat.v1.Session(graph=tf.Graph())
    private_tensorflow.abandon(session)
    session.close()
    session.__del__()
    assert len(closed) == 1


def test_a_hidden_variable_is_not_asked_for_by_anybody():
    asked = []

    def creator(make, **kwargs):
        asked.append(kwargs)
        return make(**kwargs)

    with tf.variable_creator_scope(creator):
        variable = private_tensorflow.hidden_variable(2.0)
    assert not asked
    assert float(variable) == 2.0
    private_tensorflow.empty_variable(variable.handle, variable.dtype)
    with pytest.raises(tf.errors.OpError):
        variable + tf.ones([2, 2])[0, 0] * tf.ones([3])


def test_a_variable_can_take_over_the_identity_of_another_one():
    one = private_tensorflow.hidden_variable(1.0)
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    with strategy.scope():
        other = tf.Variable(2.0)
    assert one._unique_id != other._unique_id
    assert not strategy.extended.variable_created_in_scope(one)
    private_tensorflow.take_over_identity(one, other)
    assert one._unique_id == other._unique_id
    assert strategy.extended.variable_created_in_scope(one)


def test_branches_and_loops_are_told_from_functions():
    """Of what is called within a graph, a function's body runs once."""
    found = {}

    @tf.function
    def inner(graph):
        found["function"] = private_tensorflow.is_in_branch(graph[0])
        return tf.constant(0.0)

    @tf.function
    def outer(x):
        graph = tf.compat.v1.get_default_graph()

        def note(name):
            found[name] = private_tensorflow.is_in_branch(graph)
            return tf.constant(0.0)

        note("itself")
        inner([graph])
        tf.cond(x > 0.0, lambda: note("branch"), lambda: 0.0)
        tf.while_loop(lambda x: x > 0.0, lambda x: x - 1.0 + note("loop"), [x])
        return x

    outer(tf.constant(1.0))
    assert found == {
        "itself": False,
        "function": False,
        "branch": True,
        "loop": True,
    }


def test_a_resource_has_a_name_in_each_graph_that_has_captured_it():
    captured, other = tf.Variable(0.0), tf.Variable(0.0)
    found = []

    @tf.function
    def inner():
        value = captured + 1.0
        graph = tf.compat.v1.get_default_graph()
        (name,) = {tensor.name for tensor in graph.inputs}
        found.append(name)
        for variable in (captured, other):
            found.append(private_tensorflow.name_in(graph, variable.handle))
        return value

    tf.function(lambda: inner() + captured)()
    assert found[0] == found[1] and found[2] is None


def test_numbers_of_tensors_are_in_the_order_of_their_making():
    tensors = [tf.constant(0) for _ in range(3)]
    numbers = [private_tensorflow.number_of(tensor) for tensor in tensors]
    assert numbers == sorted(set(numbers))
    with tf.Graph().as_default():
        assert private_tensorflow.number_of(tf.constant(0)) is None
