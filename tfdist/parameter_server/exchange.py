"""One training step's exchange with the servers.

While the user's step is traced, a `Step` records what it does to variables
with a primary on a server. When an optimizer has handed over its last update,
all of it goes out at once: per server one *section* is built that runs under
that server's lock, applies what was recorded in the order of the program,
counts, and reads the fresh values, which then flow back into the replicas.
"""

import contextlib
import dataclasses
import inspect

import tensorflow as tf

from tfdist import private_tensorflow
from tfdist.parameter_server import lifting
from tfdist.parameter_server import rows
from tfdist.parameter_server import transfer
from tfdist.parameter_server.variables import Role
from tfdist.parameter_server.variables import active


@dataclasses.dataclass
class _Update:
    """`strategy.extended.update(variable, fn, args, kwargs)`."""

    variable: object
    fn: object
    args: tuple
    kwargs: dict


@dataclasses.dataclass
class _Mutation:
    """`variable.<kind>(value)` in the user's code."""

    variable: object
    kind: str
    value: object


@dataclasses.dataclass
class _Pending:
    """What one graph has recorded and not yet exchanged."""

    records: list = dataclasses.field(default_factory=list)
    # Reduced gradients that the optimizer has not yet handed over.
    expected: int = 0
    optimizer: object = None
    # Number of operations when the optimizer's updates were exchanged.
    settled: int | None = None
    barriers: set = dataclasses.field(default_factory=set)


class Section:
    """The part of a step that runs on one server, under its lock."""

    def __init__(self, store, shard, graph):
        self._store = store
        self.shard = shard
        self._graph = graph
        # Operations on the worker whose results the section needs.
        self.late_inputs = []

    @contextlib.contextmanager
    def entered(self):
        """Makes handles those of the primaries, and ops run on the server."""
        previous, active.section = active.section, self
        try:
            with tf.device(self._store.devices[self.shard]):
                yield
        finally:
            active.section = previous

    def handle(self, variable):
        """The primary's handle of a `ReplicaVariable` on this server."""
        self._store.claim(variable, self.shard)
        with self._graph.as_default():
            return self._store.handle(variable, self.shard)

    def read_local(self, variable):
        """The value of a worker-local variable, sent before the lock."""
        if tf.compat.v1.get_default_graph() is not self._graph:
            return _read(variable)
        with tf.control_dependencies(None):
            with tf.device(self._store.worker_device):
                value = _read(variable)
            value = tf.identity(value)
        self.late_inputs.append(value.op)
        return value


def _read(variable):
    return tf.raw_ops.ReadVariableOp(
        resource=variable.local_handle, dtype=variable.dtype
    )


def optimizer_of(fn):
    """The Keras optimizer whose update rule `fn` is, or None."""
    try:
        owner = inspect.getclosurevars(fn).nonlocals.get("self")
    except TypeError:
        return None
    iterations = getattr(owner, "iterations", None)
    return owner if iterations is not None else None


def _step_counter(optimizer):
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


