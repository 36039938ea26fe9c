"""Bringing the servers and a worker's replicas to one state, outside steps.

New variables are committed: the chief gives them their first values on the
servers, the others take over what is there (`first_values`). Replicas are
refreshed when they are read, and eager assignments passed on.
"""

import contextlib

from absl import logging
import tensorflow as tf

from tfdist import private_keras
from tfdist import private_keras_calls
from tfdist import private_keras_variables
from tfdist.cluster import resource_values
from tfdist.cluster import waiting
from tfdist.runtime.exchange import rows
from tfdist.runtime.replicas import consistent_read
from tfdist.runtime.replicas import first_values
from tfdist.runtime.replicas import refresh
from tfdist.runtime.variables import traced_calls
from tfdist.runtime.variables import transfer
from tfdist.runtime.variables.server_scope import read_replica
from tfdist.runtime.variables.variables import Role

# Refreshed only when they are read eagerly, not by every exchange.
_LAZY = (Role.SLOT, Role.STATE, Role.ITERATIONS)


def _is_lazy(variable):
    """Whether no exchange refreshes the replica of a variable.

    Each exchange brings state that steps assign (moving statistics) together
    with the parameters. To read it must not refresh it alone, or callbacks
    would see, and keep, parameters and statistics of different moments.
    """
    return variable.role in _LAZY and not variable.assigned_by_workers


