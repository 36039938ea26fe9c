"""Recording of one training step's changes to variables on servers.

While the user's step is traced, a `Step` records what it does to variables
with a primary on a server. When an optimizer has handed over its last update,
and has assigned its averages of weights, all of it goes out in one exchange.
"""

import keras
import tensorflow as tf

from tfdist import compiled_parts
from tfdist import fused_kernels
from tfdist import one_replica
from tfdist import private_keras
from tfdist import private_keras_variables
from tfdist.program_error import ProgramError
from tfdist.runtime.exchange import pending_records
from tfdist.runtime.exchange import records
from tfdist.runtime.exchange import subgraph_replay
from tfdist.runtime.exchange import table_gradients
from tfdist.runtime.variables.variables import Role


def check_elementwise(variable, optimizer):
    """Refuses update rules for which pieces are not like the whole."""
    if table_gradients.needs_whole(optimizer):
        raise ValueError(
            f"{type(optimizer).__name__} looks at whole variables, and "
            f"{variable.name!r} is split over servers by "
            "variable_partitioner. Use an optimizer that updates each element "
            "for itself, or no variable_partitioner."
        )
    if optimizer is not None:
        table_gradients.warn_of_own_rule(optimizer, variable, "pieces")


def step_counter(optimizer):
    """The variable in which a Keras optimizer counts its steps.

    Not `optimizer.iterations`, which is a quotient where gradients are
    accumulated.
    """
    for variable in optimizer.variables:
        value = getattr(variable, "value", variable)
        if getattr(value, "role", None) is Role.ITERATIONS:
            return value
    raise ValueError(
        f"Optimizer {optimizer!r} was created outside strategy.scope(); "
        "create it, or compile the model, inside."
    )


def _trained_by(optimizer, counter):
    """Variables on servers that an optimizer may update in this step or later.

    Args:
      optimizer: The Keras optimizer, or None.
      counter: Its step counter; None where it takes no step.
    """
    if counter is None:
        return []
    values = [
        # A `tf.Variable` of the user's own has a method of that name.
        variable.value if isinstance(variable, keras.Variable) else variable
        for variable in private_keras.trained_by(optimizer)
    ]
    return [
        value
        for value in values
        if getattr(value, "role", None) is not None and value.role.is_on_server
    ]


def _accumulates(optimizer):
    if optimizer is None:
        return False
    _, batches = private_keras.counter_of(optimizer)
    return batches > 1