class Step:
    """Records one call of `strategy.run` while it is traced.

    Args:
      store: The `ParameterStore`.
    """

    def __init__(self, store):
        self._store = store
        self._root = tf.compat.v1.get_default_graph()
        self._pending = {}
        # Ordinals of step counters whose local value is this step's ticket.
        self._ticketed = set()

    def _here(self):
        """The pending records of the current graph."""
        graph = tf.compat.v1.get_default_graph()
        if graph not in self._pending:
            settled = 0 if self._ticketed else None
            self._pending[graph] = _Pending(settled=settled)
            # What an enclosing graph did after its optimizer's step comes
            # before what is recorded in this one.
            for outer, pending in list(self._pending.items()):
                if pending.settled is not None and pending.records:
                    self._flush(outer)
        return self._pending[graph]

    def reduced(self, tensors):
        """Takes note of gradients that an optimizer is about to apply.

        Args:
          tensors: List of tensors, as handed to the optimizer.
        """
        pending = self._here()
        pending.expected = len(tensors)
        for tensor in tensors:
            if isinstance(tensor, tf.IndexedSlices):
                pending.barriers.update((tensor.values.op, tensor.indices.op))
            else:
                pending.barriers.add(tensor.op)

    def update(self, variable, fn, args, kwargs):
        """Records `fn(variable, *args, **kwargs)` for the server."""
        pending = self._here()
        pending.records.append(_Update(variable, fn, args, kwargs))
        if pending.expected and args:
            pending.optimizer = pending.optimizer or optimizer_of(fn)
            pending.expected -= 1
            if not pending.expected:
                self._flush(tf.compat.v1.get_default_graph())
        elif optimizer_of(fn) is None:
            graph = tf.compat.v1.get_default_graph()
            if graph is not self._root:
                # Averaged weights that Keras puts in place every so many
                # steps: nothing tells which of these updates is the last.
                self._flush(graph)

    def before_mutation(self, variable):
        """Called before a variable is assigned in the user's code."""
        del variable
        self._here()

    def record_mutation(self, variable, kind, value):
        """Records `variable.<kind>(value)` for the server."""
        graph = tf.compat.v1.get_default_graph()
        pending = self._here()
        if variable.role is Role.ITERATIONS:
            # The end of an optimizer's step.
            if pending.settled is not None and pending.records:
                self._flush(graph)
            if variable.ordinal in self._ticketed:
                return  # The server has counted it.
            # A step of an optimizer that has others do its updates.
            getattr(variable.pulled, kind)(value)
        if variable.role is Role.STATE:
            variable.assigned_by_workers = True
        if not isinstance(value, tf.IndexedSlices):
            value = tf.convert_to_tensor(value, dtype=variable.dtype)
        pending.records.append(_Mutation(variable, kind, value))

    def finish(self):
        """Exchanges what is left when the user's step function has ended."""
        for graph, pending in self._pending.items():
            if pending.records and graph is not self._root:
                names = sorted({r.variable.name for r in pending.records})
                raise RuntimeError(
                    "Variables with a primary on a server are assigned inside "
                    f"a tf.cond or tf.while_loop of the step: {names}. Only "
                    "an optimizer may do so. Assign them outside, for "
                    "example with tf.where."
                )
        if self._root in self._pending and self._pending[self._root].records:
            self._flush(self._root)

    def _flush(self, graph):
        pending = self._pending[graph]
        records, pending.records = pending.records, []
        optimizer, pending.optimizer = pending.optimizer, None
        pending.expected = 0
        with tf.init_scope():
            self._store.commit()
        with graph.as_default(), tf.name_scope("exchange"):
            exchange = _Exchange(
                self._store, graph, pending, records, optimizer, self._ticketed
            )
            exchange.build()
        if exchange.iterations is not None:
            self._ticketed.add(exchange.iterations.ordinal)
            for other, known in self._pending.items():
                known.settled = len(other.get_operations())


