"""The composition of a strategy: what it holds, and a part for each axis.

An axis that a strategy does not use has a part, too, which does what is done
without it (`NoRecovery`, `EveryStep`, ...): nobody asks whether there is one.
"""

from collections.abc import Callable
import dataclasses
import functools
from typing import Any

import tensorflow as tf

from tfdist import private_tensorflow
from tfdist.runtime.checkpoint import training_state
from tfdist.runtime.coordination import no_coordination
from tfdist.runtime.corrections import no_correction
from tfdist.runtime.exchange import exchange_markers
from tfdist.runtime.exchange import gradient_counts
from tfdist.runtime.exchange import journal
from tfdist.runtime.exchange import nonfinite
from tfdist.runtime.keras_hooks import own_decisions
from tfdist.runtime.keras_hooks import running_fit
from tfdist.runtime.local_steps import every_step
from tfdist.runtime.recovery import no_recovery
from tfdist.runtime.replicas import replica_sync
from tfdist.runtime.variables import resources
from tfdist.runtime.variables import server_functions
from tfdist.runtime.variables import store
from tfdist.runtime.variables import unused_models
from tfdist.runtime.variables.variables import Role
from tfdist.saving import files as files_lib
from tfdist.saving import refusals


@dataclasses.dataclass(frozen=True)
class Parts:
    """Factories of the parts of a `Runtime`: callables of the `Runtime`.

    In the order in which they are called; each may use those before it. The
    defaults are of axes that are not used.

    Attributes:
      state: A `TrainingState`.
      unused_models: An `UnusedModels`.
      nonfinite: A `Nonfinite`.
      marks: A `ExchangeMarkers`.
      corrector: A `Corrector`.
      local: A `Local`.
      gradient_counts: A `GradientCounts`.
      coordination: A `Coordination`.
      recovery: A `Recovery`.
      server_functions: A `ServerFunctions`.
      chief_decisions: A `ChiefDecisions`.
    """

    state: Callable[..., Any] = training_state.TrainingState
    unused_models: Callable[..., Any] = unused_models.UnusedModels
    nonfinite: Callable[..., Any] = functools.partial(
        nonfinite.Nonfinite, choice="ignore", worker=""
    )
    marks: Callable[..., Any] = exchange_markers.NoMarkers
    corrector: Callable[..., Any] = no_correction.NoCorrector
    local: Callable[..., Any] = every_step.EveryStep
    gradient_counts: Callable[..., Any] = gradient_counts.NoGradientCounts
    coordination: Callable[..., Any] = no_coordination.NoCoordination
    recovery: Callable[..., Any] = no_recovery.NoRecovery
    server_functions: Callable[..., Any] = server_functions.NoServerFunctions
    chief_decisions: Callable[..., Any] = own_decisions.OwnDecisions


class Runtime(store.ParameterStore):
    """The execution of one strategy on this process.

    Args:
      parts: `Parts`.
      timeout: Seconds to wait for the chief's variables.
      clients: A `ServerClient` for each server; default: this process, which
        has no other threads.
      files: Which files this task writes, of `files.of`.
      **where: Those of `ParameterStore`.
    """

    def __init__(
        self,
        parts=None,
        *,
        timeout,
        clients=None,
        files=None,
        **where,
    ):
        super().__init__(**where)
        self._clients = clients or [resources.Here()] * self.num_shards
        self.files = files or files_lib.Unshared()
        # Calls of `fit` on this worker.
        self.fits = 0
        # How many shares the data of the last `fit` was divided into; None
        # where each worker has all that it is given.
        self.data_shares = None
        # The strategy's creator of variables, for `variable_scope`.
        self._creator = None
        self.journal = journal.Journal(self)
        self.synchronizer = replica_sync.Synchronizer(
            self, is_chief=self.is_chief, timeout=timeout
        )
        parts = parts or Parts()
        for field in dataclasses.fields(Parts):
            make = getattr(parts, field.name)
            setattr(self, field.name, make(self))

    # Variables.

    def create_with(self, creator):
        """Takes the strategy's creator of variables."""
        self._creator = creator

    def variable_scope(self):
        """Scope like the strategy's, which none may enter within a step."""
        return tf.variable_creator_scope(self._creator)

    def _role_of(self, role, made_by_optimizer):
        return self.local.role_of(role, made_by_optimizer)

    def _was_made(self, variable):
        if variable.role is Role.LOCAL:
            self.state.local_was_made()
        if variable.role.is_on_server:
            self.unused_models.was_made(variable)

    def _stamp_rows(self, table):
        self.synchronizer.stamp_rows(table)

    # Eager life.

    def call(self, function, *args):
        """Calls what talks to servers; outlives servers that come back."""
        with private_tensorflow.outside_of_functions():
            return self.recovery.call(function, *args)

    def call_in_fit(self, function, *args):
        """The same of what Keras's `fit` calls."""
        self.local.see_to_end_of_fit()
        return self.call(function, *args)

    def function(self, shard, build, signature):
        """Makes a function on a server that any thread may call.

        Args:
          shard: Number of the server.
          build: Callable that builds it on the server's device, of tensors;
            returns a list of tensors.
          signature: List of `tf.TensorSpec`, its arguments.

        Returns:
          A callable that takes and returns NumPy arrays.
        """
        return self._clients[shard].function(build, signature)

    @property
    def committed(self):
        """How many variables this worker knows servers to hold, an int."""
        return self.synchronizer.committed

    def is_held(self):
        """Whether servers hold variables, of this worker or of another."""
        return self.synchronizer.held() > 0

    def commit(self):
        """Brings new variables and the servers to one state; see there."""
        with private_tensorflow.outside_of_functions():
            self._tidy()
            self.synchronizer.commit()
            self.gradient_counts.begin()

    def _tidy(self):
        self.unused_models.tidy()
        self.server_functions.tidy()

    def pull(self):
        """Refreshes all local replicas from the servers.

        In the middle of local steps they show what came last instead.
        """
        with private_tensorflow.outside_of_functions():
            self._tidy()
            if self.local.before_pull():
                self.synchronizer.pull_all()
                self.local.after_pull()

    def build_pull(self, variables):
        """Builds, in a traced function, the refreshing of `variables`."""
        self.synchronizer.build_pull(variables)

    def updates_applied(self):
        """Number of updates that each server has applied, a list of ints."""
        return self.synchronizer.versions()

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

    def watch(self, frame):
        """Takes note of a call of `fit`, by its frame."""
        self.fits += 1
        call = running_fit.RunningFit(frame)
        self.local.watch(call)
        self.coordination.watch(call)

    def note_data_shares(self, number):
        """Takes note of how many shares the data of `fit` is divided into."""
        self.data_shares = number

    def before_eager_read(self, variable):
        """Called before a replica is read eagerly."""
        refusals.before_read(self.files)
        self.local.before_read(variable)
        self.synchronizer.before_read(variable)

    def before_eager_write(self, variable):
        """Called before a replica is assigned eagerly."""
        if self.synchronizer.holds(variable):
            self.chief_decisions.before_write()
        self.local.before_read(variable)

    def after_eager_write(self, variable):
        """Called after a replica was assigned eagerly."""
        self.synchronizer.after_write(variable)
        self.local.after_write(variable)
