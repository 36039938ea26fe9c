"""The composition of a strategy: what it holds, and a part for each axis.

An axis that a strategy does not use has a part, too, which does what is done
without it (`NoRecovery`, `EveryStep`, ...): nobody asks whether there is one.
"""

from collections.abc import Callable
import dataclasses
from typing import Any

import tensorflow as tf

from tfdist import private_tensorflow
from tfdist import running_fit
from tfdist.cluster import waiting
from tfdist.null_methods import nothing
from tfdist.runtime.checkpoint import training_state
from tfdist.runtime.coordination import no_coordination
from tfdist.runtime.corrections import no_correction
from tfdist.runtime.exchange import exchange_markers
from tfdist.runtime.exchange import gradient_counts
from tfdist.runtime.exchange import journal
from tfdist.runtime.exchange import nonfinite
from tfdist.runtime.exchange import portion_progress
from tfdist.runtime.keras_hooks import evaluations
from tfdist.runtime.keras_hooks import own_decisions
from tfdist.runtime.keras_hooks import queued_work
from tfdist.runtime.local_steps import every_step
from tfdist.runtime.recovery import no_recovery
from tfdist.runtime.replicas import replica_sync
from tfdist.runtime.variables import server_functions
from tfdist.runtime.variables import store
from tfdist.runtime.variables import unused_models
from tfdist.runtime.variables.variables import Role
from tfdist.saving import files as files_lib
from tfdist.saving import refusals

# Of a part, of the `Runtime` that it is made for.
Factory = Callable[[Any], Any]


@dataclasses.dataclass(frozen=True)
class Parts:
    """Factories of the parts of a `Runtime`: callables of the `Runtime`.

    Each hands its part what that needs. In the order in which they are called;
    each may use those before it, and `store`, `journal`. The defaults are of
    axes that are not used.

    Attributes:
      marks: A `ExchangeMarkers`.
      batch_progress: A `PortionProgress`.
      state: A `TrainingState`.
      unused_models: An `UnusedModels`.
      nonfinite: A `Nonfinite`.
      corrector: A `Corrector`.
      gradient_counts: A `GradientCounts`.
      coordination: A `Coordination`.
      local: A `Local`.
      recovery: A `Recovery`.
      server_functions: A `ServerFunctions`.
      chief_decisions: A `ChiefDecisions`.
      evaluations: An `OwnEvaluations`.
      work: A `QueuedWork`.
    """

    marks: Factory = lambda _: exchange_markers.NoMarkers()
    batch_progress: Factory = lambda _: portion_progress.NoProgress()
    state: Factory = training_state.TrainingState
    unused_models: Factory = unused_models.UnusedModels
    nonfinite: Factory = lambda made: nonfinite.Nonfinite(
        made.store, choice="ignore", worker=""
    )
    corrector: Factory = lambda _: no_correction.NoCorrector()
    gradient_counts: Factory = lambda _: gradient_counts.NoGradientCounts()
    coordination: Factory = lambda made: no_coordination.NoCoordination(
        made.gradient_counts, made.journal
    )
    local: Factory = every_step.EveryStep
    recovery: Factory = lambda made: no_recovery.NoRecovery(
        made.store.num_shards
    )
    server_functions: Factory = lambda _: server_functions.NoServerFunctions()
    chief_decisions: Factory = lambda _: own_decisions.OwnDecisions()
    evaluations: Factory = lambda _: evaluations.SharedEvaluations()
    work: Factory = lambda _: queued_work.NoQueuedWork()


