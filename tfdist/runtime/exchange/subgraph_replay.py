"""Recomputing an assigned value on the server, from the newest state.

Keras writes `moving_mean.assign(moving_mean * m + batch_mean * (1 - m))`. Sent
as a value, the update of one worker would erase those of the others. So the
operations between the *read* of the state and the assigned value are built
once more, on the server and under its lock, where the read gives the newest
value; all else (here `batch_mean`) is computed on the worker and sent.
"""

import dataclasses

import tensorflow as tf

from tfdist.runtime.variables.variables import Role

# Beyond this size a value is not a rule for a state but a piece of the model;
# it is then sent as computed. Operations on scalars do not count: a long
# learning-rate schedule has thousands.
MAX_LIFTED_OPS = 400
_READS = ("ReadVariableOp", "ResourceGather", "ResourceGatherNd")


@dataclasses.dataclass(frozen=True)
class Plan:
    """Operations to build again, in order, and the tensors to send for them.

    Attributes:
      operations: Tuple of `tf.Operation` on the worker.
      inputs: Tuple of tensors that the copies need from the worker.
      output: The tensor whose copy is wanted.
      is_of_counters: Whether they read step counters and nothing else.
    """

    operations: tuple
    inputs: tuple
    output: tf.Tensor
    is_of_counters: bool = False


class Lifter:
    """Finds what depends on the state in one graph.

    Args:
      graph: The `FuncGraph` of the training step.
      store: The `ParameterStore`.
      barriers: Set of operations whose outputs never count as dependent (the
        gradients).
      settled: Number of operations in the graph when the optimizer's updates
        were exchanged, or None. Reads of parameters after that are reads of
        newest values.
    """

    def __init__(self, graph, store, barriers, settled):
        self._handles = _captured(store.variables, graph)
        self._own = _captured(store.locals, graph)
        self._operations = graph.get_operations()
        self._order = {op.name: i for i, op in enumerate(self._operations)}
        self._settled = settled
        self._graph, self._store, self._barriers = graph, store, barriers
        self._reach = self._propagate(barriers)

    def _leaf(self, operation, tensor):
        """The variable that `operation` reads through `tensor`, or None."""
        variable = self._handles.get(tensor.name)
        if variable is None:
            return None
        if variable.role is Role.TABLE:
            return None  # Its rows are looked up, not read.
        if variable.role is Role.PARAMETER and (
            self._settled is None or self._order[operation.name] < self._settled
        ):
            return None
        return variable

    def _propagate(self, barriers):
        nothing = frozenset()
        reach = {}
        for operation in self._operations:
            if operation in barriers:
                continue
            found = nothing
            for tensor in operation.inputs:
                leaf = self._leaf(operation, tensor)
                if leaf is not None:
                    found = found | {leaf.ordinal}
                elif tensor.op.name in reach:
                    found = found | reach[tensor.op.name]
            if found:
                reach[operation.name] = found
        return reach

    def plan(self, value, live):
        """Plan to recompute `value`, or None if it is to be sent as it is.

        Args:
          value: A tensor of the graph.
          live: Set of the ordinals of the variables to be read on the server.
        """
        if value.op.name not in self._reach:
            return None
        seen, stack, inputs = {}, [value.op], {}
        size, roles = 0, set()
        if not self._reach[value.op.name] & live:
            return None
        while stack:
            operation = stack.pop()
            if operation.name in seen:
                continue
            seen[operation.name] = operation
            size += any(one.shape.rank != 0 for one in operation.outputs)
            if size > MAX_LIFTED_OPS:
                return None
            if operation.op_def.is_stateful and operation.type not in _READS:
                return None
            for tensor in operation.inputs:
                leaf = self._leaf(operation, tensor)
                if leaf is not None and leaf.ordinal in live:
                    roles.add(leaf.role)
                    continue
                reach = self._reach.get(tensor.op.name, frozenset())
                if reach & live:
                    stack.append(tensor.op)
                else:
                    inputs[tensor.name] = tensor
        if any(tensor.dtype == tf.resource for tensor in inputs.values()):
            return None
        ordered = sorted(seen.values(), key=lambda op: self._order[op.name])
        return Plan(
            tuple(ordered),
            tuple(inputs.values()),
            value,
            is_of_counters=roles == {Role.ITERATIONS},
        )

    def is_own(self, tensor):
        """Whether a tensor is the value of a variable of the worker's own."""
        reads = tensor.op.type == "ReadVariableOp"
        return reads and tensor.op.inputs[0].name in self._own

    def own_read_for(self, tensors):
        """The worker's own variables that tensors are made of, a list.

        Args:
          tensors: Those of the graph, and anything else.
        """
        found = {
            tensor.name
            for value in tensors
            if tf.is_symbolic_tensor(value)
            for operation in _ancestors(value)
            for tensor in operation.inputs
        }
        return [v for name, v in self._own.items() if name in found]

    def loses(self, value, variable, live):
        """Whether a value is made of a variable by what cannot be built again.

        Sent as it is, it would undo what others have done to the variable.

        Args:
          value: A tensor of the graph.
          variable: A `ReplicaVariable` that it is assigned to.
          live: As of `plan`.
        """
        reach = self._reach.get(value.op.name, frozenset())
        return variable.ordinal in reach and self.plan(value, live) is None

    def is_of_counter(self, value, live):
        """Whether a value is made of a live step counter.

        Args:
          value: An argument of an update, anything.
          live: As of `plan`.
        """
        if not isinstance(value, tf.Tensor):
            return False
        reach = self._reach.get(value.op.name, frozenset())
        return bool(reach & live & self._store.counters())

    def build(self, plan, sent, section):
        """Builds the copies in the current device and control scope.

        Args:
          plan: A `Plan`.
          sent: Maps the name of each input to its tensor on the server.
          section: The `ServerScope` whose handles are read.

        Returns:
          The copy of `plan.output`.
        """
        if not plan.is_of_counters:
            return self._built(plan, sent, section)
        # A learning rate is the same for all variables.
        return section.once(
            plan.output.name, lambda: self._built(plan, sent, section)
        )

    def _built(self, plan, sent, section):
        copies = dict(sent)
        for operation in plan.operations:
            inputs = []
            for tensor in operation.inputs:
                if tensor.name in copies:
                    inputs.append(copies[tensor.name])
                else:
                    variable = self._handles[tensor.name]
                    inputs.append(section.handle(variable))
            attributes = {
                key: value
                for key, value in operation.node_def.attr.items()
                # No server compiles for XLA what a worker does.
                if key != "_class" and not key.startswith("_Xla")
            }
            copy = tf.compat.v1.get_default_graph().create_op(
                operation.type,
                inputs,
                [tensor.dtype for tensor in operation.outputs],
                attrs=attributes,
                op_def=operation.op_def,
            )
            for old, new in zip(operation.outputs, copy.outputs, strict=True):
                if not section.is_on_piece:
                    new.set_shape(old.shape)
                copies[old.name] = new
        return copies[plan.output.name]