class Step:
    """Records one call of `strategy.run` while it is traced.

    Args:
      runtime: The `Runtime`.
      ticketed: Ordinals of the step counters of optimizers whose updates the
        same step has exchanged before.

    Attributes:
      is_local: Whether optimizers act on the replicas, as in a `LocalStep`.
      is_eager: Whether it runs eagerly, as an `EagerStep`.
      is_training: Whether an optimizer counts a step in it, be it in a branch,
        or one that only accumulates gradients; or whether it assigns a
        parameter.
      may_be_repeated: Whether it is taken again if its gradient is dropped.
      kept: By id, the worker's own variables that it assigns, each a tuple of
        the variable and the tensor of its value before.
    """

    is_local = False
    is_eager = False

    def __init__(self, runtime, ticketed=()):
        self._runtime = runtime
        self._make_exchange = runtime.coordination.exchange
        self._root = tf.compat.v1.get_default_graph()
        # A tf.function may call `strategy.run` several times: earlier
        # operations may be of a former step.
        self._first = len(self._root.get_operations())
        self._pending = {}
        # Of models that all other workers have freed.
        self._over = []
        # Ordinals of step counters whose local value is this step's ticket.
        self._ticketed = set(ticketed)
        # Steps of optimizers that have been exchanged.
        self.num_updates = len(self._ticketed)
        # Whether one of them has accumulated gradients of earlier steps, or an
        # eager step does nothing else.
        self.accumulates = False
        self.is_training = False
        self.may_be_repeated = runtime.coordination.retries
        self.kept = {}
        if not ticketed:
            runtime.nonfinite.begin_step()

    def _here(self):
        """The pending records of the current graph."""
        graph = tf.compat.v1.get_default_graph()
        if graph not in self._pending:
            self._begin(graph)
            # What an enclosing graph did after its optimizer's step comes
            # before what is recorded in this one, and so does a parameter
            # that the step assigned before an optimizer in a branch.
            for outer, pending in list(self._pending.items()):
                if pending.is_after_updates or (
                    outer is self._root
                    and any(map(records.is_assigned, pending.records))
                ):
                    self._flush(outer)
        return self._pending[graph]

    def _begin(self, graph):
        self._pending[graph] = pending_records.Pending(
            settled=0 if self._ticketed else None,
            first=self._first if graph is self._root else 0,
        )

    def _settle(self, graph):
        """Takes note that an optimizer's updates were exchanged in a graph."""
        while graph is not self._root:
            # It reads older values before them, and the newest ones after.
            graph = graph.outer_graph
            if graph not in self._pending:
                self._begin(graph)
        for known, pending in self._pending.items():
            pending.settled = len(known.get_operations())

    def reduced(self, tensors):
        """Takes note of gradients that an optimizer is about to apply.

        Args:
          tensors: List of tensors, as handed to the optimizer.
        """
        pending = self._here()
        if pending.averages is not None:
            self._flush(tf.compat.v1.get_default_graph())
        self._flush_assigned(pending)
        pending.expected = len(tensors)
        for tensor in tensors:
            if isinstance(tensor, tf.IndexedSlices):
                pending.barriers.update((tensor.values.op, tensor.indices.op))
            else:
                pending.barriers.add(tensor.op)

    def update(self, variable, fn, args, kwargs):
        """Records `fn(variable, *args, **kwargs)` for the server."""
        pending = self._here()
        if variable.role is Role.TABLE:
            args = table_gradients.checked(variable, fn, args)
            if args is None:
                return
        elif variable.pieces:
            check_elementwise(variable, fused_kernels.optimizer_of(fn))
        is_gradient = bool(pending.expected and args)
        pending.records.append(
            records.Update(variable, fn, args, kwargs, is_gradient)
        )
        if is_gradient:
            pending.optimizer = pending.optimizer or fused_kernels.optimizer_of(
                fn
            )
            pending.expected -= 1
            if not pending.expected:
                self._end_updates(tf.compat.v1.get_default_graph())
        elif fused_kernels.optimizer_of(fn) is None:
            graph = tf.compat.v1.get_default_graph()
            if graph is not self._root:
                # Averaged weights that Keras puts in place every so many
                # steps: nothing tells which of these updates is the last.
                self._flush(graph)

    def keep(self, variable):
        """Called before a variable of the worker's own is assigned."""
        if id(variable) in self.kept:
            return
        scope = tf.init_scope() if self.is_eager else self._root.as_default()
        with scope:
            self.kept[id(variable)] = variable, variable.read_value()

    def put_back(self):
        """Builds: what the step has assigned of the worker's own is as before.

        Metrics then count a batch once, and a layer's state goes on by one.
        """
        for variable, value in self.kept.values():
            variable.assign_replica(value)

    def before_mutation(self, variable):
        """Called before a variable is assigned in the user's code."""
        self._here()

    def record_mutation(self, variable, kind, value, before):
        """Records `variable.<kind>(value)` for the server.

        Args:
          variable: A `ReplicaVariable`.
          kind: Name of the method.
          value: Its argument.
          before: The value of the replica before.
        """
        graph = tf.compat.v1.get_default_graph()
        pending = self._here()
        variable.num_assignments += 1
        if variable.role is Role.ITERATIONS:
            self.is_training = True
            # The end of an optimizer's step.
            if pending.is_after_updates:
                self._flush(graph)
            if variable.ordinal in self._ticketed:
                return  # The server has counted it.
            if self.is_eager and _accumulates(
                private_keras_variables.optimizer_under_way()
            ):
                self.accumulates = True
                return  # It counts with the next update.
            # A step of an optimizer that has others do its updates.
            getattr(variable.pulled, kind)(value)
        if variable.pieces and variable.role is Role.PARAMETER:
            raise ProgramError(
                f"{variable.name!r} is split over servers by "
                "variable_partitioner and is assigned in a step (by a "
                "constraint?). Only an optimizer may do so; leave this "
                "variable whole."
            )
        if variable.role is Role.PARAMETER:
            self._check_repeated(variable)
        if variable.role in (Role.STATE, Role.PARAMETER):
            variable.assigned_by_workers = True
        if not isinstance(value, tf.IndexedSlices):
            value = tf.convert_to_tensor(value, dtype=variable.dtype)
        record = records.Mutation(variable, kind, value, before)
        if variable.role is Role.PARAMETER and pending.settled is None:
            record = self._before_step(pending, record)
            pending.assigned[variable.ordinal] = len(graph.get_operations())
        pending.records.append(record)
        if pending.averages is not None:
            pending.averages.discard(variable.ordinal)
            if not pending.averages:
                self._flush(graph)
        elif variable.role is Role.ITERATIONS and graph is not self._root:
            # Of a wrapper around others, in a branch: nothing follows.
            self._flush(graph)

    def _before_step(self, pending, record):
        """The record of a parameter that is assigned before a step.

        Set to a function of an old value, it would lose what others have done
        since. So the server computes it of the newest one; where it cannot,
        for an optimizer (Muon's weight decay), and where a correction compares
        weights now with those of the gradient, which an exchange in between
        would replace, the change is sent.

        Args:
          pending: The `Pending`.
          record: The `Mutation`.
        """
        variable = record.variable
        if record.kind == "assign" and not (
            self._runtime.coordination.averages
            or private_keras_variables.optimizer_under_way() is not None
            or (
                self._runtime.corrector.needs_copies
                and one_replica.is_trainable(variable)
            )
        ):
            record.plan = subgraph_replay.plan_from_own(
                record.value,
                variable,
                pending.assigned.get(variable.ordinal, pending.first),
            )
        if record.plan is not None:
            return record
        # A step that puts back what it has changed for a while: all it does
        # counts as changes, with a sum of zero.
        pending.records = [
            records.as_change(one)
            if one.variable is variable and getattr(one, "plan", None)
            else one
            for one in pending.records
        ]
        if record.kind == "assign" and subgraph_replay.may_depend_on(
            record.value, variable
        ):
            return records.as_change(record)
        return record

    def _check_repeated(self, variable):
        """Refuses what each worker does to weights that others do it to."""
        runtime = self._runtime
        if runtime.coordination.is_synchronous or runtime.evaluations.is_alone:
            return
        if one_replica.is_overwritten_with_gradient(variable):
            raise ValueError(
                f"Variable {variable.name!r} has overwrite_with_gradient=True, "
                "as float8 layers have: each step replaces it. What several "
                "asynchronous workers replace would add up. Use "
                "AllReduceStrategy, synchronization=Sync(), or one worker."
            )
        kind = keras.layers.SpectralNormalization
        layers = private_keras_variables.layers_under_way(kind)
        if layers:
            raise ValueError(
                f"Layer {layers[0].name!r} is a SpectralNormalization: each "
                "forward pass divides the kernel by its norm. Several "
                "asynchronous workers would divide the same kernel several "
                "times. Use AllReduceStrategy, synchronization=Sync(), local "
                "steps (such as ParameterAveragingStrategy), or one worker."
            )

    def finish(self):
        """Exchanges what is left when the user's step function has ended."""
        for graph, pending in self._pending.items():
            if pending.records and graph is not self._root:
                names = sorted({r.variable.name for r in pending.records})
                raise ProgramError(
                    "Variables with a primary on a server are assigned inside "
                    "a tf.cond or tf.while_loop of the step, or a tf.function "
                    f"that it calls: {names}. Only an optimizer may do so. "
                    "Assign them outside, for example with tf.where."
                )
        if self._root in self._pending and self._pending[self._root].records:
            self._flush(self._root)
        # Also where a loss scale has left out the push.
        self._runtime.batch_progress.build_advance()
        self._runtime.unused_models.refuse(self._over)

    def _flush_assigned(self, pending):
        """Exchanges parameters that were assigned before an optimizer's step.

        By themselves, so that after another optimizer's step they are functions
        of the newest values; and where a log has servers make updates later
        than what else comes with a gradient, they come before the update.
        """
        is_first = pending.settled is None
        if is_first and not self._runtime.coordination.has_log:
            return
        recorded = pending.records
        ends = [
            number
            for number, record in enumerate(recorded, 1)
            if records.is_assigned(record)
            and not (is_first and records.is_projected_teacher(record))
        ]
        if ends:
            # What follows may be the optimizer's, such as its weight decay
            # (Muon's is an assignment, and goes here).
            pending.records = recorded[: ends[-1]]
            self._flush(tf.compat.v1.get_default_graph())
            pending.records = recorded[ends[-1] :]

    def _end_updates(self, graph):
        """Exchanges an optimizer's updates, or first awaits its averages.

        In an exchange of their own, averages would miss the update if another
        worker's comes in between. A server computes them of what it has; an
        eager step sends the change of what this worker has pulled.
        """
        pending = self._pending[graph]
        averages = set()
        # A log counts a step before it does what else comes with its gradient.
        if not (self.is_eager or self._runtime.coordination.has_log):
            averages = pending_records.averages_of(pending.optimizer)
        if averages:
            pending.averages = averages
            pending.settled = len(graph.get_operations())
        else:
            self._flush(graph)

    def _flush(self, graph):
        pending = self._pending[graph]
        recorded, pending.records = pending.records, []
        optimizer, pending.optimizer = pending.optimizer, None
        averages, pending.averages = pending.averages, None
        pending.expected = 0
        with tf.init_scope():
            self._runtime.commit()
        over = [r.variable for r in recorded if r.variable.is_over]
        if over:
            # Refused when all variables of the step have been made.
            self._over += over
            return
        counter = step_counter(optimizer) if optimizer else None
        # Before an optimizer's updates stand forward passes too: what they
        # read is what the worker has trained on.
        is_before = optimizer is not None and averages is None
        settled = None if is_before else pending.settled
        self.is_training |= any(
            record.variable.role is Role.PARAMETER for record in recorded
        )
        self.exchange(graph, recorded, optimizer, pending.barriers, settled)
        if counter is not None:
            self._ticketed.add(counter.ordinal)
            self.num_updates += 1
            if _accumulates(optimizer):
                self.accumulates = True
            self._runtime.batch_progress.check(self)
            self._settle(graph)

    def exchange(self, graph, recorded, optimizer, barriers, settled):
        """Builds the exchange of what was recorded.

        Args:
          graph: The graph to build in.
          recorded: List of `Update` and `Mutation`.
          optimizer: Whose step it is, or None.
          barriers: See `Lifter`, as the next one.
          settled: The same.
        """
        counter = step_counter(optimizer) if optimizer else None
        with (
            graph.as_default(),
            compiled_parts.outside(),
            tf.name_scope("exchange"),
        ):
            settle = None
            if optimizer:
                settle = self._runtime.corrector.before_push(
                    recorded, optimizer, counter
                )
            finite = self._runtime.nonfinite.check(
                recorded,
                is_step=counter is not None,
                follows=bool(self._ticketed),
            )
            if settle:
                settle(finite)
            lifter = subgraph_replay.Lifter(
                graph, self._runtime.store, barriers, settled
            )
            settings = []
            if optimizer:
                sent = records.beside_gradients(recorded)
                # A schedule or a function may read variables. A rule that
                # takes the rate by itself, such as weight decay, reads them
                # on the server.
                sent += lifter.own_read_for(sent)
                settings = records.local_scalars_of(optimizer, sent)
            exchange = self._make_exchange(
                runtime=self._runtime,
                graph=graph,
                records=recorded,
                counter=counter,
                rate=lambda: keras.ops.convert_to_tensor(
                    optimizer.learning_rate
                ),
                settings=settings,
                frozen=self._ticketed,
                lifter=lifter,
                trained=_trained_by(optimizer, counter),
                finite=finite,
            )
            exchange.build()
        self._runtime.store.note_exchange(graph)
