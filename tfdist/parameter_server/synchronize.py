"""Bringing the servers and a worker's replicas to one state, outside steps.

The chief gives each new variable its first value on the servers; the other
workers, and a chief that comes back, take over what is there. Both compare
what they hold: two workers with different models do not train together.
"""

import contextlib

from absl import logging
import tensorflow as tf

from tfdist import private_tensorflow
from tfdist.cluster import waiting
from tfdist.parameter_server import consistent
from tfdist.parameter_server import transfer
from tfdist.parameter_server.section import read_replica
from tfdist.parameter_server.variables import Role

# Refreshed only when they are read eagerly, not by every exchange.
_LAZY = (Role.SLOT, Role.STATE, Role.ITERATIONS)


class ModelMismatchError(ValueError):
    """Two workers of one cluster built different models."""


class Synchronizer:
    """Eager traffic between one worker and the servers.

    Args:
      store: The `ParameterStore`.
      is_chief: Whether this worker initialises variables and passes eager
        assignments on to the servers.
      timeout: Seconds to wait for the chief's variables.
    """

    def __init__(self, store, *, is_chief, timeout):
        self._store = store
        self._is_chief = is_chief
        self._writes_pass = is_chief
        self._timeout = timeout
        self._committed = 0
        self._checked = 0
        # One per commit, mostly one per model: [first, end, exchanges made
        # when the lazily kept replicas among them were last refreshed].
        self._batches = []
        self._functions = {}
        self._warned = False
        self._reader = consistent.Reader(store)
        # Exchanges made when all was last read at one moment.
        self._together_at = None

    @property
    def committed(self):
        """How many variables this worker knows servers to hold, an int."""
        return self._committed

    def commit(self):
        """Makes sure that the servers hold all variables made so far.

        Raises:
          ModelMismatchError: The chief's variables are others.
          TimeoutError: The chief did not initialise them in time.
        """
        variables = self._store.variables
        if self._committed == len(variables):
            return
        first, end = self._committed, len(variables)
        empty = []
        if not first and self._store.recovery is not None:
            empty = self._store.recovery.wait_until_settled(
                self._is_chief, self._timeout
            )
        if self._is_chief:
            if 0 < len(empty) < self._store.num_shards:
                self._initialize(variables[:end], empty)
            held = self.held()
        else:
            held = waiting.wait_until(
                lambda: self._held_and_alike(end),
                what=lambda: (
                    f"the chief to initialise variable {end - 1} of this "
                    f"model, {variables[end - 1].name!r} (it has initialised "
                    f"{self.held()} so far)"
                ),
                timeout=self._timeout,
                hint="Is the chief running, and does it build this model?",
            )
        known = variables[first : max(first, min(held, end))]
        new = variables[first + len(known) : end]
        if known:
            self._check_up_to(first + len(known))
            self._pull(known)
        if new:
            self._store.state.before_initialization(new)
            self._initialize(new)
        self._committed = end
        self._batches.append([first, end, self._store.journal.exchanges])
        if new:
            self._store.state.after_initialization(new)

    def pull_all(self):
        """Refreshes every replica of this worker."""
        self.commit()
        if self._committed:
            # With local steps each worker goes on counting its own.
            self._pull(
                [v for v in self._store.variables if v.role is not Role.CLOCK]
            )
            for batch in self._batches:
                batch[-1] = self._store.journal.exchanges

    def pull_together(self):
        """Refreshes every replica, of all servers at one moment."""
        self.commit()
        variables = [
            v for v in self._store.variables if v.role is not Role.CLOCK
        ]
        ledgers = len(self._ledgers())
        self._reader.read(
            ("pull", ledgers, len(variables)),
            lambda: (self.build_pull(variables, together=True), ()),
        )
        self._together_at = self._store.journal.exchanges
        for batch in self._batches:
            batch[-1] = self._together_at

    def versions(self):
        """Updates applied by each server, a list of ints."""
        if not self._committed:
            return [0] * self._store.num_shards
        return [int(v) for v in self._call("versions", self._build_versions)]

    def before_read(self, variable):
        """Refreshes lazily kept replicas before one of them is read.

        What is saved is refreshed as a whole, so that parameters and slots
        are of one moment. Not in the midst of local steps.
        """
        if variable.ordinal is None or variable.ordinal >= self._committed:
            return
        if self._store.local is None and private_tensorflow.is_saving():
            if self._store.journal.exchanges != self._together_at:
                self.pull_together()
            return
        if variable.role not in _LAZY:
            return
        exchanges = self._store.journal.exchanges
        for batch in self._batches:
            first, end, refreshed_at = batch
            if first <= variable.ordinal < end and refreshed_at != exchanges:
                batch[-1] = exchanges
                together = self._store.variables[first:end]
                self._pull([v for v in together if v.role in _LAZY])

    def after_write(self, variable):
        """Passes an eager assignment on to the servers."""
        if variable.role is Role.ITERATIONS and variable.pulled is not None:
            # As it is here: to read it eagerly would refresh it first.
            variable.pulled.assign_replica(read_replica(variable))
        if variable.ordinal is None or variable.ordinal >= self._committed:
            return
        if self._writes_pass:
            self._call(
                ("write", variable.ordinal), lambda: self._build_write(variable)
            )
        elif not self._warned:
            self._warned = True
            logging.warning(
                "Variable %r was assigned eagerly on a worker that is not the "
                "chief: its replica changes until the next exchange, the "
                "servers keep their value.",
                variable.name,
            )

    @contextlib.contextmanager
    def collective_writes(self):
        """Scope in which assignments of any worker are passed on."""
        self._writes_pass = True
        try:
            yield
        finally:
            self._writes_pass = self._is_chief

    def stamp_rows(self, table):
        """Makes the server keep the versions of the rows of `table`."""
        key = ("rows", table.ordinal)
        self._call(key, lambda: self._build_stamp_rows(table))

    # What runs on the servers, traced once per kind.

    def _call(self, key, build):
        if key not in self._functions:
            function = tf.function(build, autograph=False)
            self._functions[key] = function.get_concrete_function()
        return self._store.call(self._functions[key])

    def _held_and_alike(self, number):
        """How many variables are held, 0 for less than `number`.

        Compares those that are: who waits for a variable that the chief's
        model does not have shall hear of the first that differs.
        """
        held = self.held()
        self._check_up_to(min(held, number))
        return held if held >= number else 0

    def _check_up_to(self, number):
        unchecked = self._store.variables[self._checked : number]
        if unchecked:
            self._check_signatures(unchecked)
            self._checked = number

    def held(self):
        """How many variables the servers hold, an int."""
        return int(self._call("held", self._build_held))

    def _build_held(self):
        held = self._store.counter("held", 0)
        with tf.device(self._store.devices[0]):
            known = tf.raw_ops.VarIsInitializedOp(resource=held.handle)
            number = tf.cond(known, held.read, lambda: tf.zeros([], tf.int64))
        return self._home(number)

    def _home(self, tensor):
        with tf.device(self._store.worker_device):
            return tf.identity(tensor)

    def _build_versions(self):
        return [
            self._home(self._store.counter("version", shard).read())
            for shard in range(self._store.num_shards)
        ]

    def _signature_handle(self, variable):
        name = f"signature/{variable.ordinal}"
        return self._store.resource(0, name, tf.string, [])

    def _initialize(self, variables, shards=None):
        """Gives variables their first values, on all servers or some."""
        if shards is None:
            shards = range(self._store.num_shards)
        self._call(
            ("initialize", variables[0].ordinal, len(variables), *shards),
            lambda: self._build_initialize(variables, shards),
        )

    def _build_initialize(self, variables, shards):
        store = self._store
        done = []
        for shard in shards:
            here = self.copies_on(shard, variables)
            values = self._move_to(shard, here)
            with tf.device(store.devices[shard]):
                done += [
                    tf.raw_ops.AssignVariableOp(
                        resource=store.handle(variable, shard, piece),
                        value=value,
                    )
                    for (variable, piece), value in zip(
                        here, values, strict=True
                    )
                ]
                if variables[0].ordinal == 0:
                    version = store.counter("version", shard)
                    done.append(version.set(store.state.first_version))
                counts = store.gradient_counts
                if counts is not None and variables[0].ordinal == 0:
                    done.append(counts.clear(shard))
        self._leave_signatures(variables, done)

    def _leave_signatures(self, variables, after):
        """Builds what tells the others that servers hold `variables`."""
        store = self._store
        done = list(after)
        with tf.device(store.devices[0]):
            done += [
                tf.raw_ops.AssignVariableOp(
                    resource=self._signature_handle(variable),
                    value=tf.constant(signature(variable)),
                )
                for variable in variables
            ]
            with tf.control_dependencies(done):
                store.counter("held", 0).set(variables[-1].ordinal + 1)

    def build_leave_signatures(self):
        """Builds what the first server knows of the variables it holds.

        For one that was started again. A model that another worker has added
        variables to is committed again there.
        """
        self._leave_signatures(self._store.variables[: self._committed], [])

    def copies_on(self, shard, variables):
        """Pairs of variable and piece (or None) that a server holds."""
        return [
            (variable, piece)
            for variable in variables
            for holder, piece in self._store.copies_of(variable)
            if holder == shard
        ]

    def _move_to(self, shard, copies):
        values = [read_replica(variable) for variable, _ in copies]
        return transfer.move(
            [
                value if piece is None else piece.of(value)
                for (_, piece), value in zip(copies, values, strict=True)
            ],
            source=self._store.worker_device,
            target=self._store.devices[shard],
        )

    def _check_signatures(self, variables):
        def build():
            with tf.device(self._store.devices[0]):
                texts = [
                    tf.raw_ops.ReadVariableOp(
                        resource=self._signature_handle(v), dtype=tf.string
                    )
                    for v in variables
                ]
                stacked = tf.stack([tf.reshape(t, []) for t in texts])
            return self._home(stacked)

        key = ("signatures", variables[0].ordinal, len(variables))
        for variable, there in zip(
            variables, self._call(key, build).numpy(), strict=True
        ):
            mine, theirs = signature(variable), there.decode()
            # Keras numbers layers by what the process made before: the
            # names may differ where the models do not.
            if mine.split(" ", 1)[1] != theirs.split(" ", 1)[1]:
                raise ModelMismatchError(
                    "This worker's model differs from the chief's. First "
                    f"difference, variable {variable.ordinal}: here {mine}; "
                    f"there {theirs}. All workers have to build the same "
                    "model and optimizer in the same order."
                )

    def _pull(self, variables):
        ledgers = len(self._ledgers())
        key = ("pull", ledgers, tuple(v.ordinal for v in variables))
        self._call(key, lambda: self.build_pull(variables))

    def _ledgers(self):
        coordination = self._store.coordination
        return [] if coordination is None else coordination.ledgers

    def build_pull(self, variables, together=False):
        """Builds the refreshing of the replicas of `variables`.

        Args:
          variables: List of `ReplicaVariable`.
          together: Whether all servers are read at one moment.

        Returns:
          Together, the marks that were there, see `consistent.build_marks`.
        """
        store = self._store
        locks, held, marks = [None] * store.num_shards, None, []
        if together:
            locks, held = consistent.lock_all(store)
            marks = consistent.build_marks(store, held)
        found = []
        for shard in range(store.num_shards):
            here = [
                (variable, piece)
                for variable, piece in self.copies_on(shard, variables)
                if piece is not None or variable.shard == shard
            ]
            if here or together:
                read = self._read_under_lock(
                    shard, here, locks[shard], held, marks[shard : shard + 1]
                )
                found.append((shard, here, *read))
        # As a whole or not at all, see `pull.arrivals`.
        arrived = [
            tensor.op
            for _, _, values, version, counts, updates in found
            for tensor in (*values, version, counts, *updates)
            if tensor is not None
        ]
        with tf.control_dependencies(arrived):
            self._put_all(found)
        return [self._home(mark) for mark in marks]

    def _put_all(self, found):
        """Puts what has been read into the replicas.

        Args:
          found: List of number of a server, pairs of variable and piece, and
            what `_read_under_lock` has returned for them.
        """
        store, pieces = self._store, {}
        for shard, copies, values, version, counts, updates in found:
            for (variable, piece), value in zip(copies, values, strict=True):
                if piece is None:
                    self._put(variable, value)
                else:
                    known = pieces.setdefault(variable.ordinal, {})
                    known[piece.number] = value
            if any(v.role is Role.PARAMETER for v, _ in copies):
                store.set_pulled_version(shard, version)
                if counts is not None:
                    store.gradient_counts.set_pulled(shard, counts)
                for ledger, number in zip(
                    self._ledgers(), updates, strict=True
                ):
                    ledger.set_pulled(shard, number)
        for ordinal, values in pieces.items():
            variable = store.variables[ordinal]
            ordered = [values[number] for number in sorted(values)]
            self._put(variable, tf.concat(ordered, 0))

    def _read_under_lock(self, shard, copies, lock, held, marks):
        """Their values, brought here, and what the server has counted.

        Args:
          shard: Number of the server.
          copies: List of (variable, `Piece` or None).
          lock: Its lock, None if it has not been taken.
          held: The operation after which all locks are held, or None.
          marks: What else is read before it is freed, a list of tensors.
        """
        store = self._store
        if lock is None:
            lock = store.lock(shard)
            held = lock.op
        with tf.control_dependencies([held]):
            with tf.device(store.devices[shard]):
                values = []
                for variable, piece in copies:
                    value = tf.raw_ops.ReadVariableOp(
                        resource=store.handle(variable, shard, piece),
                        dtype=variable.dtype,
                    )
                    value.set_shape(variable.shape_of(piece))
                    values.append(value)
                counters = [store.counter("version", shard)]
                counters += [
                    ledger.updates(shard) for ledger in self._ledgers()
                ]
                values += [counter.read() for counter in counters]
                if store.gradient_counts is not None:
                    values.append(store.gradient_counts.read_on(shard))
                noted = self._note_given(shard, copies, values)
        read = [v.op for v in (*values, *marks)]
        with tf.control_dependencies([*read, *noted]):
            store.unlock(shard, lock)
        home = transfer.move(
            values, source=store.devices[shard], target=store.worker_device
        )
        version, *updates = home[len(copies) :]
        counts = None
        if store.gradient_counts is not None:
            counts = updates.pop()
        return home[: len(copies)], version, counts, updates

    def _note_given(self, shard, copies, values):
        """What this worker now has, for the correction of its gradients."""
        corrector = self._store.corrector
        if corrector is None:
            return []
        return corrector.note_given(shard, copies, values[: len(copies)])

    def _put(self, variable, value):
        if variable.role is Role.ITERATIONS:
            # This worker's steps that have not been exchanged yet (gradient
            # accumulation) count on top.
            ahead = variable.read_value() - variable.pulled.read_value()
            variable.pulled.assign_replica(value)
            value = value + ahead
        variable.assign_replica(value)

    def _build_stamp_rows(self, table):
        store = self._store
        lock = store.lock(table.shard)
        stamps = store.row_stamps(table)
        with tf.device(store.devices[table.shard]):
            with tf.control_dependencies([lock.op]):
                known = tf.raw_ops.VarIsInitializedOp(resource=stamps)

            def create():
                tf.raw_ops.AssignVariableOp(
                    resource=stamps, value=tf.zeros(table.shape[:1], tf.int64)
                )
                return True

            created = tf.cond(known, lambda: False, create)
        with tf.control_dependencies([created]):
            store.unlock(table.shard, lock)

    def _stamp_all_rows(self, table):
        """Every worker is to pull all of `table` with its next exchange."""
        store = self._store
        version = store.counter("version", table.shard).read()
        return tf.raw_ops.AssignVariableOp(
            resource=store.row_stamps(table),
            value=tf.fill(table.shape[:1], version + 1),
        )

    def _build_write(self, variable):
        store = self._store
        for shard, piece in store.copies_of(variable):
            (value,) = self._move_to(shard, [(variable, piece)])
            with tf.control_dependencies([value.op]):
                lock = store.lock(shard)
            with tf.control_dependencies([lock.op]):
                with tf.device(store.devices[shard]):
                    done = [
                        tf.raw_ops.AssignVariableOp(
                            resource=store.handle(variable, shard, piece),
                            value=value,
                        )
                    ]
                    done += self._note_given(
                        shard, [(variable, piece)], [value]
                    )
                    if variable.rows_pulled is not None:
                        done.append(self._stamp_all_rows(variable))
            with tf.control_dependencies(done):
                store.unlock(shard, lock)


def signature(variable):
    """Name, role, type and shape of a variable, a str."""
    name = variable.name.split(":")[0].replace(" ", "_")
    shape = variable.shape.as_list()
    pieces = f" in {len(variable.pieces)} pieces" if variable.pieces else ""
    kind = f"{variable.role.value} {variable.dtype.name}"
    return f"{name} {kind} {shape}{pieces}"