class Runtime:
    """The execution of one strategy on this process.

    Args:
      parts: `Parts`.
      timeout: Seconds to wait for the chief's variables.
      files: Which files this task writes, of `files.of`.
      **where: Those of `ParameterStore`.

    Attributes:
      store: The `ParameterStore`: what servers and this worker hold.
    """

    def __init__(
        self,
        parts=None,
        *,
        timeout,
        files=None,
        **where,
    ):
        self.files = files or files_lib.Unshared()
        # Calls of `fit` on this worker, and their numbers.
        self.fits = 0
        self.call_numbers = running_fit.CallNumbers()
        # Training steps, and calls of `fit`, at the last end of training.
        self._settled_at = (0, 0)
        # How many shares the data of the last `fit` was divided into; None
        # where each worker has all that it is given.
        self.data_shares = None
        # The strategy's creator of variables, for `variable_scope`.
        self._creator = None
        self.store = store.ParameterStore(self, **where)
        self.journal = journal.Journal(self.store)
        parts = parts or Parts()
        self.marks = parts.marks(self)
        self.batch_progress = parts.batch_progress(self)
        self.state = parts.state(self)
        self.unused_models = parts.unused_models(self)
        self.nonfinite = parts.nonfinite(self)
        self.corrector = parts.corrector(self)
        self.gradient_counts = parts.gradient_counts(self)
        self.coordination = parts.coordination(self)
        self.local = parts.local(self)
        self.synchronizer = replica_sync.Synchronizer(
            self, is_chief=self.store.is_chief, timeout=timeout
        )
        self.recovery = parts.recovery(self)
        self.server_functions = parts.server_functions(self)
        self.chief_decisions = parts.chief_decisions(self)
        self.evaluations = parts.evaluations(self)
        self.work = parts.work(self)

    # Variables.

    def create_with(self, creator):
        """Takes the strategy's creator of variables."""
        self._creator = creator

    def variable_scope(self):
        """Scope like the strategy's, which none may enter within a step."""
        return tf.variable_creator_scope(self._creator)

    def role_of(self, role, made_by_optimizer):
        """Returns the role of a new variable, where it is another."""
        return self.local.role_of(role, made_by_optimizer)

    def was_made(self, variable):
        """Called when a variable was made for the user."""
        if variable.role is Role.LOCAL:
            self.state.local_was_made()
        if variable.role.is_on_server:
            self.unused_models.was_made(variable)

    def was_moved(self, variable):
        """Called when the replica of a variable is on another device."""
        if variable.role.is_on_server:
            self.unused_models.was_made(variable)
        self.store.forget_traced()

    def stamp_rows(self, table):
        """Makes the server keep the versions of the rows of `table`."""
        self.synchronizer.stamp_rows(table)

    # Eager life.

    def call(self, function, *args):
        """Calls what talks to servers; outlives servers that come back."""
        with private_tensorflow.outside_of_functions():
            return self.recovery.call(function, *args)

    def call_in_fit(self, function, *args):
        """The same of what Keras's `fit` calls."""
        self.evaluations.restore_if_over()
        return self.local.call_in_fit(self.call, function, *args)

    @property
    def committed(self):
        """Number of variables that servers are known to hold, an int."""
        return self.synchronizer.committed

    def is_held(self):
        """Whether servers hold variables, of this worker or of another."""
        return self.synchronizer.held() > 0

    def has_come_back(self):
        """Whether servers hold a run that this process has not trained in."""
        if self.journal.exchanges:
            return False
        if not self.committed:
            return self.is_held()
        # Such as before an evaluation that came first. A process that has
        # died after one, and before it put anything back, leaves first values;
        # and what servers have lost this worker has added itself.
        joined = self.synchronizer
        if not joined.has_joined or joined.has_added:
            return False
        return max(self.updates_applied()) > 0

    def finds_later_run(self):
        """Whether servers hold a run that goes before what was saved.

        Not one whose weights the chief's script has set, as it did when the
        run began: what was saved is then to replace all of it.
        """
        if not self.synchronizer.has_overwritten:
            return self.has_come_back()
        # What servers hold of new variables shall not replace it later.
        self.commit()
        return False

    def commit(self):
        """Brings new variables and the servers to one state; see there."""
        with private_tensorflow.outside_of_functions():
            self._tidy()
            self.synchronizer.commit()

    def _tidy(self):
        self.unused_models.tidy()
        self.server_functions.tidy()

    def pull(self, only_committed=False):
        """Refreshes all local replicas from the servers.

        In the middle of local steps they show what came last instead.

        Args:
          only_committed: Whether those of new variables are left as they are:
            to commit them, a worker waits for the chief.
        """
        with private_tensorflow.outside_of_functions():
            self.evaluations.restore_if_over()
            self._tidy()
            if self.local.before_pull():
                if not only_committed:
                    self.synchronizer.commit()
                self.synchronizer.pull_committed()
                self.local.after_pull()

    def show_ahead(self):
        """Gives this worker what gradients are computed from, to begin with.

        Local steps are taken from there. In the middle of a period they go on
        from what came last.
        """
        with private_tensorflow.outside_of_functions():
            held = self.local.in_period()
            self.local.follow(self.corrector.show_ahead(held))

    def build_pull(self, variables):
        """Builds, in a traced function, the refreshing of `variables`."""
        self.synchronizer.build_pull(variables)

    def updates_applied(self):
        """Number of updates that each server has applied, a list of ints."""
        return self.synchronizer.versions()

    def wait(self, condition, *, what):
        """Waits until a condition holds, or until updates have stalled.

        Args:
          condition: See `waiting.wait_while_it_gets_on`.
          what: See there.

        Returns:
          The true value; None if it gave up.
        """
        return waiting.wait_while_it_gets_on(
            condition,
            what=what,
            stalled_after=self._stalled_after,
            progress=self.updates_applied,
        )

    def _stalled_after(self):
        """Seconds without an update after which training has stalled."""
        stalled_after = waiting.STALLED_AFTER_SECONDS
        if not self.local.keeps_own_values:
            return stalled_after
        # Local steps may take long, here and elsewhere.
        return max(stalled_after, 3 * self.journal.longest_compute_seconds())

    def steps_made(self):
        """Optimizer steps that have been made, an int.

        With local steps, the most that one worker has told the servers of.
        """
        return self.local.steps_made()

    def collective_writes(self):
        """Scope in which every worker's eager assignments reach the servers.

        For values on which all workers agree.
        """
        return self.synchronizer.collective_writes()

    def watch(self, call, frame):
        """Takes note of a call of `fit`, a `RunningFit`, and of its frame."""
        self.fits += 1
        self.local.watch(call, frame)
        self.coordination.watch(call, frame)

    def settle(self):
        """Ends what this worker has trained; returns whether it had."""
        # Also who has found no data has trained.
        count = self.journal.trained, self.fits
        has_trained = count != self._settled_at
        self._settled_at = count
        return has_trained

    def note_data(self, checksum, is_seed):
        """Takes note of the data of a call; see `ChiefDecisions.note_data`."""
        self.chief_decisions.note_data(checksum, is_seed)
        self.local.note_data(checksum, is_seed)

    def note_data_shares(self, number):
        """Takes note of how many shares the data of `fit` is divided into."""
        self.data_shares = number

    def before_eager_read(self, variable):
        """Called before a replica is read eagerly."""
        refusals.before_read(self.files)
        self.evaluations.restore_if_over()
        self.local.before_read(variable)
        self.synchronizer.before_read(variable)

    def before_eager_write(self, variable):
        """Called before a replica is assigned eagerly.

        Returns:
          What to call with it afterwards.
        """
        if self.evaluations.keep(variable):
            return nothing
        passes = True
        if self.synchronizer.holds(variable):
            passes = self.chief_decisions.before_write(variable)
        self.local.before_read(variable)
        self.synchronizer.before_write(variable)
        if passes:
            return self._after_eager_write
        return self.synchronizer.after_own_write

    def _after_eager_write(self, variable):
        self.synchronizer.after_write(variable)
        self.local.after_write(variable)
