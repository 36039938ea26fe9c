"""First values of a model's variables on servers.

The chief gives each new variable its first value on the servers, and leaves
word of what it was. The other workers, and a chief that comes back, compare
that with what they have: two workers with different models do not train
together.
"""

import tensorflow as tf

from tfdist.cluster import reports
from tfdist.cluster import resource_values
from tfdist.runtime.variables import copies
from tfdist.runtime.variables import table_values
from tfdist.runtime.variables import transfer
from tfdist.runtime.variables.variables import Role
from tfdist.runtime.variables.variables import plain_name
from tfdist.saved_state import ModelMismatchError

_SNAPSHOT_HINT = (
    " Servers have begun with a snapshot; if that is of an earlier run with "
    "another model, remove `snapshot_dir` and start again."
)


class FirstValues:
    """One worker's view of it.

    Args:
      store: The `ParameterStore`.
      traced: The `Traced` that calls what is built here.
      state: The `TrainingState`.
      gradient_counts: The `GradientCounts`.
      unused_models: The `UnusedModels`.
    """

    def __init__(self, store, traced, state, gradient_counts, unused_models):
        self._store = store
        self._traced = traced
        self._state = state
        self._gradient_counts = gradient_counts
        self._unused_models = unused_models
        self._checked = 0
        # By ordinal: signatures here and there that differ; not of slots.
        self._compared = {}

    def held(self):
        """Number of variables that the servers hold, an int."""
        return int(self._traced.call("held", self._build_held))

    def held_and_alike(self, number, may_lack=False):
        """Number of variables that are held, 0 for less than `number`.

        Compares those that are: who waits for a variable that the chief's
        model does not have shall hear of the first that differs.

        Raises:
          ModelMismatchError: The chief's variables are others.
        """
        held = self.held()
        self.check(min(held, number), may_lack)
        return held if held >= number else 0

    def check(self, number, may_lack=False):
        """Compares the first `number` variables with those of the servers.

        Args:
          number: How many.
          may_lack: Whether servers may lack some that workers have not freed.

        Raises:
          ModelMismatchError: The chief's variables are others.
        """
        unchecked = self._store.variables[self._checked : number]
        if unchecked:
            self._compare(unchecked, may_lack)
        if not may_lack:
            self._checked = max(self._checked, number)

    def give(self, variables, end, begins):
        """Gives variables their first values, on all servers.

        Args:
          variables: List of `ReplicaVariable`, in the order of the model.
          end: How many variables servers hold then, with those before.
          begins: Whether there are none before.
        """
        self._traced.call(
            ("give", end, begins),
            lambda: self._build_give(variables, end, begins),
        )

    # For servers that were started again.

    def complete(self, variables, end):
        """Puts onto all servers what they lack of `variables`.

        Args:
          variables: List of `ReplicaVariable`, in the order of the model.
          end: How many variables servers hold then, with those before.

        Returns:
          How many variables and the like that were, but for what is by
          worker.
        """
        # The first server comes last: it tells others of what all hold.
        return sum(
            self.complete_on(shard, variables, end)
            for shard in reversed(range(self._store.num_shards))
        )

    def complete_on(self, shard, variables, end):
        """Puts onto one server what it lacks of `variables`.

        Under its lock: others may train already. What is there stays.

        Args:
          shard: Number of the server.
          variables: See `complete`.
          end: See `complete`.

        Returns:
          How many variables and the like that were, but for what is by
          worker.
        """
        if not self._lacks_on(shard, variables, end):
            return 0
        key = (shard, tuple(v.ordinal for v in variables), end)
        return int(
            self._traced.call(
                ("complete", *key),
                lambda: self._build_complete(shard, variables, end),
            )
        )

    def lacks(self, first, end):
        """Whether any server lacks some variables that workers have not freed.

        Args:
          first: Number of variables before them.
          end: See `complete`.
        """
        # Others may have freed it: that shows when they have made another.
        # The chief may be about to complete it.
        if self._signed(end):
            self.check(end, may_lack=True)
        variables = self._store.variables[first:end]
        shards = range(self._store.num_shards)
        return any(self._lacks_on(shard, variables, end) for shard in shards)

    def _lacks_on(self, shard, variables, end):
        return bool(
            self._traced.call(
                ("lacks", shard, tuple(v.ordinal for v in variables), end),
                lambda: self._build_lacks(shard, variables, end),
            )
        )

    def build_leave_word(self, variables, end):
        """Builds: the first server knows that it holds them, or more.

        Args:
          variables: The first variables of the model, a list.
          end: How many they are, with those that are gone.

        Returns:
          The operation after which it does.
        """
        done = self._put_missing_signatures(variables)
        held = self._store.counter("held", 0).read_or_zero()
        with tf.device(self._store.devices[0]):
            number = tf.maximum(held, end)
        return self._tell_held(number, done)

    def _build_held(self):
        number = self._store.counter("held", 0).read_or_zero()
        with tf.device(self._store.worker_device):
            return tf.identity(number)

    def _signature_handle(self, variable):
        return self._signature_of(variable.ordinal)

    def _signature_of(self, ordinal):
        name = f"signature/{ordinal}"
        return self._store.resource(0, name, tf.string, [])

    def _signed(self, first):
        """One more than the last ordinal with a signature, 0 for none.

        Args:
          first: The ordinal to look from.
        """
        ordinals = range(first, self.held())

        def build():
            with tf.device(self._store.devices[0]):
                known = _are_initialized(map(self._signature_of, ordinals))
            with tf.device(self._store.worker_device):
                return tf.identity(known)

        known = self._traced.call(("signed", ordinals), build).numpy()
        return int(max((first + 1 + known.nonzero()[0]), default=0))

    def _build_give(self, variables, end, begins):
        store = self._store
        done = []
        for shard in range(store.num_shards):
            handles, values = self._first_values_on(shard, variables)
            with tf.device(store.devices[shard]):
                done += [
                    tf.raw_ops.AssignVariableOp(resource=handle, value=value)
                    for handle, value in zip(handles, values, strict=True)
                ]
            done += [
                table_values.build_fill(store, table, shard)
                for table in _tables(variables)
            ]
            if begins:
                # A snapshot is made of what is counted, and is to be whole.
                with (
                    tf.device(store.devices[shard]),
                    tf.control_dependencies(done),
                ):
                    done += self._begin_counting(shard)
        with tf.device(store.devices[0]):
            done += [
                tf.raw_ops.AssignVariableOp(
                    resource=self._signature_handle(variable),
                    value=tf.constant(signature(variable)),
                )
                for variable in variables
            ]
        self._tell_held(end, done)

    def _build_lacks(self, shard, variables, end):
        missing = self._build_missing(shard, variables)
        with tf.device(self._store.devices[shard]):
            lacks = tf.math.count_nonzero(missing) > 0
        if not shard:
            lacks |= self._build_lacks_word(variables, end)
        with tf.device(self._store.worker_device):
            return tf.identity(lacks)

    def _build_lacks_word(self, variables, end):
        """Builds: the first server does not know that it holds them."""
        held = self._store.counter("held", 0).read_or_zero()
        with tf.device(self._store.devices[0]):
            known = _are_initialized(map(self._signature_handle, variables))
            return ~tf.reduce_all(known) | (held < end)

    def _build_missing(self, shard, variables, by_worker=True):
        """Builds: of all that a server is to hold, what it has not.

        Args:
          shard: Number of the server.
          variables: List of `ReplicaVariable`.
          by_worker: Whether what is by worker counts; a snapshot of another
            number of workers has none, and lacks nothing else.

        Returns:
          A bool vector.
        """
        store = self._store
        handles = [
            store.handle(variable, shard, piece)
            for variable, piece in copies.held_by(store, shard, variables)
            if by_worker or not variable.is_by_worker
        ]
        handles += [
            table_values.held_handle(store, table, shard)
            for table in _tables(variables)
        ]
        if by_worker:
            handles += self._gradient_counts.handles(shard)
        handles.append(store.counter("version", shard).handle)
        with tf.device(store.devices[shard]):
            return ~_are_initialized(handles)

    def _build_complete(self, shard, variables, end):
        store = self._store
        held = copies.held_by(store, shard, variables)
        moved = transfer.move(
            [
                *copies.values_here(held),
                *self._gradient_counts.pulled(shard),
            ],
            source=store.worker_device,
            target=store.devices[shard],
        )
        handles = [store.handle(v, shard, piece) for v, piece in held]
        handles += self._gradient_counts.handles(shard)
        with tf.control_dependencies([value.op for value in moved]):
            lock = store.lock(shard)
        with tf.control_dependencies([lock.op]):
            missing = self._build_missing(shard, variables, by_worker=False)
        with tf.control_dependencies([missing.op]):
            done = [
                resource_values.build_put_if_missing(handle, value)
                for handle, value in zip(handles, moved, strict=True)
            ]
            if tables := _tables(variables):
                version = store.counter("version", shard).read_or_zero()
                with tf.device(store.devices[shard]):
                    done += table_values.build_fill_lost(
                        store, tables, shard, version
                    )
            if not shard:
                done.append(self.build_leave_word(variables, end))
        # A snapshot is made of what is counted, and is to be whole.
        with tf.control_dependencies(done):
            with tf.device(store.devices[shard]):
                first = tf.constant(self._state.first_version, tf.int64)
            version = store.counter("version", shard).handle
            begun = resource_values.build_put_if_missing(version, first)
        with tf.control_dependencies([begun]):
            store.unlock(shard, lock)
        with tf.device(store.devices[shard]):
            number = tf.math.count_nonzero(missing)
        with tf.device(store.worker_device):
            return tf.identity(number)

    def _begin_counting(self, shard):
        """Builds the server's version, and what it counts of gradients."""
        version = self._store.counter("version", shard)
        done = [version.set(self._state.first_version)]
        return done + self._gradient_counts.clear(shard)

    def _first_values_on(self, shard, variables):
        """Handles of what a server is to hold, and this worker's values."""
        held = copies.held_by(self._store, shard, variables)
        handles = [self._store.handle(v, shard, piece) for v, piece in held]
        return handles, copies.build_send(self._store, shard, held)

    def _put_missing_signatures(self, variables):
        store = self._store
        done = []
        for variable in variables:
            with tf.device(store.devices[0]):
                mine = tf.constant(signature(variable))
            done.append(
                resource_values.build_put_if_missing(
                    self._signature_handle(variable), mine
                )
            )
        return done

    def _tell_held(self, number, after):
        """Builds what tells the others how many variables servers hold."""
        with tf.device(self._store.devices[0]), tf.control_dependencies(after):
            return self._store.counter("held", 0).set(number)

    def _compare(self, variables, may_lack):
        store = self._store

        def build():
            with tf.device(store.devices[0]):
                texts = reports.build_texts(
                    [self._signature_handle(v) for v in variables]
                )
            with tf.device(store.worker_device):
                return tf.identity(texts)

        key = ("signatures", tuple(v.ordinal for v in variables))
        texts = self._traced.call(key, build).numpy()
        over = [v for v, t in zip(variables, texts, strict=True) if not t]
        if over and may_lack:
            # A snapshot is of a beginning of what there was: what it has
            # nothing after is missing, and was not freed.
            number = self._signed(over[0].ordinal)
            over = [v for v in over if v.ordinal < number]
        if over:
            self._unused_models.give_up(over)
        for variable, there in zip(variables, texts, strict=True):
            if not there:
                continue
            mine, theirs = signature(variable), there.decode()
            if _meaning(mine) != _meaning(theirs):
                hint = _SNAPSHOT_HINT if may_lack else ""
                raise ModelMismatchError(
                    "This worker's model differs from the chief's. First "
                    f"difference, variable {variable.ordinal}: here {mine}; "
                    f"there {theirs}. All workers have to build the same "
                    f"model and optimizer in the same order.{hint}"
                )
            if variable.role is not Role.SLOT and mine != theirs:
                self._compared[variable.ordinal] = mine, theirs
        _check_order(self._compared)


