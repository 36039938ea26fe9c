"""The exchange of methods that decide over gradients before they count.

1. The gradients go to all servers, which keep them under a key.
2. The ledger, on the first server, is told; it decides at once or later, and
   the worker waits there.
3. Every server carries out the ledger's log, as far as it has not yet done so,
   whoever's gradients it speaks of; then it gives the worker fresh values.

So a decision is made once for all servers, and what has been decided is
carried out by whoever comes next: a worker that dies in between holds nobody
up, and no server averages other gradients than the others do.
"""

import tensorflow as tf

from tfdist import private_tensorflow
from tfdist.parameter_server import exchange
from tfdist.parameter_server import records as records_lib
from tfdist.parameter_server.variables import Role
from tfdist.synchronization import state as state_lib


class CoordinatedExchange(exchange.Exchange):
    """An `Exchange` that is decided over by a ledger.

    Args:
      ledger: The optimizer's `Ledger`, or None without an optimizer.
      method: The `Synchronization`.
      correction: The `Correction` of late gradients, or None.
      **kwargs: Those of `Exchange`.
    """

    def __init__(self, *, ledger, method, correction, **kwargs):
        super().__init__(**kwargs)
        self._ledger = ledger
        self._method = method
        self._correction = correction

    def _ask(self, shards):
        if self.iterations is None:
            self._check_mutations()
            return super()._ask(shards)
        if self._method.averages:
            self._check_mutations()
        store = self._store
        ledger = self._ledger
        updated = {
            shard
            for record in self._records
            if isinstance(record, records_lib.Update)
            for shard in records_lib.shards_of(record, store)
        }
        pulled = ledger.pulled(sorted(updated))
        extra = [ledger.next_key(), pulled]
        parcels = [self._send(shard, extra) for shard in shards]
        gradients = [_gradients(parcel) for parcel in parcels]
        kept = []
        for parcel, mine in zip(parcels, gradients, strict=True):
            with tf.control_dependencies([parcel.arrived.op]):
                kept.append(self._keep(parcel, mine))
        # The first server is always among them, and the first.
        decision = ledger.arrive(*parcels[0].extra, kept)
        answers = [
            self._carry_out(parcel, mine, decision)
            for parcel, mine in zip(parcels, gradients, strict=True)
        ]
        with tf.device(store.worker_device):
            return answers, tf.identity(decision.accepted)

    def _check_mutations(self):
        """Refuses what every worker would do for one and the same update."""
        for record in self._records:
            variable = record.variable
            if self.iterations is not None and _is_of_update(record):
                continue
            if variable.role is Role.STATE:
                continue
            raise ValueError(
                f"Variable {variable.name!r} is assigned beside the "
                "optimizer's updates (by a constraint, use_ema=True or code "
                f"of yours). With synchronization={self._method!r} "
                "every worker would do so for each update of all of them. "
                "Use AsyncStrategy or BoundedStalenessStrategy, or leave it "
                "out."
            )

    def _keep(self, parcel, gradients):
        """Keeps gradients on a server; returns the operation."""
        positions = _positions(gradients)
        with tf.device(self._store.devices[parcel.shard]):
            if not positions:
                return tf.no_op()
            kept = tf.raw_ops.MapStage(
                key=parcel.extra[0],
                indices=tf.range(len(positions)),
                values=[parcel.sent[p] for p in positions],
                dtypes=[parcel.sent[p].dtype for p in positions],
                shared_name=self._ledger.name_of("gradients"),
            )
        private_tensorflow.run_independently(kept)
        return kept

    def _take(self, parcel, gradients, key):
        """The gradients kept under `key`: a dict of position to tensor."""
        positions = _positions(gradients)
        if not positions:
            return {}
        values = tf.raw_ops.MapUnstage(
            key=key,
            indices=tf.range(len(positions)),
            dtypes=[parcel.sent[p].dtype for p in positions],
            shared_name=self._ledger.name_of("gradients"),
        )
        for value, position in zip(values, positions, strict=True):
            value.set_shape(parcel.sent[position].shape)
        return dict(zip(positions, values, strict=True))

    def _carry_out(self, parcel, gradients, decision):
        """Makes a server carry out the log; returns its `Answer`."""
        store, section, shard = self._store, parcel.section, parcel.shard
        with tf.device(store.devices[shard]):
            head = tf.identity(decision.head)
            log = tf.unstack(tf.identity(decision.log), num=4)
            accepted = tf.identity(decision.accepted)
        with tf.control_dependencies([parcel.arrived.op, head.op, *_ops(log)]):
            lock = store.lock(shard)
        before = len(self._graph.get_operations())
        own = [r for r in parcel.replays if not _is_of_update(r.record)]
        with section.entered(), tf.control_dependencies([lock.op]):
            done = self._ledger.executed(shard)

            def body(number):
                with section.entered():
                    return self._entry(parcel, gradients, log, number, done)

            reached = tf.while_loop(
                lambda number: number < head,
                body,
                [done.read()],
                parallel_iterations=1,
            )
            with tf.control_dependencies(reached):
                self._own_part(parcel, gradients, own, accepted)
        late = section.late_inputs
        if late:
            private_tensorflow.add_control_inputs(lock.op, late)
        if shard == 0:
            figures = [decision.staleness, decision.wait]
        else:
            with section.entered():
                figures = [tf.zeros([], tf.int64), tf.zeros([], tf.float64)]
        return self._answer(section, lock, before, [], figures)

    def _read_more(self, section):
        if self.iterations is None:
            return []
        return [self._ledger.updates(section.shard).read()]

    def _note_pulled(self, answers):
        if self.iterations is None:
            return []
        return [
            self._ledger.set_pulled(answer.shard, answer.more[0])
            for answer in answers
        ]

    def _own_part(self, parcel, gradients, replays, accepted):
        """What only this worker's own gradient brings with it.

        The statistics of its batch count if its gradient does.
        """
        section = parcel.section

        def replay():
            with section.entered():
                for one in replays:
                    with section.on_piece(one.piece):
                        one.run(parcel.sent, section)
            return True

        def discard():
            with section.entered():
                self._take(parcel, gradients, parcel.extra[0])
            return True

        if self._method.drops:
            tf.cond(accepted, replay, discard)
        else:
            replay()

    def _entry(self, parcel, gradients, log, number, done):
        """Carries out one entry of the log; returns the next one's number."""
        graph = tf.compat.v1.get_default_graph()
        place = tf.math.floormod(number, tf.shape(log[0], tf.int64)[0])
        key, staleness, first, count = (column[place] for column in log)
        updates = [r for r in parcel.replays if _is_of_update(r.record)]
        version = self._store.counter("version", parcel.shard)

        def update(averaged):
            sent = list(parcel.sent)
            for position, value in averaged.items():
                sent[position] = value
            self._update(parcel, updates, sent, version)
            self._ledger.updates(parcel.shard).add(1)

        if not self._method.averages:
            taken = self._take(parcel, gradients, key)
            update(self._scaled(taken, gradients, staleness))
        else:
            sums = _Sums(self._ledger, parcel, gradients)
            section = parcel.section

            def add():
                with section.entered():
                    taken = self._take(parcel, gradients, key)
                    sums.add(self._scaled(taken, gradients, staleness), first)
                return True

            def average():
                with section.entered():
                    update(sums.average(count))
                return True

            tf.cond(
                tf.not_equal(key, state_lib.NO_GRADIENT), add, lambda: False
            )
            tf.cond(count > 0, average, lambda: False)
        effects = [
            op
            for op in graph.get_operations()
            if op.op_def.is_stateful and op.type != "VarHandleOp"
        ]
        with tf.control_dependencies(effects):
            # After all that it stands for: a worker that dies before leaves
            # the entry to the next one.
            with tf.control_dependencies([done.add(1)]):
                return number + 1

    def _scaled(self, taken, gradients, staleness):
        if self._correction is None:
            return taken
        scale = self._correction.scale(staleness)
        values = {g[0] if isinstance(g, tuple) else g for g in gradients}
        return {
            position: tensor * tf.cast(scale, tensor.dtype)
            if position in values
            else tensor
            for position, tensor in taken.items()
        }