def plan_from_own(value, variable, since):
    """Plan to recompute on the server what is made of a variable itself.

    A projection (`w.assign(w * mask)`) of the newest value may be repeated by
    each worker; the changes that they have computed of older values would add
    up.

    Args:
      value: A tensor of the graph that is being built.
      variable: A `ReplicaVariable`.
      since: Number of operations in the graph when the step has assigned it
        before, or has begun. What was read earlier is another value.

    Returns:
      A `Plan`, whose inputs are constants and values that this worker has; None
      if `value` is also made from the data (as gradients are), from an older
      value, in a graph around this one, or by operations that cannot be built
      again.
    """
    graph, own = value.graph, _handles_of(variable, value.graph)
    if graph is not tf.compat.v1.get_default_graph():
        return None
    known = {
        inner.name
        for outer, inner in graph.captures
        if inner.dtype == tf.resource or not tf.is_symbolic_tensor(outer)
    }
    found = set()
    for operation in _ancestors(value):
        found.add(operation.name)
        if len(found) > MAX_LIFTED_OPS or _is_data(operation, known):
            return None
    operations, inputs = {}, {}
    for place, operation in enumerate(graph.get_operations()):
        if operation.name not in found:
            continue
        reads = any(tensor.name in own for tensor in operation.inputs)
        if not reads and not any(
            tensor.op.name in operations for tensor in operation.inputs
        ):
            continue
        if reads and place < since:
            return None
        if operation.op_def.is_stateful and operation.type not in _READS:
            return None
        operations[operation.name] = operation
        for tensor in operation.inputs:
            if tensor.name not in own and tensor.op.name not in operations:
                inputs[tensor.name] = tensor
    is_sent = not any(t.dtype == tf.resource for t in inputs.values())
    if value.op.name not in operations or not is_sent:
        return None
    return Plan(tuple(operations.values()), tuple(inputs.values()), value)


def _is_data(operation, known):
    """Whether an operation brings what differs from batch to batch."""
    if operation.type == "Placeholder":
        return operation.outputs[0].name not in known
    return "Iterator" in operation.type


def may_depend_on(value, variable):
    """Whether `value` is made from what is read of `variable`, as far as seen.

    Args:
      value: A tensor of the graph that is being built.
      variable: A `ReplicaVariable`.
    """
    own = _handles_of(variable, value.graph)
    for number, operation in enumerate(_ancestors(value), 1):
        reads = any(tensor.name in own for tensor in operation.inputs)
        if reads or number > MAX_LIFTED_OPS:
            return True
    return False


def _captured(variables, graph):
    """Returns variables by the names of their handles in a graph, a dict.

    In the order of creation, the same in all graphs and on all workers.
    """
    names = {id(outer): inner.name for outer, inner in graph.captures}
    return {
        names[id(v.local_handle)]: v
        for v in variables
        if id(v.local_handle) in names
    }


def _handles_of(variable, graph):
    """Returns the names of a variable's handle in a graph, a set."""
    return {
        inner.name
        for outer, inner in graph.captures
        if outer is variable.local_handle
    }


def _ancestors(value):
    """Yields the operations that a tensor is made by, each once."""
    seen, stack = set(), [value.op]
    while stack:
        operation = stack.pop()
        if operation.name not in seen:
            seen.add(operation.name)
            yield operation
            stack += [tensor.op for tensor in operation.inputs]
