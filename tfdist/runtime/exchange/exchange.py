"""One training step's exchange with the servers.

Per server one *section* is built that runs under that server's lock, applies
what was recorded in the order of the program, counts, and reads the fresh
values, which then flow back into the replicas.
"""

import tensorflow as tf

from tfdist import private_tensorflow
from tfdist.runtime.exchange import pull_response
from tfdist.runtime.exchange import push_request
from tfdist.runtime.exchange import records as records_lib
from tfdist.runtime.exchange import rows
from tfdist.runtime.variables import resources
from tfdist.runtime.variables import transfer
from tfdist.runtime.variables.server_scope import read_replica


class ExchangeBuilder:
    """Builds the operations of one exchange.

    Args:
      runtime: The `Runtime`.
      graph: The graph to build in.
      records: List of `Update` and `Mutation`, in the order of the program.
      counter: The step counter of the optimizer whose step this is, or None.
      rate: Callable that gives the optimizer's learning rate, a tensor.
      settings: Worker-local variables that are sent with the gradients.
      frozen: Ordinals of step counters that are not to be read afresh.
      lifter: The `Lifter` of the graph.
      trained: Variables on servers that the optimizer was built with.
      weight: How much these gradients count among those of an update, a
        scalar tensor; None if all count the same.
      local_steps: Steps that they stand for, a scalar int64 tensor; None for
        one.
      last: Whether this worker trains no more, so that nobody waits for it.
      finite: Whether all that is pushed is finite, a scalar bool tensor: if
        not, it is done nowhere. None for not to look.
    """

    # Whether an update of rows reads the newest counters on the server.
    _is_at_once = True

    def __init__(
        self,
        runtime,
        graph,
        records,
        *,
        counter,
        rate,
        settings,
        frozen,
        lifter,
        trained=(),
        weight=None,
        local_steps=None,
        last=False,
        finite=None,
    ):
        self._runtime = runtime
        self._store = runtime.store
        self._graph = graph
        self._records = records
        self.iterations = counter
        self._trained = trained
        self._rate = rate
        self._sender = push_request.Sender(
            runtime.store,
            graph,
            records,
            settings=settings,
            frozen=frozen,
            lifter=lifter,
            weight=weight,
            is_at_once=self._is_at_once,
        )
        self._local_steps = local_steps
        self._last = last
        self._finite = finite
        self._current = None
        self._ahead = None
        self._pulled = None
        # All servers that take part, and the number that marks it there.
        self._shards = []
        self._number = None
        self._bytes_sent = []
        self._bytes_received = []

    def build(self):
        """Builds it all; the effects are tied to the graph's execution."""
        with tf.device(self._store.worker_device):
            before = tf.no_op()
        # What comes before concerns this worker. A server waits for what it is
        # sent, and would be sent another message to hear of the rest.
        with tf.control_dependencies(None):
            self._build(before)

    def _build(self, before):
        store = self._store
        shards = set()
        for record in self._records:
            shards.update(records_lib.shards_of(record, store))
        if self.iterations is not None:
            # Each counts the steps of the optimizer, also those that update
            # nothing there: it may update what is frozen now later.
            shards.update([0], *map(records_lib.homes_of, self._trained))
        started = self._started(before)
        if self.iterations is not None:
            local = read_replica(self.iterations)
            self._ahead = local - read_replica(self.iterations.pulled)
        is_step = self.iterations is not None
        self._shards = sorted(shards)
        self._begun = [started.op]
        if is_step:
            with tf.control_dependencies([started.op]):
                self._begun = self._runtime.journal.note_begun(self._shards)
            # Read before anything fresh comes.
            by_server = self._pulled_by_server()
            self._pulled = self._pulled_from(by_server)
        with tf.control_dependencies(self._begun):
            self._number = self._runtime.marks.next_number()
        # All servers are asked before any answer is waited for.
        responses, accepted = self._ask(self._shards)
        all_here = pull_response.all_here(store, responses)
        with tf.control_dependencies([all_here]):
            done = [
                op
                for response in responses
                for op in pull_response.bring_home(store, response, is_step)
            ]
            done += pull_response.join_pieces(store, responses)
            done += self._note_pulled(responses)
            word = self._runtime.chief_decisions.chiefs_word
            done += [
                word.build_note(response.told)
                for response in responses
                if response.told is not None
            ]
        if not is_step:
            with tf.control_dependencies(self._begun):
                self._runtime.journal.note_other()
            return
        with tf.control_dependencies(done):
            self._runtime.journal.note_repeated(
                {
                    r.shard: self._if_finite(r.repeated)
                    for r in responses
                    if r.repeated is not None
                }
            )
            self._runtime.journal.write(
                started=started,
                pulled=self._pulled,
                pulled_by_server=by_server,
                arrival=self._arrival(responses),
                staleness=[a.staleness for a in responses],
                wait=[a.wait for a in responses],
                version=responses[0].version,
                accepted=accepted,
                bytes_sent=self._bytes_sent,
                bytes_received=self._bytes_received,
                shards=self._shards,
                local_steps=self._local_steps,
                finite=self._finite,
                current=self._current,
            )

    def _if_finite(self, count):
        """A count of gradients, 0 if they were dropped: these count there."""
        if self._finite is None:
            return count
        return count * tf.cast(self._finite, count.dtype)

    def _pulled_by_server(self):
        """Updates in the replicas of each server, a list of scalars."""
        store = self._store
        return [store.pulled_version(k) for k in range(store.num_shards)]

    def _pulled_from(self, by_server):
        """Updates that gradients count as computed from, a scalar."""
        return by_server[0]

    def _arrival(self, responses):
        """Number of the gradients among those of all, a scalar."""
        return tf.constant(-1, tf.int64)

    def _started(self, before):
        """Time at which the gradients are ready to be sent.

        Args:
          before: The operation that all of the exchange comes after.
        """
        ready = [before]
        for record in self._records:
            if isinstance(record, records_lib.Update):
                leaves = tf.nest.flatten(record.args)
                ready += [x.op for x in leaves if isinstance(x, tf.Tensor)]
        with tf.device(self._store.worker_device):
            with tf.control_dependencies(ready):
                return tf.timestamp()

    def _ask(self, shards):
        """Builds what the servers do.

        Returns:
          A list of `PullResponse`, one per server, and whether the gradients
          were accepted, a scalar bool tensor.
        """
        responses = [self._apply(self._send(shard)) for shard in shards]
        accepted = tf.constant(True) if self._finite is None else self._finite
        return responses, accepted

    def _note_pulled(self, responses):
        """Builds the notes of what else has been pulled; returns them."""
        if not self._is_counted:
            return []
        counts = self._runtime.gradient_counts
        return [
            op
            for response in responses
            for op in counts.set_pulled(response.shard, response.more)
        ]

    def _send(self, shard, extra=()):
        """Sends to a server what it needs, and `extra` tensors.

        Returns:
          A `PushRequest`; last in its `extra` the place in the data, if any.
        """
        if self.iterations is not None:
            extra = [*extra, *self._runtime.batch_progress.place()]
        request = self._sender.send(
            shard,
            begun=self._begun,
            ahead=self._ahead,
            finite=self._gate(),
            number=self._number,
            extra=extra,
            enclosed=self._enclosed,
        )
        self._bytes_sent += request.sizes
        return request

    def _gate(self):
        """The tensor without which servers do not apply their part, or None."""
        return self._finite

    def _enclosed(self, replays, buffer):
        """Returns what is sent beside gradients: gradient -> position."""
        return {}

    def _apply(self, request):
        """Does what is to be done on a server; returns its `PullResponse`."""
        store, section = self._store, request.section
        with tf.control_dependencies([request.arrived.op]):
            lock = store.lock(request.shard)
        before = len(self._graph.get_operations())
        with section.entered(), tf.control_dependencies([lock.op]):
            wait = section.now() - request.arrived
            version = store.counter("version", request.shard)
            staleness = version.read() - request.pulled
            new = self._claim(request)
            tables = self._update_if_finite(request, version, new)
            self._count(request, staleness, new)
        if section.late_inputs:
            private_tensorflow.add_control_inputs(lock.op, section.late_inputs)
        return self._respond(
            request, lock, before, tables, [staleness, wait], new
        )

    def _claim(self, request):
        """Builds the note of the batch in the server's progress.

        Returns:
          Whether the server has not applied it, a scalar bool tensor; None if
          nobody looks.
        """
        if self.iterations is None:
            return None
        return self._runtime.batch_progress.build_claim(
            request.shard, request.place, self._shards
        )

    def _update_if_finite(self, request, version, new):
        """Builds what was recorded; returns tables of which rows change."""
        tables = []
        conditions = [x for x in (request.finite, new) if x is not None]

        def update():
            graph = tf.compat.v1.get_default_graph()
            first = len(graph.get_operations())
            with request.section.entered():
                self._update(request, request.replays, request.sent, version)
                operations = graph.get_operations()[first:]
                tables.extend(self._mark_rows(request, operations, version))
            return True

        if conditions:
            tf.cond(tf.reduce_all(conditions), update, lambda: False)
        else:
            update()
        return tables

    def _count(self, request, staleness, new):
        """Builds the counting of this worker's gradient."""
        if self._is_counted:
            counts = self._runtime.gradient_counts
            counts.note(request.shard, request.finite, staleness, new)

    def _update(self, request, replays, sent, version):
        """Builds the replays, and the counting of what is done."""
        section = request.section
        if self.iterations is not None:
            _add(section.handle(self.iterations), request.ahead)
        with section.counters_read_once():
            for replay in replays:
                with section.on_piece(replay.piece):
                    self._run(replay, sent, section)
        if self.iterations is not None:
            one = tf.ones([], self.iterations.dtype)
            _add(section.handle(self.iterations), one)
            version.add(1)
        else:
            # Snapshots have to see that something is new. This worker is not
            # told: of what other workers do it may have older values.
            self._store.build_count_write(request.shard)

    def _run(self, replay, sent, section):
        replay.run(sent, section)

    def _mark_rows(self, request, operations, version):
        """The tables of which only rows are changed by `operations`."""
        store, kept = self._store, []
        number = version.read()
        if self.iterations is None:
            # Nothing has counted: workers may have this version without it.
            number += 1
        for table, since in request.tables.values():
            handle = request.section.handle(table)
            changed = rows.changed_by(operations, handle)
            rows.mark(store.row_stamps(table), table, changed, number)
            if changed is not None:
                kept.append((table, since))
        whole = {r.record.variable.ordinal: r for r in request.replays}
        for ordinal in sorted(whole.keys() - request.tables.keys()):
            variable = whole[ordinal].record.variable
            if rows.is_stamped(variable):
                rows.mark_all(store.row_stamps(variable), variable, number)
        return kept

    def _respond(self, request, lock, before, tables, figures, new=None):
        """Reads fresh values, frees the lock, sends them home."""
        store, section, shard = self._store, request.section, request.shard
        in_rows = {table.ordinal for table, _ in tables}
        fresh = [
            (variable, piece)
            for variable in pull_response.pulled_from(
                store, shard, self._records, self.iterations
            )
            if variable.ordinal not in in_rows
            for piece in records_lib.pieces_on(shard, variable)
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
            values = self._given(request, fresh, values)
            for table, since in tables:
                values += rows.changed_since(
                    store.row_stamps(table), section.handle(table), table, since
                )
            values.append(store.counter("version", shard).read())
            if request.number is not None:
                self._runtime.marks.leave(
                    shard, self.iterations, request.number, self._shards
                )
            figures = [*figures, *self._read_more(section)]
            if new is not None:
                figures.append(tf.cast(tf.logical_not(new), tf.int64))
            decisions = self._runtime.chief_decisions
            follows = shard == 0 and decisions.follows
            if follows:
                figures.append(decisions.chiefs_word.build_read())
        effects = resources.effects(self._graph.get_operations()[before:])
        with tf.control_dependencies(
            effects + [v.op for v in values + figures]
        ):
            unlock = store.unlock(shard, lock)
        # So the answer says that the lock is free: one message less.
        with section.entered(), tf.control_dependencies([unlock]):
            values[-1] = tf.identity(values[-1])
        home = transfer.move(
            values + figures,
            source=store.devices[shard],
            target=store.worker_device,
            # Pieces are put together on the worker.
            homes=[
                variable.local_handle.device if piece is None else None
                for variable, piece in fresh
            ],
        )
        self._bytes_received += [transfer.num_bytes(v) for v in values]
        home, figures = home[: len(values)], home[len(values) :]
        *values, version = home
        told = figures.pop() if follows else None
        repeated = None if new is None else figures.pop()
        staleness, wait, *more = figures
        rest = values[len(fresh) :]
        return pull_response.PullResponse(
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
            version,
            more,
            told,
            repeated,
        )

    @property
    def _is_counted(self):
        """Whether the servers count this as a gradient of this worker."""
        counts = self._runtime.gradient_counts
        return counts.is_kept and self.iterations is not None

    def _given(self, request, copies, values):
        """Builds the fresh values for the worker, a list of tensors.

        Args:
          request: The `PushRequest`.
          copies: List of (variable, `Piece` or None).
          values: List of what the server holds.
        """
        return values

    def _read_more(self, section):
        """Builds the other reads beside the fresh values: a list of tensors."""
        if not self._is_counted:
            return []
        return self._runtime.gradient_counts.read_on(section.shard)


def _add(handle, value):
    return tf.raw_ops.AssignAddVariableOp(resource=handle, value=value)
