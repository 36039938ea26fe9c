"""The state of a run, read at one moment and put back.

By the order in which variables are made, and whole: another number of servers,
of workers or another `variable_partitioner` can take it up.
"""

import contextlib
import io

from absl import logging
import tensorflow as tf

from tfdist import saved_state
from tfdist import variable_names
from tfdist.runtime.checkpoint import fitting_state
from tfdist.runtime.checkpoint import local_state
from tfdist.runtime.checkpoint import server_values
from tfdist.runtime.checkpoint import table_chunks
from tfdist.runtime.corrections import saved_slots
from tfdist.runtime.variables.server_scope import read_replica
from tfdist.runtime.variables.variables import Role
from tfdist.saved_state import SavedState

# Of which the servers hold what counts; of others the worker does.
_SERVED = (Role.PARAMETER, Role.SLOT, Role.STATE, Role.ITERATIONS)


class TrainingState(tf.train.experimental.PythonState):
    """Reads the state of one strategy, and puts one back.

    Can be part of a `tf.train.Checkpoint`: there it is what Keras does not
    know of, beside the model and its optimizer.

    Args:
      runtime: The `Runtime`.

    Attributes:
      is_on_servers: Whether this worker has put a state back on servers.
    """

    def __init__(
        self, runtime, *, num_workers=1, correction=None, local_steps=None
    ):
        super().__init__()
        self._runtime = runtime
        self._store = runtime.store
        self._num_workers = num_workers
        self._methods = {
            "correction": repr(correction),
            "local_steps": repr(local_steps),
        }
        self._served = server_values.ServerValues(runtime.store, runtime.marks)
        self._tables = table_chunks.TableChunks(runtime.store)
        # What was put back last; variables that come later look here.
        self._saved = None
        self.is_on_servers = False
        # Ordinals of what has been put back: a user may have set it since.
        self._placed = set()
        self._local_steps = local_state.ResumedSteps({}, False)

    # Reading.

    def read(self, everything=True):
        """Reads the state, of all servers at one moment.

        Replicas and training stay as they are. What belongs to one worker
        (learning rate, random streams, gradient accumulators, own weights) is
        this worker's.

        Args:
          everything: Whether variables of models and their optimizers are
            part of it; else only what Keras does not know of.

        Returns:
          A `SavedState`.
        """
        store = self._store
        self._runtime.local.show_anchor()
        variables = [
            v
            for v in store.variables
            if (everything or v.is_own) and not fitting_state.is_measured(v)
        ]
        tables = [
            v
            for v in variables
            if v.role is Role.TABLE and v.ordinal < self._runtime.committed
        ]
        variables = [v for v in variables if v.role is not Role.TABLE]
        served = [
            v
            for v in variables
            if v.role in _SERVED and v.ordinal < self._runtime.committed
        ]
        arrays, updates = {}, 0
        if self._runtime.committed:
            values, slots, updates = self._served.read(
                served, self._runtime.corrector
            )
            arrays = {
                _name(variable): value
                for variable, value in zip(served, values, strict=True)
            }
            arrays.update(slots)
            arrays.update(self._tables.arrays(tables))
        # Not yet on servers, or the worker's own.
        for variable in variables:
            arrays.setdefault(_name(variable), read_replica(variable).numpy())
        for number, variable in store.locals.items():
            # TensorFlow's checkpoints leave out Keras's random streams.
            if everything or variable_names.is_seed(variable.name):
                arrays[f"local/{number}"] = read_replica(variable).numpy()
        if everything:
            arrays.update(self._ahead())
        arrays.update(saved_slots.of_worker(self._runtime.corrector))
        arrays.update(local_state.read(self._runtime.local))
        if self._saved is not None:
            # What has not been made use of yet is not lost.
            arrays = {**self._not_used(), **arrays}
        return SavedState(self._header(updates), arrays)

    def _not_used(self):
        kinds = (saved_slots.ON_SERVERS, saved_slots.ON_WORKER)
        slots = {
            name: value
            for name, value in self._saved.arrays.items()
            if name.startswith(kinds)
        }
        return {**slots, **self._local_steps.left(self._runtime.local)}

    def _ahead(self):
        """Steps of this worker that were not exchanged yet, by counter."""
        counters = [
            v for v in self._store.variables if v.role is Role.ITERATIONS
        ]
        return {
            f"ahead/{v.ordinal}": read_replica(v).numpy()
            - v.pulled.read_value().numpy()
            for v in counters
        }

    def _header(self, updates):
        store = self._store
        return {
            **self._methods,
            "num_workers": self._num_workers,
            "updates": updates,
            "variables": fitting_state.signatures(store.variables),
            "locals": fitting_state.signatures(store.locals),
        }

    # Putting back.

    def restore(self, saved):
        """Puts a state back, now and as variables come to be.

        The chief puts back what is on servers, unless they hold a run already:
        then it came back itself, and they have what is newer; but not if they
        have begun with older snapshots, or if its script has set weights since.
        All others get that from the servers. Each takes what belongs to one
        worker, but for random streams, which are their own, and for what stands
        for examples of the first worker (gradient accumulators, own weights).

        Args:
          saved: A `SavedState`.

        Raises:
          ModelMismatchError: It is of other variables.
        """
        runtime, is_chief = self._runtime, self._store.is_chief
        self._restore(saved, is_chief and not runtime.finds_later_run())
        if runtime.committed and runtime.synchronizer.may_lack:
            self.put_over_snapshots([])

    @contextlib.contextmanager
    def loading(self):
        """Scope in which a callback loads weights that this program has saved.

        A worker that has come back to a run takes over what servers hold, which
        is later; unless they have lost some of it, and nobody had it.
        """
        runtime = self._runtime
        # What is not committed is taken from the servers when it is.
        is_later = runtime.committed and runtime.finds_later_run()
        if not is_later:
            yield
            return
        with runtime.synchronizer.own_writes():
            yield
        # In `fit` the chief may wait until this worker has loaded.
        runtime.pull(only_committed=True)

    def _restore(self, saved, on_servers):
        store = self._store
        self._saved = fitting_state.of(saved, store, self._methods)
        self.is_on_servers = on_servers
        self._placed = set()
        self._local_steps = local_state.ResumedSteps(
            self._saved.arrays,
            # What stands for examples is the first worker's.
            on_servers and not store.worker_id,
        )
        for number, _ in store.locals.items():
            self._put_local(number)
        if self.is_on_servers:
            for variable in store.variables:
                self._put(variable)
            known = store.variables[: self._runtime.committed]
            if known:
                self._write_slots(known)
                self._put_ahead(known)
        else:
            self._put_clocks(store.variables[: self._runtime.committed])
        saved_slots.put_on_worker(self._runtime.corrector, self._saved.arrays)
        if self.is_on_servers and self._runtime.committed:
            if self._runtime.synchronizer.may_lack:
                # Last: a snapshot in between is older than what was saved.
                self._runtime.synchronizer.count_from(saved.header["updates"])
            self._runtime.show_ahead()
        self.resume_local_steps()

    def _array(self, name):
        return None if self._saved is None else self._saved.arrays.get(name)

    def _put(self, variable):
        if variable.role is Role.TABLE:
            if variable.ordinal not in self._placed:
                self._placed.add(variable.ordinal)
                if self._runtime.committed:
                    # Not in the middle of what others still train.
                    self._runtime.before_eager_write(variable)
                more = self._more_updates() if variable.holds_updates else 0
                self._tables.put(variable, self._saved.arrays, more)
            return
        value = self._array(_name(variable))
        if value is None or fitting_state.is_measured(variable):
            return
        if variable.ordinal not in self._placed:
            self._placed.add(variable.ordinal)
            variable.assign(tf.constant(value, variable.dtype))

    def _put_clocks(self, variables):
        """Puts back the steps that each worker goes on counting itself."""
        for variable in variables:
            value = self._array(_name(variable))
            is_new = variable.ordinal not in self._placed
            if variable.role is Role.CLOCK and is_new and value is not None:
                self._placed.add(variable.ordinal)
                variable.assign_replica(tf.constant(value, variable.dtype))

    def _more_updates(self):
        """Updates that the servers have counted since those of the file.

        Those that hold a model already go on counting from where they are.
        """
        if not self._runtime.committed:
            return 0
        more = max(self._runtime.updates_applied())
        more -= self._saved.header["updates"]
        # See `_restore`.
        return max(more, 0) if self._runtime.synchronizer.may_lack else more

    def _put_local(self, number):
        variable = self._store.locals[number]
        value = self._array(f"local/{number}")
        if value is None:
            return
        is_sum = variable_names.is_accumulator(variable.name)
        if self._store.worker_id and is_sum:
            return
        variable.assign_replica(tf.constant(value, variable.dtype))
        if variable_names.is_seed(variable.name):
            self._store.spread_seed(variable)

    def _put_ahead(self, variables):
        for variable in variables:
            ahead = self._array(f"ahead/{variable.ordinal}")
            if ahead is not None and variable.role is Role.ITERATIONS:
                value = variable.pulled.read_value() + ahead
                variable.assign_replica(value)

    # What callbacks that save and resume ask for.

    def end_fit(self, model):
        """Called when a call of `fit` ends, perhaps without a step.

        In the run that has saved there was one: what is made from now on, as
        by `compile`, has the same numbers here.

        Args:
          model: The `keras.Model`.
        """
        if getattr(model.optimizer, "built", False):
            variables = [v.value for v in model.trainable_variables]
            # As a step: an optimizer says of slots what they are of.
            with model.distribute_strategy.scope():
                self._runtime.local.own_parts(model.optimizer, variables)

    def numbers_of(self, variables):
        """Positions of variables among those on servers, ints or None.

        The same on all workers, and in all runs of a script.
        """
        return [getattr(one, "ordinal", None) for one in variables]

    def arrays_of(self, variables, optimizers):
        """See `fitting_state.arrays_of`."""
        return fitting_state.arrays_of(self._runtime, variables, optimizers)

    @property
    def has_come_back(self):
        """Whether servers hold a run that this process has not trained in."""
        return self._runtime.has_come_back()

    @property
    def fit_number(self):
        """Number of the call of `fit` under way; 0 where none is in common."""
        return self._runtime.chief_decisions.fit_number

    @property
    def is_passed(self):
        """Whether the others had ended the call of `fit` under way before."""
        return self._runtime.chief_decisions.is_passed

    @property
    def takes_no_step(self):
        """Whether that is so, or a former process has made all its steps."""
        return self._runtime.chief_decisions.takes_no_step

    def look_again(self):
        """Called when a callback has looked for its file of this call."""
        self._runtime.chief_decisions.look_again()

    def await_readers(self):
        """Waits, where nothing else has, until others have read such files."""
        self._runtime.chief_decisions.await_readers()

    def others_have_later_call(self):
        """Whether another worker has made a call of `fit` after that one."""
        return self._runtime.chief_decisions.others_have_later_call()

    def wait_for_word(self, find):
        """Waits for what the chief tells before its first step in `fit`.

        Args:
          find: Callable without arguments that returns it, or None.

        Returns:
          It; None if it is not there, though the chief has begun or is gone.
        """
        return self._runtime.chief_decisions.wait_for_word(find)

    # As part of a `tf.train.Checkpoint`.

    def serialize(self):
        """Returns the state that Keras does not know of, bytes."""
        file = io.BytesIO()
        saved_state.write(self.read(everything=False), file)
        return file.getvalue()

    def deserialize(self, string_value):
        """Puts back what `serialize` gave.

        Args:
          string_value: Bytes.
        """
        self.restore(saved_state.read(io.BytesIO(string_value)))

    # As variables come to be.

    @property
    def first_version(self):
        """Updates that servers begin to count with, an int."""
        return self._saved.header["updates"] if self.is_on_servers else 0

    def _write_slots(self, variables):
        saved_slots.write(
            self._store,
            self._runtime.corrector,
            variables,
            self._saved,
            self._num_workers,
        )

    def local_was_made(self):
        """Called when a variable has been added to the store's `locals`."""
        self._put_local(len(self._store.locals) - 1)

    def before_initialization(self, variables):
        """Called before this worker gives servers first values."""
        if not self.is_on_servers:
            return
        for variable in variables:
            self._put(variable)
        self._write_slots(variables)

    def after_initialization(self, variables, begins):
        """Called when it has; `begins`: to the first variables of all."""
        if not self.is_on_servers:
            return
        self._put_ahead(variables)
        for shard in range(self._store.num_shards):
            version = tf.constant(self.first_version, tf.int64)
            if begins:
                self._store.set_pulled_version(shard, version)

    def after_taking_over(self, variables):
        """Called when it has taken over what servers hold of new variables."""
        if not self.is_on_servers:
            self._put_clocks(variables)

    def servers_lacked(self, variables):
        """Called when this worker has added what servers had lost.

        A whole state that was saved is worth more than some of a later one.
        Of a process that has trained since, it is that of a later model.

        Args:
          variables: List of the variables some of which they lacked.
        """
        if self._saved is None or not self._store.is_chief:
            return
        has_trained = self._runtime.journal.exchanges > 0
        logging.warning(
            "%s put back as it was saved at update %d.",
            f"{len(variables)} variables, some of which servers lacked, are"
            if has_trained
            else "All of the model and its optimizer is",
            self._saved.header["updates"],
        )
        if has_trained:
            self._put_again(variables)
        else:
            self._restore(self._saved, on_servers=True)

    def put_over_snapshots(self, variables):
        """Called where nobody was there to restore servers.

        When all of a cluster is started again, a state may have been saved
        after their snapshots.

        Args:
          variables: List of the variables that this worker has taken over.
        """
        if self._saved is None or not self._store.is_chief:
            return
        if self.is_on_servers:
            # The others were put back when they were made.
            self._put_again(variables)
            return
        held = max(self._runtime.updates_applied())
        updates = self._saved.header["updates"]
        if held < updates and fitting_state.is_of_model(self._saved):
            logging.warning(
                "Servers have begun with snapshots, of update %d. All of the "
                "model and its optimizer is put back as it was saved later, at "
                "update %d.",
                held,
                updates,
            )
            self._restore(self._saved, on_servers=True)

    def _put_again(self, variables):
        self._placed -= {v.ordinal for v in variables}
        for variable in variables:
            self._put(variable)
        self._write_slots(variables)
        self._put_ahead(variables)

    def slot_of_worker(self, key):
        """Returns a saved slot of a correction on this worker, or None."""
        return self._array(key)

    def look_ahead(self):
        """Shows the look-ahead before a first step that runs eagerly.

        It computes gradients before its optimizer begins.
        """
        if self.is_on_servers and self._runtime.corrector.uses_lookahead:
            known = self._store.variables[: self._runtime.committed]
            saved_slots.prepare(self._runtime, known, self._saved)

    def show_ahead(self):
        """Called when a correction has got its slots on servers."""
        if self.is_on_servers:
            self._runtime.show_ahead()

    def resume_local_steps(self):
        """Takes up the local steps of each optimizer once it has begun."""
        self._local_steps.take_up(self._runtime.local)

    def resume_own_weights(self):
        """Puts back own weights before an eager step; see `ResumedSteps`."""
        return self._local_steps.show_own(
            self._runtime.local, self._store.variables
        )


def _name(variable):
    return f"variable/{variable.ordinal}"