class Synchronizer:
    """Eager traffic between one worker and the servers.

    Args:
      runtime: The `Runtime`.
      is_chief: Whether this worker initialises variables and passes eager
        assignments on to the servers.
      timeout: Seconds to wait for the chief's variables.

    Attributes:
      has_joined: Whether servers held a run when this worker first asked.
      has_added: Whether they had lost some of it, which this worker has added.
      has_overwritten: Whether the chief has assigned weights to such a run
        before it has trained in it.
      may_lack: Whether servers came back that nobody was there to restore.
      writes_pass: Whether eager assignments are passed on now.
    """

    def __init__(self, runtime, *, is_chief, timeout):
        self._runtime = runtime
        self._store = runtime.store
        self._is_chief = is_chief
        self.writes_pass = is_chief
        self._timeout = timeout
        self._committed = 0
        self.has_joined = self.has_added = self.has_overwritten = False
        # One per commit, mostly one per model: [first, end, exchanges made
        # when the lazily kept replicas among them were last refreshed].
        self._batches = []
        self._traced = traced_calls.Traced(runtime.store)
        self._first = first_values.FirstValues(
            runtime.store,
            self._traced,
            runtime.state,
            runtime.gradient_counts,
            runtime.unused_models,
        )
        self._refresh = refresh.Refresh(
            runtime.store,
            runtime.marks,
            runtime.corrector,
            runtime.gradient_counts,
            runtime.coordination,
        )
        self.may_lack = False
        self._warned = False
        # Ordinals of state that this worker alone has set since it was pulled.
        self._set_here = set()
        self._reader = consistent_read.Reader(runtime.store, runtime.marks)
        # Exchanges made when all was last read at one moment.
        self._together_at = None

    @property
    def committed(self):
        """Number of variables that servers are known to hold, an int."""
        return self._committed

    def holds(self, variable):
        """Whether this worker knows servers to hold `variable`."""
        ordinal = variable.ordinal
        return ordinal is not None and ordinal < self._committed

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
        if not first:
            self.may_lack = self._runtime.recovery.wait_until_settled(
                self._is_chief, self._timeout
            )
        self._runtime.unused_models.enter()
        held = self.held() if self._is_chief else self._wait_for_chief(end)
        if not first:
            self.has_joined = held > 0
        self._first.check(min(held, end), self.may_lack)
        # Not those that nobody uses any more before they were ever trained.
        new = variables[max(held, first) : end]
        if is_new := held < end:
            self._runtime.state.before_initialization(new)
        begins = lacked = False
        if self.may_lack:
            # Each model's part, as it comes.
            lacked = self._add_missing(first, end, held)
            self.has_added |= lacked
            held = max(held, end)
        elif is_new:
            begins = not held
            self._first.give(new, end, begins)
        if known := variables[first : min(held, end)]:
            self._pull(known)
            self._runtime.state.after_taking_over(known)
            self._runtime.local.follow(known)
        self._committed = end
        self._batches.append([first, end, self._runtime.journal.exchanges])
        if is_new:
            self._runtime.state.after_initialization(new, begins)
        if lacked:
            self._runtime.state.servers_lacked(variables[first:end])
        elif self.may_lack:
            self._runtime.state.put_over_snapshots(variables[first:end])

    def _add_missing(self, first, end, held):
        """Adds what servers lack that nobody was there to restore.

        The chief does: it may have a checkpoint. All others wait for it.

        Args:
          first: Number of variables that are known to be there.
          end: Number of variables that are to be.
          held: Number of variables that the first server says are there.

        Returns:
          Whether servers have lost something, which is not the same: what
          comes after all that they held is new.
        """
        variables, missing = self._store.variables[first:end], 0
        if self._is_chief:
            missing = self._first.complete(variables, end)
        else:
            waiting.wait_until(
                lambda: not self._first.lacks(first, end),
                what="the chief to add variables that parameter servers lack",
                timeout=self._timeout,
                hint="Is the chief running, and does it build this model?",
            )
        self._first.check(end)
        if not missing or (first and held <= first):
            return False
        logging.warning(
            "Parameter servers that nobody was there to restore lacked %d "
            "variables of this model. They begin with what this worker has of "
            "them: mostly their first values.",
            missing,
        )
        return True

    def _wait_for_chief(self, end):
        """Waits for variables up to `end`; returns how many are held."""
        names = [v.name for v in self._store.variables[:end]]
        last = f", {names[-1]!r}" if names else ""
        return waiting.wait_until(
            lambda: self._first.held_and_alike(end, self.may_lack),
            what=lambda: (
                f"the chief to initialise variable {end - 1} of this model"
                f"{last} (it has initialised {self.held()} so far)"
            ),
            timeout=self._timeout,
            hint="Is the chief running, and does it build this model?",
        )

    @property
    def first_values(self):
        """The `FirstValues`."""
        return self._first

    def held(self):
        """Number of variables that the servers hold, an int."""
        return self._first.held()

    def pull_committed(self):
        """Refreshes every replica of what servers are known to hold."""
        if not self._committed:
            return
        # With local steps each worker goes on counting its own.
        known = self._store.variables[: self._committed]
        self._set_here.clear()
        self._pull([v for v in known if v.role is not Role.CLOCK])
        for batch in self._batches:
            batch[-1] = self._runtime.journal.exchanges

    def pull_together(self):
        """Refreshes every replica, of all servers at one moment."""
        self.commit()
        variables = [
            v for v in self._store.variables if v.role is not Role.CLOCK
        ]
        self._set_here.clear()
        ledgers = len(self._refresh.ledgers)
        self._reader.read(
            ("pull", ledgers, tuple(v.ordinal for v in variables)),
            lambda: (self.build_pull(variables, together=True), ()),
        )
        self._together_at = self._runtime.journal.exchanges
        for batch in self._batches:
            batch[-1] = self._together_at

    def versions(self):
        """Updates applied by each server, a list of ints."""
        if not self._committed:
            return [0] * self._store.num_shards
        return [
            int(v) for v in self._traced.call("versions", self._build_versions)
        ]

    def count_from(self, version):
        """Has servers that count fewer updates than `version` go on there."""
        version = tf.constant(version, tf.int64)
        self._traced.call("count from", self._build_count_from, version)

    def _is_committed(self, variable):
        """Whether servers hold a variable."""
        return (
            variable.ordinal is not None
            and variable.ordinal < self._committed
            and not variable.is_over
        )

    def before_read(self, variable):
        """Refreshes lazily kept replicas before one of them is read.

        What is saved is refreshed as a whole, so that parameters and slots
        are of one moment; see `_pulls_to_save`.
        """
        if variable.role is Role.TABLE:
            # There is no replica: servers have to hold it.
            if not self._is_committed(variable):
                self.commit()
            return
        if not self._is_committed(variable):
            return
        evaluations = self._runtime.evaluations
        if evaluations.holds(variable):
            return
        if private_keras_variables.is_saving() and self._pulls_to_save():
            if self._runtime.journal.exchanges != self._together_at:
                self._runtime.local.show_anchor()
                self.pull_together()
                self._runtime.local.after_pull()
            return
        self._refresh_if_lazy(variable)

    def _refresh_if_lazy(self, variable):
        if not _is_lazy(variable):
            return
        evaluations = self._runtime.evaluations
        exchanges = self._runtime.journal.exchanges
        for batch in self._batches:
            first, end, refreshed_at = batch
            if first <= variable.ordinal < end and refreshed_at != exchanges:
                batch[-1] = exchanges
                together = self._store.variables[first:end]
                self._pull(
                    [
                        v
                        for v in together
                        if _is_lazy(v)
                        and not evaluations.holds(v)
                        and v.ordinal not in self._set_here
                    ]
                )

    def _pulls_to_save(self):
        """Whether all replicas are refreshed before any of them is saved.

        Not while an evaluation has other values in place: these are saved.
        With local steps the anchors are, unless they are a look-ahead: only
        the servers have the parameters. In the middle of a period they stay.
        """
        local = self._runtime.local
        if self._runtime.evaluations.has_values:
            return False
        if not local.keeps_own_values:
            return True
        return self._runtime.corrector.uses_lookahead and not local.unpushed()

    def before_write(self, variable):
        """Refreshes lazily kept replicas before one of them is assigned.

        So no read refreshes them before this worker's next exchange: until
        then, what is assigned here alone stays.
        """
        if self.writes_pass or not self._is_committed(variable):
            return
        # Not what saving reads: Keras's code loads, too, and what it has made
        # for that may wait for a chief that waits until it is loaded.
        if not self._runtime.evaluations.holds(variable):
            self._refresh_if_lazy(variable)

    def after_own_write(self, variable):
        """Counts steps on from a counter that was assigned on this worker."""
        if variable.pulled is not None:
            variable.pulled.assign_replica(_of_updates(variable))

    def after_write(self, variable):
        """Passes an eager assignment on to the servers."""
        # As it is here: to read it eagerly would refresh it first.
        own = value = read_replica(variable)
        if variable.pulled is not None:
            value = _of_updates(variable)
            variable.pulled.assign_replica(value)
        if not self._is_committed(variable):
            return
        if self.writes_pass:
            self.has_overwritten |= (
                self._is_chief
                and self.has_joined
                and variable.role in (Role.PARAMETER, Role.STATE)
                and not self._runtime.journal.exchanges
            )
            self._traced.call(
                ("write", variable.ordinal),
                lambda value: self._build_write(variable, value),
                value,
            )
            # Where a server was lost meanwhile, recovery has pulled what the
            # servers held before.
            variable.assign_replica(own)
            if variable.pulled is not None:
                variable.pulled.assign_replica(value)
            return
        self._store.forget_rows(variable)
        if variable.role is Role.STATE:
            self._set_here.add(variable.ordinal)
        if not (self._warned or private_keras_calls.is_in_callback()):
            # Keras's callbacks run on all workers, and the chief's count.
            self._warned = True
            logging.warning(
                "Variable %r was assigned eagerly on a worker that is not the "
                "chief: the servers keep their value, and the replica changes "
                "until this worker pulls it: in the next exchange, if the step "
                "changes the variable.",
                variable.name,
            )

    @contextlib.contextmanager
    def collective_writes(self):
        """Scope in which assignments of any worker are passed on."""
        with self._passing(True):
            yield

    @contextlib.contextmanager
    def own_writes(self):
        """Scope in which assignments stay on this worker."""
        with self._passing(False):
            yield

    @contextlib.contextmanager
    def _passing(self, writes_pass):
        before, self.writes_pass = self.writes_pass, writes_pass
        try:
            yield
        finally:
            self.writes_pass = before

    def stamp_rows(self, table):
        """Makes the server keep the versions of the rows of `table`."""
        key = ("rows", table.ordinal)
        self._traced.call(key, lambda: self._build_stamp_rows(table))

    def build_pull(self, variables, together=False):
        """See `Refresh.build`."""
        return self._refresh.build(variables, together)

    def _pull(self, variables):
        ledgers = len(self._refresh.ledgers)
        key = ("pull", ledgers, tuple(v.ordinal for v in variables))
        self._traced.call(key, lambda: self.build_pull(variables))

    def _build_versions(self):
        versions = [
            self._store.counter("version", shard).read()
            for shard in range(self._store.num_shards)
        ]
        with tf.device(self._store.worker_device):
            return [tf.identity(version) for version in versions]

    def _build_count_from(self, version):
        store = self._store
        for shard, device in enumerate(store.devices):
            with tf.device(device):
                least = tf.identity(version)
            with tf.control_dependencies([least.op]):
                lock = store.lock(shard)
            with tf.control_dependencies([lock.op]), tf.device(device):
                counter = store.counter("version", shard)
                now = tf.maximum(counter.read(), least)
                counted = counter.set(now)
            with tf.control_dependencies([counted]):
                store.unlock(shard, lock)
            with tf.device(store.worker_device):
                store.set_pulled_version(shard, tf.identity(now))

    def _build_stamp_rows(self, table):
        store = self._store
        lock = store.lock(table.shard)
        stamps = store.row_stamps(table)
        with tf.control_dependencies([lock.op]):
            with tf.device(store.devices[table.shard]):
                # What has changed before, nobody has noted.
                version = store.counter("version", table.shard).read()
                first = tf.fill(table.shape[:1], version)
            created = resource_values.build_put_if_missing(stamps, first)
        with tf.control_dependencies([created]):
            store.unlock(table.shard, lock)

    def _stamp_all_rows(self, table):
        """Every worker is to pull all of `table` with its next exchange."""
        store = self._store
        version = store.counter("version", table.shard).read()
        return rows.mark_all(store.row_stamps(table), table, version + 1)

    def _build_write(self, variable, whole):
        store, writes = self._store, {}
        for shard, piece in store.copies_of(variable):
            (value,) = transfer.move(
                [whole if piece is None else piece.of(whole)],
                source=store.worker_device,
                target=store.devices[shard],
            )
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
                    done += self._refresh.note_given(
                        shard, [(variable, piece)], [value]
                    )
                    number, counted = store.build_count_write(shard)
                    done.append(counted)
                    writes.setdefault(shard, []).append(number)
                    if rows.is_stamped(variable):
                        done.append(self._stamp_all_rows(variable))
            with tf.control_dependencies(done):
                store.unlock(shard, lock)
        for shard, numbers in writes.items():
            with tf.device(store.worker_device):
                store.set_pulled_writes(shard, tf.reduce_max(numbers))


def _of_updates(counter):
    """Steps that are in updates, of a step counter that is loaded.

    With the last ones the saved worker has only accumulated gradients.
    """
    count = read_replica(counter)
    optimizer = counter.optimizer and counter.optimizer()
    if optimizer is None:
        return count
    _, batches = private_keras.counter_of(optimizer)
    return count - count % batches