class _Exchange:
    """Builds the operations of one exchange."""

    def __init__(self, store, graph, pending, records, optimizer, ticketed):
        self._store = store
        self._graph = graph
        self._records = records
        self.iterations = None
        if optimizer is not None:
            self.iterations = _step_counter(optimizer)
        self._frozen = ticketed
        self._lifter = lifting.Lifter(
            graph, store, pending.barriers, pending.settled
        )
        self._ahead = None
        self._bytes_sent = []
        self._bytes_received = []

    def build(self):
        """Builds it all; the effects are tied to the graph's execution."""
        store = self._store
        shards = set()
        for record in self._records:
            shards.update(self._shards_of(record))
        if self.iterations is not None:
            shards.add(0)
        started = self._started()
        if self.iterations is not None:
            # Steps that this worker took without an exchange (gradient
            # accumulation) before the one that ends here.
            local = _read(self.iterations)
            self._ahead = local - _read(self.iterations.pulled)
        # All servers are asked before any answer is waited for.
        results = [self._build_shard(k, started) for k in sorted(shards)]
        done = [op for result in results for op in self._bring_home(result)]
        if self.iterations is None:
            return
        with tf.control_dependencies(done):
            store.journal.write(
                started=started,
                staleness=[r.staleness for r in results],
                wait=[r.wait for r in results],
                version=results[0].version,
                bytes_sent=self._bytes_sent,
                bytes_received=self._bytes_received,
            )

    def _shards_of(self, record):
        variable = record.variable
        if variable.role is Role.STATE and variable.shape.num_elements() == 1:
            return range(self._store.num_shards)
        return (variable.shard,)

    def _started(self):
        """Time at which the gradients are ready to be sent."""
        ready = []
        for record in self._records:
            if isinstance(record, _Update):
                leaves = tf.nest.flatten(record.args)
                ready += [x.op for x in leaves if isinstance(x, tf.Tensor)]
        with tf.device(self._store.worker_device):
            with tf.control_dependencies(ready):
                return tf.timestamp()

    def _live(self, record, shard):
        """Variables that the value of `record` reads afresh on `shard`."""
        live = self._store.live_on(shard) - self._frozen
        if isinstance(record, _Mutation):
            live = live | {record.variable.ordinal}
        return live

    def _build_shard(self, shard, started):
        store = self._store
        records = [r for r in self._records if shard in self._shards_of(r)]
        outbox = _Outbox()
        replays = [self._prepare(r, shard, outbox) for r in records]
        pulled_version = outbox.add(store.pulled_version(shard))
        tables = self._tables(records, outbox)
        if self.iterations is not None:
            ahead = outbox.add(self._ahead)
        sent = transfer.move(
            outbox.tensors,
            source=store.worker_device,
            target=store.devices[shard],
        )
        self._bytes_sent += [transfer.num_bytes(t) for t in outbox.tensors]
        section = Section(store, shard, self._graph)
        with tf.device(store.devices[shard]):
            with tf.control_dependencies([t.op for t in sent] + [started.op]):
                arrived = tf.timestamp()
        with tf.control_dependencies([arrived.op]):
            lock = store.lock(shard)
        before = len(self._graph.get_operations())
        with section.entered(), tf.control_dependencies([lock.op]):
            locked = tf.timestamp()
            version = store.counter("version", shard)
            staleness = version.read() - sent[pulled_version]
            if self.iterations is not None:
                _add(section.handle(self.iterations), sent[ahead])
            for replay in replays:
                replay(sent, section)
            if self.iterations is not None:
                one = tf.ones([], self.iterations.dtype)
                _add(section.handle(self.iterations), one)
                version.add(1)
        if section.late_inputs:
            private_tensorflow.add_control_inputs(lock.op, section.late_inputs)
        with section.entered(), tf.control_dependencies([lock.op]):
            tables = self._mark_rows(tables, section, before, version)
        tables = [(table, sent[position]) for table, position in tables]
        return self._settle(
            section,
            lock,
            before,
            version,
            tables,
            [staleness, locked - arrived],
        )

    def _tables(self, records, outbox):
        """Tables of which only rows may change; when they were pulled."""
        return {
            record.variable.ordinal: (
                record.variable,
                outbox.add(self._store.rows_pulled(record.variable)),
            )
            for record in records
            if isinstance(record, _Update)
            and rows.is_candidate(record.variable, record.args)
        }

    def _mark_rows(self, tables, section, before, version):
        """Of `tables`, keeps those of which only rows do change."""
        operations = self._graph.get_operations()[before:]
        kept = []
        for table, position in tables.values():
            changed = rows.changed_by(operations, section.handle(table))
            if changed is not None:
                stamps = self._store.row_stamps(table)
                rows.mark(stamps, changed, version.read())
                kept.append((table, position))
        return kept

    def _settle(self, section, lock, before, version, tables, figures):
        """Reads fresh values, frees the lock, sends them home."""
        store, shard = self._store, section.shard
        effects = [
            op
            for op in self._graph.get_operations()[before:]
            if op.op_def.is_stateful and op.type != "VarHandleOp"
        ]
        in_rows = {table.ordinal for table, _ in tables}
        fresh = [
            v for v in self._pulled_from(shard) if v.ordinal not in in_rows
        ]
        with section.entered(), tf.control_dependencies(effects):
            applied = tf.no_op()
        with section.entered(), tf.control_dependencies([applied]):
            values = [
                tf.raw_ops.ReadVariableOp(
                    resource=section.handle(v), dtype=v.dtype
                )
                for v in fresh
            ]
            for table, since in tables:
                values += rows.changed_since(
                    store.row_stamps(table), section.handle(table), table, since
                )
            values.append(version.read())
        with tf.control_dependencies([value.op for value in values]):
            store.unlock(shard, lock)
        home = transfer.move(
            values + figures,
            source=store.devices[shard],
            target=store.worker_device,
        )
        self._bytes_received += [transfer.num_bytes(v) for v in values]
        *values, version_value, staleness, wait = home
        rest = values[len(fresh) :]
        return _Result(
            shard,
            list(zip(fresh, values[: len(fresh)], strict=True)),
            [
                (table, rest[2 * k], rest[2 * k + 1])
                for k, (table, _) in enumerate(tables)
            ],
            staleness,
            wait,
            version_value,
        )

    def _bring_home(self, result):
        """Puts the fresh values into the replicas; returns the operations."""
        done = []
        with tf.device(self._store.worker_device):
            for variable, value in result.fresh:
                value.set_shape(variable.shape)
                if variable.role is Role.ITERATIONS:
                    # Keras adds the one itself when its step ends.
                    done.append(_assign(variable.pulled.handle, value))
                    value = value - 1
                done.append(_assign(variable.local_handle, value))
            for table, numbers, values in result.rows:
                done.append(rows.put(table, numbers, values))
                done.append(self._store.set_rows_pulled(table, result.version))
            # Without an optimizer's step this worker has not pulled all, but
            # an exchange in a branch is put after this one by what they both
            # assign.
            version = (
                result.version
                if self.iterations is not None
                else self._store.pulled_version(result.shard)
            )
            with tf.control_dependencies([result.version.op]):
                done.append(
                    self._store.set_pulled_version(result.shard, version)
                )
        return done

    def _pulled_from(self, shard):
        """Variables whose replicas this exchange refreshes from `shard`."""
        fresh = {}
        for record in self._records:
            variable = record.variable
            if variable.shard == shard and variable.role in (
                Role.PARAMETER,
                Role.STATE,
            ):
                fresh[variable.ordinal] = variable
        if self.iterations is not None and shard == 0:
            fresh[self.iterations.ordinal] = self.iterations
        return [fresh[ordinal] for ordinal in sorted(fresh)]

    def _prepare(self, record, shard, outbox):
        """Puts into `outbox` what `record` needs; returns how to replay it."""
        live = self._live(record, shard)
        resolve = _Resolver(self._lifter, live, outbox)
        if isinstance(record, _Mutation):
            take = resolve(record.value)

            def replay(sent, section):
                value = take(sent, section)
                kwargs = {}
                if not record.kind.startswith("scatter"):
                    kwargs["read_value"] = False
                getattr(record.variable, record.kind)(value, **kwargs)

            return replay
        args = [resolve(a) for a in tf.nest.flatten(record.args)]
        kwargs = [resolve(a) for a in tf.nest.flatten(record.kwargs)]

        def replay_update(sent, section):
            record.fn(
                record.variable,
                *tf.nest.pack_sequence_as(
                    record.args, [take(sent, section) for take in args]
                ),
                **tf.nest.pack_sequence_as(
                    record.kwargs, [take(sent, section) for take in kwargs]
                ),
            )

        return replay_update


