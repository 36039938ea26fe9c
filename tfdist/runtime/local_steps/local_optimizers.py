"""The optimizers of one worker that take local steps, and what they have done.

Each `Inner` is of one Keras optimizer, known by its step counter, with an outer
one that servers, or all workers alike, apply to what its steps come to.
"""

import contextlib
import weakref

import tensorflow as tf

from tfdist import model_optimizers
from tfdist import one_replica
from tfdist import private_keras_variables
from tfdist.runtime.exchange import step as step_lib
from tfdist.runtime.variables import traced_calls
from tfdist.runtime.variables.server_scope import read_replica
from tfdist.runtime.variables.variables import Role


class LocalOptimizers:
    """Keeps the `Inner` of each optimizer.

    Args:
      store: The `ParameterStore`.
      method: The `LocalSteps`, resolved.
      variable_scope: Callable that gives the scope in which variables of
        servers are made.
      build_pull: Callable of a list of variables that builds the refreshing of
        their replicas.

    Attributes:
      have_begun: Whether one of them has ever taken a step.
    """

    def __init__(self, store, method, variable_scope, build_pull):
        self._store = store
        self._method = method
        self._variable_scope = variable_scope
        self._build_pull = build_pull
        self._traced = traced_calls.Traced(store)
        # By the ordinals of step counters.
        self._inners = {}
        self.have_begun = False
        # Ordinals of what they have trained, those that are no more as well:
        # when Python collects one must not matter.
        self._trained = set()
        self._makes_own = False
        # By Keras optimizer.
        self._own_parts = weakref.WeakKeyDictionary()
        # Steps counted at the last heartbeat.
        self._progress = []
        # Steps of optimizers that nobody uses any more.
        self._steps_made = 0

    def role_of(self, role, made_by_optimizer):
        """The role of a variable where optimizers act on replicas.

        Args:
          role: What it would be else.
          made_by_optimizer: Whether an optimizer's `build` makes it.
        """
        if self._makes_own or not role.is_on_server:
            return role
        if role is Role.STATE and not made_by_optimizer:
            is_shared = private_keras_variables.variable_maker() is not None
            # Such as the state of an RNN: of the worker's own batches.
            return role if is_shared else Role.LOCAL
        if role is Role.ITERATIONS:
            return Role.CLOCK
        if not made_by_optimizer:
            return role
        if self._method.average_optimizer_state:
            return Role.AVERAGED if role is Role.SLOT else role
        return Role.LOCAL

    @contextlib.contextmanager
    def making_own(self):
        """Scope of variables of tfdist's own, whose roles stay as they are."""
        self._makes_own = True
        try:
            yield
        finally:
            self._makes_own = False

    @property
    def all(self):
        """In the order of their first steps, a list of `Inner`."""
        return list(self._inners.values())

    def find(self, clock, parameters, states):
        """The `Inner` with that step counter, None before its first step.

        Args:
          clock: See `Inner`, as the others.
          parameters: List of the parameters that a step has updated.
          states: List of other state that it has assigned.

        Raises:
          ValueError: An earlier step has trained other variables.
        """
        inner = self._inners.get(clock.ordinal)
        if inner is None:
            return None
        if set(_ordinals(inner.parameters)) != set(_ordinals(parameters)):
            raise ValueError(
                "With local steps all steps of an optimizer have to train "
                f"the same variables: {_names(inner.parameters)} before, "
                f"{_names(parameters)} now. Use an optimizer for each set of "
                "variables."
            )
        if set(_ordinals(inner.states)) != set(_ordinals(states)):
            raise ValueError(
                "With local steps all training steps with an optimizer have "
                f"to assign the same state: {_names(inner.states)} before, "
                f"{_names(states)} now. Assign it in each of them, or use "
                "another optimizer."
            )
        return inner

    def own_parts(self, optimizer, parameters, new_speeds):
        """The parts that tfdist adds to a Keras optimizer, made once.

        Its first step makes them, or a `fit` that ends without a step: then
        variables that are made later have the numbers of a run with one.

        Args:
          optimizer: The Keras optimizer.
          parameters: List of the parameters that it trains.
          new_speeds: Callable that makes its `Speeds`, or None.

        Returns:
          The outer optimizer and the speeds.

        Raises:
          NotImplementedError: It computes weights from variables of its own.
          ValueError: It cannot take local steps of these.
        """
        model_optimizers.check_adds_updates(
            optimizer, type(self._method).__name__
        )
        if getattr(optimizer, "use_ema", False):
            raise ValueError(
                "use_ema=True keeps an average of each worker's own weights, "
                "which differ between workers with local steps. Leave it out."
            )
        key = _without_scale(optimizer)
        if key not in self._own_parts:
            outer = self._make_outer(parameters)
            with self.making_own():
                self._own_parts[key] = outer, new_speeds()
        return self._own_parts[key]

    def outer_variables(self, optimizer):
        """Variables of the outer optimizer of a Keras optimizer, a list.

        Args:
          optimizer: The Keras optimizer.
        """
        outer, _ = self._own_parts.get(_without_scale(optimizer), (None, None))
        return [] if outer is None else [v.value for v in outer.variables]

    def _make_outer(self, parameters):
        first = len(self._store.variables)
        with self.making_own(), self._variable_scope():
            outer = self._method.outer_optimizer()
            outer.build(parameters)
        for variable in self._store.variables[first:]:
            variable.is_own = True
        return outer

    def add(self, inner):
        """Takes note of a new `Inner`."""
        self._inners[inner.clock.ordinal] = inner
        self.have_begun = True
        self._trained.update(_ordinals(inner.parameters))

    def kept(self):
        """Variables with values of the worker's own, a list.

        Parameters that are trained, and state that steps have assigned which
        are not exchanged.
        """
        trained = [
            v for v in self._store.variables if v.ordinal in self._trained
        ]
        states = [v for one in self.all if one.has_steps() for v in one.states]
        return [*filter(one_replica.is_trainable, trained), *states]

    # What they have done.

    def unpushed(self):
        """Whether this worker has taken steps that no server has heard of."""
        return any(int(read_replica(inner.since_push)) for inner in self.all)

    def has_progressed(self):
        """Whether steps have been made since the last call.

        Called in the thread of the heartbeat.
        """
        before = self._progress
        self._progress = [
            (
                int(read_replica(inner.clock)),
                int(read_replica(inner.since_push)),
            )
            for inner in self.all
        ]
        return self._progress != before

    def steps_made(self):
        """The most local steps that a worker has told the servers of."""
        clocks = [v for v in self._store.variables if v.role is Role.CLOCK]
        if not clocks:
            return self._steps_made
        own = [read_replica(clock) for clock in clocks]
        self._traced.call(
            ("clocks", tuple(clock.ordinal for clock in clocks)),
            lambda: self._build_pull(clocks),
        )
        made = max(int(clock.numpy()) for clock in clocks)
        made = max(made, self._steps_made)
        if self._inners:
            # Who has begun goes on counting its own.
            for clock, value in zip(clocks, own, strict=True):
                clock.assign_replica(value)
        return made

    def over(self):
        """Those that nobody uses any more, a list."""
        return [inner for inner in self.all if inner.optimizer() is None]

    def let_go(self, inners):
        """Forgets optimizers, and not how many steps they have made."""
        for inner in inners:
            made = int(read_replica(inner.clock))
            self._steps_made = max(self._steps_made, made)
            del self._inners[inner.clock.ordinal]

    def drop_unpushed(self):
        """Forgets the steps since the last pushes; returns how many."""
        dropped = 0
        for inner in self.all:
            dropped += int(inner.since_push.numpy())
            inner.forget()
        return dropped

    def was_set(self, variable):
        """Called when a variable has been set eagerly, with both values."""
        for inner in self.all:
            inner.was_set(variable)