class _Sums:
    """Sums of the gradients of one update, on one server.

    Args:
      ledger: The `Ledger`.
      parcel: The `Parcel`.
      gradients: List of positions, or pairs of positions.
    """

    def __init__(self, ledger, parcel, gradients):
        self._ledger = ledger
        self._parcel = parcel
        self._gradients = gradients

    def _handle(self, position, shape):
        return self._ledger.resource(
            self._parcel.shard,
            f"sum/{position}",
            self._parcel.sent[position].dtype,
            shape,
        )

    def add(self, taken, first):
        """Adds gradients; with `first` they replace what was there."""
        dense = [g for g in self._gradients if not isinstance(g, tuple)]
        sparse = [g for g in self._gradients if isinstance(g, tuple)]

        def begin():
            for position in (*dense, *(p for pair in sparse for p in pair)):
                self._assign(position, taken[position])
            return True

        def go_on():
            for position in dense:
                tf.raw_ops.AssignAddVariableOp(
                    resource=self._handle(position, taken[position].shape),
                    value=taken[position],
                )
            for position in (p for pair in sparse for p in pair):
                known = self._read(position)
                rows = tf.concat([known, taken[position]], 0)
                self._assign(position, rows)
            return True

        def on_server(build):
            def built():
                with self._parcel.section.entered():
                    return build()

            return built

        tf.cond(first > 0, on_server(begin), on_server(go_on))

    def _shape(self, position):
        shape = self._parcel.sent[position].shape
        is_sparse = any(
            isinstance(g, tuple) and position in g for g in self._gradients
        )
        return [None, *shape[1:]] if is_sparse else shape

    def _assign(self, position, value):
        tf.raw_ops.AssignVariableOp(
            resource=self._handle(position, self._shape(position)), value=value
        )

    def _read(self, position):
        shape = self._shape(position)
        value = tf.raw_ops.ReadVariableOp(
            resource=self._handle(position, shape),
            dtype=self._parcel.sent[position].dtype,
        )
        value.set_shape(shape)
        return value

    def average(self, count):
        """The sums divided by `count`: a dict of position to tensor."""
        averaged = {}
        for gradient in self._gradients:
            if isinstance(gradient, tuple):
                # A row may come several times, as it does within a batch.
                values, indices = gradient
                averaged[indices] = self._read(indices)
                total = self._read(values)
                averaged[values] = total / tf.cast(count, total.dtype)
            else:
                total = self._read(gradient)
                averaged[gradient] = total / tf.cast(count, total.dtype)
        return averaged


def _is_of_update(record):
    """Whether it is done once per update, not per worker."""
    return (
        isinstance(record, records_lib.Update)
        or record.variable.role is Role.ITERATIONS
    )


def _gradients(parcel):
    """Positions, among what is sent, of what is averaged: no duplicates."""
    found = {}
    for replay in parcel.replays:
        for gradient in replay.arguments:
            found[gradient] = None
    return list(found)


def _positions(gradients):
    return [
        position
        for gradient in gradients
        for position in (
            gradient if isinstance(gradient, tuple) else (gradient,)
        )
    ]


def _ops(tensors):
    return [tensor.op for tensor in tensors]
