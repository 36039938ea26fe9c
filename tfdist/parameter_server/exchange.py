"""One training step's exchange with the servers.

Per server one *section* is built that runs under that server's lock, applies
what was recorded in the order of the program, counts, and reads the fresh
values, which then flow back into the replicas.
"""

import dataclasses

import tensorflow as tf

from tfdist import private_tensorflow
from tfdist.parameter_server import rows
from tfdist.parameter_server import section as section_lib
from tfdist.parameter_server import transfer
from tfdist.parameter_server.section import read_replica
from tfdist.parameter_server.variables import Role


@dataclasses.dataclass
class Update:
    """`strategy.extended.update(variable, fn, args, kwargs)`."""

    variable: object
    fn: object
    args: tuple
    kwargs: dict


@dataclasses.dataclass
class Mutation:
    """`variable.<kind>(value)` in the user's code."""

    variable: object
    kind: str
    value: object


class Exchange:
    """Builds the operations of one exchange.

    Args:
      store: The `ParameterStore`.
      graph: The graph to build in.
      records: List of `Update` and `Mutation`, in the order of the program.
      counter: The step counter of the optimizer whose step this is, or None.
      settings: Worker-local variables that are sent with the gradients.
      frozen: Ordinals of step counters that are not to be read afresh.
      lifter: The `Lifter` of the graph.
    """

    def __init__(
        self, store, graph, records, *, counter, settings, frozen, lifter
    ):
        self._store = store
        self._graph = graph
        self._records = records
        self.iterations = counter
        self._settings = settings
        self._frozen = frozen
        self._lifter = lifter
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
            local = read_replica(self.iterations)
            self._ahead = local - read_replica(self.iterations.pulled)
        # All servers are asked before any answer is waited for.
        results = [self._build_shard(k) for k in sorted(shards)]
        done = [op for result in results for op in self._bring_home(result)]
        done += self._join_pieces(results)
        if self.iterations is None:
            store.journal.note_other()
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
        if variable.pieces:
            return [piece.shard for piece in variable.pieces]
        return [variable.shard]

    def _started(self):
        """Time at which the gradients are ready to be sent."""
        ready = []
        for record in self._records:
            if isinstance(record, Update):
                leaves = tf.nest.flatten(record.args)
                ready += [x.op for x in leaves if isinstance(x, tf.Tensor)]
        with tf.device(self._store.worker_device):
            with tf.control_dependencies(ready):
                return tf.timestamp()

    def _live(self, record, shard):
        """Variables that the value of `record` reads afresh on `shard`."""
        live = self._store.live_on(shard) - self._frozen
        if isinstance(record, Mutation):
            live = live | {record.variable.ordinal}
            if record.variable.pieces:
                # An average of a split parameter: rows depend on rows alone.
                live = live | {
                    v.ordinal
                    for v in self._store.variables
                    if v.pieces == record.variable.pieces
                }
        return live

    def _build_shard(self, shard):
        store = self._store
        records = [r for r in self._records if shard in self._shards_of(r)]
        outbox = section_lib.Outbox()
        replays = [
            self._prepare(r, shard, piece, outbox)
            for r in records
            for piece in _pieces_on(shard, r.variable)
        ]
        pulled_version = outbox.add(store.pulled_version(shard))
        tables = self._tables(records, outbox)
        if self.iterations is not None:
            ahead = outbox.add(self._ahead)
        settings = [outbox.add(read_replica(v)) for v in self._settings]
        sent = transfer.move(
            outbox.tensors,
            source=store.worker_device,
            target=store.devices[shard],
        )
        self._bytes_sent += [transfer.num_bytes(t) for t in outbox.tensors]
        section = section_lib.Section(store, shard, self._graph)
        for variable, position in zip(self._settings, settings, strict=True):
            section.local_values[variable.ref()] = sent[position]
        with tf.control_dependencies([t.op for t in sent]):
            arrived = section.now()
        with tf.control_dependencies([arrived.op]):
            lock = store.lock(shard)
        before = len(self._graph.get_operations())
        with section.entered(), tf.control_dependencies([lock.op]):
            wait = section.now() - arrived
            version = store.counter("version", shard)
            staleness = version.read() - sent[pulled_version]
            if self.iterations is not None:
                _add(section.handle(self.iterations), sent[ahead])
            for piece, replay in replays:
                with section.on_piece(piece):
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
            [staleness, wait],
        )

    def _tables(self, records, outbox):
        """Tables of which only rows may change; when they were pulled."""
        return {
            record.variable.ordinal: (
                record.variable,
                outbox.add(self._store.rows_pulled(record.variable)),
            )
            for record in records
            if isinstance(record, Update)
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
            (variable, piece)
            for variable in self._pulled_from(shard)
            if variable.ordinal not in in_rows
            for piece in _pieces_on(shard, variable)
        ]
        # Each value is read, and sent, once its own updates are done: ops on
        # one resource keep the order in which they are built.
        with section.entered(), tf.control_dependencies([lock.op]):
            values = [
                tf.raw_ops.ReadVariableOp(
                    resource=store.handle(variable, shard, piece),
                    dtype=variable.dtype,
                )
                for variable, piece in fresh
            ]
            for table, since in tables:
                values += rows.changed_since(
                    store.row_stamps(table), section.handle(table), table, since
                )
            values.append(version.read())
        with tf.control_dependencies(effects + [v.op for v in values]):
            unlock = store.unlock(shard, lock)
        # So the answer says that the lock is free: one message less.
        with section.entered(), tf.control_dependencies([unlock]):
            values[-1] = tf.identity(values[-1])
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
            [
                (variable, piece, value)
                for (variable, piece), value in zip(fresh, values, strict=False)
            ],
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
            for variable, piece, value in result.fresh:
                if piece is not None:
                    continue
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

    def _join_pieces(self, results):
        """Puts split variables together; returns the operations."""
        found = {}
        for result in results:
            for variable, piece, value in result.fresh:
                if piece is not None:
                    pieces = found.setdefault(variable.ordinal, {})
                    pieces[piece.number] = value
        done = []
        with tf.device(self._store.worker_device):
            for ordinal, pieces in found.items():
                variable = self._store.variables[ordinal]
                whole = tf.concat([pieces[k] for k in sorted(pieces)], 0)
                done.append(_assign(variable.local_handle, whole))
        return done

    def _pulled_from(self, shard):
        """Variables whose replicas this exchange refreshes from `shard`."""
        fresh = {}
        for record in self._records:
            variable = record.variable
            if variable.role not in (Role.PARAMETER, Role.STATE):
                continue
            if shard in (
                variable.shard,
                *(piece.shard for piece in variable.pieces),
            ):
                fresh[variable.ordinal] = variable
        if self.iterations is not None and shard == 0:
            fresh[self.iterations.ordinal] = self.iterations
        return [fresh[ordinal] for ordinal in sorted(fresh)]

    def _prepare(self, record, shard, piece, outbox):
        """Puts into `outbox` what `record` needs.

        Returns:
          `piece`, and how to replay the record on it.
        """
        live = self._live(record, shard)
        resolve = section_lib.Resolver(
            self._lifter, live, outbox, record.variable, piece
        )
        if isinstance(record, Mutation):
            take = resolve(record.value)

            def replay(sent, section):
                value = take(sent, section)
                kwargs = {}
                if not record.kind.startswith("scatter"):
                    kwargs["read_value"] = False
                getattr(record.variable, record.kind)(value, **kwargs)

            return piece, replay
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

        return piece, replay_update


@dataclasses.dataclass
class _Result:
    """What one server answers.

    Attributes:
      shard: Number of the server.
      fresh: List of (variable, `Piece` or None, value).
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


def _pieces_on(shard, variable):
    """The pieces of `variable` on a server; `[None]` if it is whole."""
    if not variable.pieces:
        return [None]
    return [piece for piece in variable.pieces if piece.shard == shard]


def _assign(handle, value):
    return tf.raw_ops.AssignVariableOp(resource=handle, value=value)


def _add(handle, value):
    return tf.raw_ops.AssignAddVariableOp(resource=handle, value=value)
