"""A worker's own values of a model, and the anchors that it was given last.

The replicas of a model's variables (its parameters and other state, such as
moving statistics) hold one of two things: this worker's *own* values while a
training step runs, and at all other times (when the model is evaluated, saved,
looked at) what the servers gave it last, the *anchor*. The other one is in the
variable's *shadow*. So an evaluation in the middle of a period shows the
parameters of the cluster, and no step of the worker is lost.
"""

import contextlib

from tfdist.runtime.exchange.pull_response import assign
from tfdist.runtime.local_steps import shadow_weights
from tfdist.runtime.variables import traced_calls
from tfdist.runtime.variables.server_scope import read_replica
from tfdist.runtime.variables.variables import Role


class OwnValues:
    """Both values of each variable of a worker's models.

    Args:
      store: The `ParameterStore`.
      commit: Callable that brings new variables to the servers.

    Attributes:
      are_apart: Whether own values and what servers gave first have been told
        apart.
      are_kept: Whether own values are those of a step that no counter has
        counted yet.
    """

    def __init__(self, store, commit):
        self._store = store
        self._commit = commit
        self._shadows = shadow_weights.ShadowWeights(store)
        self._traced = traced_calls.Traced(store)
        self.are_apart = False
        self.are_kept = False

    def is_of_model(self, variable):
        """Whether a variable has two values."""
        return not variable.is_own and variable.role in (
            Role.PARAMETER,
            Role.STATE,
        )

    def _of_model(self):
        return [v for v in self._store.variables if self.is_of_model(v)]

    def shadow(self, variable):
        """The variable with the other one of the two values."""
        return self._shadows.shadow(variable)

    def let_go(self, ordinals):
        """Called when variables are gone: their ordinals, a set."""
        self._shadows.let_go(ordinals)

    # Which one the replicas hold.

    def show_before(self, graph, first, own):
        """Builds: the replicas hold what a step needs, see `ShadowWeights`."""
        self._shadows.show_before(self._of_model(), graph, first, own)

    def build_show(self, own):
        """Builds: the replicas hold own values, or the anchors."""
        self._shadows.show(self._of_model(), own=own)

    def show_own(self):
        """Makes the replicas hold this worker's own values."""
        self._commit()
        self.tell_apart()
        number = len(self._store.variables)
        self._traced.call(("own", number), lambda: self.build_show(own=True))

    def show_anchor(self):
        """Makes the replicas hold what the servers gave last."""
        if self._shadows.any_own():
            number = len(self._store.variables)
            self._traced.call(
                ("show", number), lambda: self.build_show(own=False)
            )

    @contextlib.contextmanager
    def kept(self):
        """Scope after which the replicas hold the own values of before."""
        before = [(v, read_replica(v)) for v in self._of_model()]
        self.are_kept = True
        try:
            yield
        finally:
            self.are_kept = False
        self.show_own()
        for variable, value in before:
            variable.assign_replica(value)

    # Own values that are those of the servers.

    def tell_apart(self, but=()):
        """Called before the first step has changed anything.

        Args:
          but: Ordinals of variables of which own values are there already.
        """
        if not self.are_apart:
            # Shadows may have been made before the servers were asked.
            self._build_adopt(but)
            self.are_apart = True

    def tell_apart_no_more(self):
        """Called when the next step is a first one."""
        self.are_apart = False

    def adopt(self, but=()):
        """Makes the shadows hold what the replicas do.

        Args:
          but: Ordinals of variables whose shadows stay as they are.
        """
        key = ("adopt", frozenset(but), len(self._store.variables))
        self._traced.call(key, lambda: self._build_adopt(but))

    def _build_adopt(self, but):
        for variable in self._of_model():
            if variable.ordinal not in but:
                self._adopt_one(variable)

    def _adopt_one(self, variable):
        shadow = self._shadows.shadow(variable)
        assign(shadow.local_handle, read_replica(variable))

    def follow(self, variables):
        """Makes shadows that there are of `variables` hold what replicas do.

        They may be older than the variables' values on the servers: in the
        middle of a period, what is made is swapped as soon as it is known.
        """
        for variable in variables:
            self.after_write(variable)

    def after_write(self, variable):
        """Called after a variable was assigned eagerly: own weights follow.

        Returns:
          Whether they do.
        """
        if not self._shadows.has_shadow(variable):
            return False
        shadow = self._shadows.shadow(variable)
        shadow.assign_replica(read_replica(variable))
        return True