class _Outbox:
    """Tensors to be sent to one server, each once."""

    def __init__(self):
        self.tensors = []
        self._positions = {}

    def add(self, tensor):
        """Returns the position of `tensor` among those sent."""
        if tensor.name not in self._positions:
            self._positions[tensor.name] = len(self.tensors)
            self.tensors.append(tensor)
        return self._positions[tensor.name]


class _Resolver:
    """Turns an argument of the worker into its counterpart on a server."""

    def __init__(self, lifter, live, outbox):
        self._lifter = lifter
        self._live = live
        self._outbox = outbox

    def __call__(self, argument):
        """Returns a function of (sent tensors, section) -> counterpart."""
        if isinstance(argument, tf.IndexedSlices):
            values = self(argument.values)
            indices = self(argument.indices)
            shape = argument.dense_shape
            dense = self(shape) if shape is not None else None
            return lambda sent, section: tf.IndexedSlices(
                values(sent, section),
                indices(sent, section),
                dense(sent, section) if dense is not None else None,
            )
        if not isinstance(argument, tf.Tensor):
            # A variable means its primary there; a Python value is itself.
            return lambda sent, section: argument
        plan = self._lifter.plan(argument, self._live)
        if plan is None:
            position = self._outbox.add(argument)
            return lambda sent, section: sent[position]
        positions = {t.name: self._outbox.add(t) for t in plan.inputs}
        return lambda sent, section: self._lifter.build(
            plan,
            {name: sent[position] for name, position in positions.items()},
            section,
        )


@dataclasses.dataclass
class _Result:
    """What one server answers.

    Attributes:
      shard: Number of the server.
      fresh: List of (variable, value).
      rows: List of (variable, numbers of rows, their values).
      staleness: Scalar int64 tensor.
      wait: Seconds between arrival and turn, scalar float64 tensor.
      version: Updates applied, scalar int64 tensor.
    """

    shard: int
    fresh: list
    rows: list
    staleness: tf.Tensor
    wait: tf.Tensor
    version: tf.Tensor


def _assign(handle, value):
    return tf.raw_ops.AssignVariableOp(resource=handle, value=value)


def _add(handle, value):
    return tf.raw_ops.AssignAddVariableOp(resource=handle, value=value)
