"""First values of a model's variables on servers.

The chief gives each new variable its first value on the servers, and leaves
word of what it was. The other workers, and a chief that comes back, compare
that with what they have: two workers with different models do not train
together.
"""

import tensorflow as tf

from tfdist.cluster import reports
from tfdist.runtime.variables import copies
from tfdist.runtime.variables import table_values
from tfdist.runtime.variables.variables import Role
from tfdist.saved_state import ModelMismatchError


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

    def held(self):
        """Number of variables that the servers hold, an int."""
        return int(self._traced.call("held", self._build_held))

    def held_and_alike(self, number):
        """Number of variables that are held, 0 for less than `number`.

        Compares those that are: who waits for a variable that the chief's
        model does not have shall hear of the first that differs.

        Raises:
          ModelMismatchError: The chief's variables are others.
        """
        held = self.held()
        self.check(min(held, number))
        return held if held >= number else 0

    def check(self, number):
        """Compares the first `number` variables with those of the servers.

        Raises:
          ModelMismatchError: The chief's variables are others.
        """
        unchecked = self._store.variables[self._checked : number]
        if unchecked:
            self._compare(unchecked)
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

    def fill(self, variables, end):
        """Gives first values to what some server does not hold.

        Args:
          variables: List of `ReplicaVariable`, in the order of the model.
          end: How many variables servers hold then, with those before.
        """
        self._traced.call(
            ("fill", end), lambda: self._build_fill(variables, end)
        )

    # For a first server that was started again.

    def build_lacks_word(self, variables, end):
        """Builds: whether the first server does not know that it holds them.

        Args:
          variables: The first variables of the model, a list.
          end: How many they are, with those that are gone.

        Returns:
          A scalar bool tensor on the first server.
        """
        held = self._store.counter("held", 0).read_or_zero()
        with tf.device(self._store.devices[0]):
            known = [
                tf.raw_ops.VarIsInitializedOp(
                    resource=self._signature_handle(variable)
                )
                for variable in variables
            ]
            known = tf.convert_to_tensor(known, tf.bool)
            return ~tf.reduce_all(known) | (held < end)

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
        name = f"signature/{variable.ordinal}"
        return self._store.resource(0, name, tf.string, [])

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

    def _build_fill(self, variables, end):
        store = self._store
        done = []
        for shard in range(store.num_shards):
            handles, values = self._first_values_on(shard, variables)
            filled = [
                copies.build_put_if_missing(store, shard, handle, value)
                for handle, value in zip(handles, values, strict=True)
            ]
            filled += [
                table_values.build_fill(store, table, shard)
                for table in _tables(variables)
            ]
            version = store.counter("version", shard)
            with tf.control_dependencies(filled):
                with tf.device(store.devices[shard]):
                    known = tf.raw_ops.VarIsInitializedOp(
                        resource=version.handle
                    )

                    def begin(shard=shard):
                        with tf.control_dependencies(
                            self._begin_counting(shard)
                        ):
                            return tf.constant(True)

                    begun = tf.cond(known, lambda: False, begin)
                    done.append(begun)
            # A snapshot may be from before they were known.
            with tf.control_dependencies([begun]):
                done += self._gradient_counts.build_missing(shard)
        done += self._put_missing_signatures(variables)
        self._tell_held(end, done)

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
                copies.build_put_if_missing(
                    store, 0, self._signature_handle(variable), mine
                )
            )
        return done

    def _tell_held(self, number, after):
        """Builds what tells the others how many variables servers hold."""
        with tf.device(self._store.devices[0]), tf.control_dependencies(after):
            return self._store.counter("held", 0).set(number)

    def _compare(self, variables):
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
        if over:
            self._unused_models.give_up(over)
        for variable, there in zip(variables, texts, strict=True):
            if variable.is_over:
                continue
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


def _tables(variables):
    return [v for v in variables if v.role is Role.TABLE]


def signature(variable):
    """Name, role, type and shape of a variable, a str."""
    name = variable.name.split(":")[0].replace(" ", "_")
    shape = variable.shape.as_list()
    pieces = f" in {len(variable.pieces)} pieces" if variable.pieces else ""
    kind = f"{variable.role.value} {variable.dtype.name}"
    return f"{name} {kind} {shape}{pieces}"