def _without_scale(optimizer):
    """The optimizer that one which scales losses has inside."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def check_epsilon(parameters, outer):
    """Refuses an outer optimizer that would divide 0 by 0.

    As Adagrad does where its sums are 0 and its epsilon, in the dtype of the
    parameter, is 0 as well.

    Args:
      parameters: List of the parameters that it updates.
      outer: The outer optimizer.

    Raises:
      ValueError: One of them has such a dtype.
    """
    epsilon = getattr(outer, "epsilon", None)
    for parameter in parameters if epsilon else ():
        if not tf.cast(epsilon, parameter.dtype):
            raise ValueError(
                f"Argument `epsilon` of the outer optimizer "
                f"{type(outer).__name__} must not be 0 in the dtype of "
                f"{parameter.name!r}, {parameter.dtype.name}. Give an outer "
                "optimizer with epsilon=1e-7, or use the dtype policy "
                '"mixed_float16", whose variables are float32. Received: '
                f"epsilon={epsilon:g}"
            )


def check_pieces(parameters, outer):
    """Refuses what makes of pieces something else than of the whole.

    Args:
      parameters: List of the parameters that it updates.
      outer: The outer optimizer.

    Raises:
      ValueError: The outer optimizer, or the constraint of a parameter.
    """
    for parameter in parameters:
        if not parameter.pieces:
            continue
        step_lib.check_elementwise(parameter, outer)
        constraint = one_replica.constraint_of(parameter)
        if constraint is not None:
            raise ValueError(
                "A constraint looks at whole variables, and "
                f"{parameter.name!r} is split over servers by "
                "variable_partitioner. Leave one of the two out. Received: "
                f"constraint={type(constraint).__name__}."
            )


def check_is_here(tensor, method):
    """Refuses what was computed in a branch that may not have been taken."""
    tensor = getattr(tensor, "values", tensor)
    if tensor.graph is not tf.compat.v1.get_default_graph():
        raise ValueError(
            f"{method!r} needs the gradients of every step, and this optimizer "
            "steps only now and then (gradient_accumulation_steps?). Leave "
            "that out: local steps accumulate."
        )


def _ordinals(variables):
    return [v.ordinal for v in variables]


def _names(variables):
    return sorted(v.name for v in variables)