def _check_order(compared):
    """Refuses variables that have the names of the chief's in another order.

    Names may differ where models do not (see `_meaning`), but the same ones
    belong to the same layers. They come in another order if two workers first
    trace different steps of a model that is built in its first step.

    Args:
      compared: Dict of ordinals to two signatures: this worker's and the
        chief's.
    """
    mine, theirs = [[pair[n] for pair in compared.values()] for n in (0, 1)]
    if mine == theirs or sorted(mine) != sorted(theirs):
        return
    first = next(n for n, (one, other) in compared.items() if one != other)
    one, other = compared[first]
    raise ModelMismatchError(
        "This worker builds its layers in another order than the chief. First "
        f"difference, variable {first}: here {one}; there {other}. A model "
        "with a `train_step` of its own is built by the first step that calls "
        "its layers: call or evaluate it before `fit` on all workers or on "
        "none, or build its layers in the same order on all."
    )


def _are_initialized(handles):
    """Builds, in the scope's device: which have a value, a bool vector."""
    known = [tf.raw_ops.VarIsInitializedOp(resource=h) for h in handles]
    # There may be none.
    return tf.convert_to_tensor(known, tf.bool)


def _tables(variables):
    return [v for v in variables if v.role is Role.TABLE]


def _meaning(signed):
    """Returns the part of a signature that is the same on all workers, a tuple.

    Keras numbers layers by what the process made before: names may differ
    where models do not. Slots of one shape differ by their names alone.
    """
    name, meaning = signed.split(" ", 1)
    is_slot = meaning.startswith(f"{Role.SLOT.value} ")
    return plain_name(name) if is_slot else "", meaning


def signature(variable):
    """Name, role, type and shape of a variable, a str."""
    name = variable.name.split(":")[0].replace(" ", "_")
    shape = variable.shape.as_list()[int(variable.is_by_worker) :]
    pieces = f" in {len(variable.pieces)} pieces" if variable.pieces else ""
    kind = f"{variable.role.value} {variable.dtype.name}"
    return f"{name} {kind} {shape}{pieces}"
