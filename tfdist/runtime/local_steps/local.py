"""K local steps between exchanges, on one worker.

The replicas of a model's variables (its parameters and other state, such as
moving statistics) hold one of two things: this worker's *own* values while a
training step runs, and at all other times (when the model is evaluated, saved,
looked at) what the servers gave it last, the *anchor*. The other one is in the
variable's *shadow*. So an evaluation in the middle of a period shows the
parameters of the cluster, and no step of the worker is lost.
"""

import contextlib
import functools

import tensorflow as tf

from tfdist.averaging import base as averaging
from tfdist.runtime.coordination import agreement
from tfdist.runtime.exchange import step as step_lib
from tfdist.runtime.exchange.pull_response import assign
from tfdist.runtime.local_steps import inner_optimizer as inner_lib
from tfdist.runtime.local_steps import local_exchange
from tfdist.runtime.local_steps import local_step
from tfdist.runtime.local_steps import shadow_weights
from tfdist.runtime.variables import traced_calls
from tfdist.runtime.variables.server_scope import read_replica
from tfdist.runtime.variables.variables import Role


class Local:
    """Makes exchanges of a worker that takes `LocalSteps`.

    Args:
      runtime: The `Runtime`.
      method: The `LocalSteps`, resolved.
      synchronization: The `Synchronization`, resolved.
      num_workers: Number of workers.
      worker_id: Number of this one.
      build_workers: Builds, on a server, how many make up the cluster, a
        scalar float64; default: `num_workers`.
      ring: Where there are no servers, the `Ring` of the workers.
    """

    # A worker's own values may be in the replicas, or in their shadows.
    keeps_own_values = True

    def __init__(
        self,
        runtime,
        method,
        synchronization,
        *,
        num_workers,
        worker_id,
        build_workers=None,
        ring=None,
    ):
        self.method = method
        self._runtime = runtime
        self._store = runtime.store
        # By the ordinals of step counters, and of parameters.
        self._inners = {}
        self._creates_outer = False
        # Whether own values and what servers gave first have been told apart.
        self._has_begun = False
        self._faces = shadow_weights.ShadowWeights(runtime.store)
        self._exchange = local_exchange.LocalExchange(
            runtime,
            method,
            averages=synchronization.averages,
            num_workers=num_workers,
            worker_id=worker_id,
            build_workers=build_workers
            or (lambda: tf.constant(num_workers, tf.float64)),
            ring=ring,
            shadow=self._faces.shadow,
        )
        self._traced = traced_calls.Traced(runtime.store)
        # The call of `fit` that is under way, or was last.
        self.fit = None
        # Steps counted at the last heartbeat.
        self._progress = []
        # Steps of optimizers that nobody uses any more.
        self._steps_made = 0

    # Variables.

    @property
    def needs_points(self):
        """Whether weights before a step are asked for."""
        return self.method.keeps_own

    @property
    def needs_gradients(self):
        """Whether the gradients of a step are."""
        return self.method.pushed is averaging.Pushed.GRADIENTS

    def role_of(self, role, made_by_optimizer):
        """The role of a variable where optimizers act on replicas.

        Args:
          role: What it would be else.
          made_by_optimizer: Whether an optimizer's `build` makes it.
        """
        if self._creates_outer or not role.is_on_server:
            return role
        if role is Role.ITERATIONS:
            return Role.CLOCK
        if not made_by_optimizer:
            return role
        if self.method.average_optimizer_state:
            return Role.AVERAGED if role is Role.SLOT else role
        return Role.LOCAL

    def _is_of_model(self, variable):
        speeds = self._exchange.speeds
        if speeds is not None and variable is speeds.variable:
            return False
        return variable.role in (Role.PARAMETER, Role.STATE)

    def _of_model(self):
        """The variables that have a shadow."""
        return [v for v in self._store.variables if self._is_of_model(v)]

    # What is saved.

    @property
    def keeps_own(self):
        """Whether a worker goes on from other weights than it is given."""
        return self.method.keeps_own

    @property
    def inners(self):
        """The inner optimizers, a list of `Inner`."""
        return list(self._inners.values())

    @property
    def has_begun(self):
        """Whether an optimizer has taken steps."""
        return bool(self._inners)

    def shadows(self):
        """Pairs of a model's variable and its shadow, a list."""
        return [
            (variable, self._faces.shadow(variable))
            for variable in self._of_model()
            if self._faces.has_shadow(variable)
        ]

    # While a step is traced.

    def new_step(self, arguments):
        """A `LocalStep` to follow a call of `strategy.run`, as it is traced.

        Args:
          arguments: What the step function is called with.
        """
        return local_step.LocalStep(self, self._runtime.state, arguments)

    def before_step(self, graph, first, *, own):
        """Builds: the replicas hold what a step needs, see `ShadowWeights`."""
        self._faces.show_before(self._of_model(), graph, first, own)

    def after_step(
        self,
        clock,
        optimizer,
        parameters,
        *,
        states,
        points,
        gradients,
        examples,
    ):
        """Builds what follows a step of an inner optimizer.

        Args:
          clock: Its step counter, which has counted the step.
          optimizer: The Keras optimizer.
          parameters: List of the parameters that it has updated.
          states: List of other state that the step has assigned.
          points: By ordinal, parameters before the step, tensors.
          gradients: By ordinal, gradients.
          examples: Examples in the step, scalar int64 tensor.
        """
        for tensor in (*points.values(), *gradients.values()):
            _check_is_here(tensor, self.method)
        inner = self._inner(clock, optimizer, parameters, states)
        inner.count(examples, gradients)
        step = tf.cast(clock.read_value(), tf.int64)
        steps = self.method.steps(step)
        if self._exchange.speeds is not None:
            steps = self._exchange.speeds.share_of(steps)
        fetch_steps = self.method.fetch_steps(step)

        def push():
            self._exchange.build(inner, points, adopt=fetch_steps is None)
            return True

        def fetch():
            self._exchange.fetch(inner)
            return True

        tf.cond(inner.since_push.read_value() >= steps, push, lambda: False)
        if fetch_steps is not None:
            is_due = inner.since_fetch.read_value() >= fetch_steps
            tf.cond(is_due, fetch, lambda: False)

    def _inner(self, clock, optimizer, parameters, states):
        """Returns the `Inner` of an optimizer, made at its first step."""
        if clock.ordinal in self._inners:
            inner = self._inners[clock.ordinal]
            known = _ordinals(inner.parameters), set(_ordinals(inner.states))
            if known != (_ordinals(parameters), set(_ordinals(states))):
                raise ValueError(
                    "With local steps all steps of an optimizer have to train "
                    f"the same variables: {_names(inner.parameters)} and "
                    f"{_names(inner.states)} before, "
                    f"{_names(parameters)} and {_names(states)} now. Use an "
                    "optimizer for each set of variables."
                )
            return inner
        store = self._store
        if getattr(optimizer, "use_ema", False):
            raise ValueError(
                "use_ema=True keeps an average of each worker's own weights, "
                "which differ between workers with local steps. Leave it out."
            )

        with tf.init_scope():
            outer = self._make_outer(parameters)
            self._exchange.follow_speed()
            for parameter in parameters:
                if parameter.pieces:
                    step_lib.check_elementwise(parameter, outer)
            self._runtime.commit()
            self._runtime.unused_models.refuse(parameters)
            self._agree(clock)
            inner = inner_lib.new_inner(
                store, self.method, clock, optimizer, outer, parameters, states
            )
            self._begin()
        self._inners[clock.ordinal] = inner
        return inner

    def _begin(self):
        """Called before the first step has changed anything."""
        if not self._has_begun:
            # Shadows may have been made before the servers were asked.
            self._build_adopt()
            self._has_begun = True

    def show_own(self):
        """Makes the replicas hold this worker's own values."""
        self._runtime.commit()
        self._begin()
        number = len(self._store.variables)
        self._traced.call(
            ("own", number),
            lambda: self._faces.show(self._of_model(), own=True),
        )

    @contextlib.contextmanager
    def own_values_kept(self):
        """Scope after which the replicas hold the own values of before."""
        before = [(v, read_replica(v)) for v in self._of_model()]
        yield
        self.show_own()
        for variable, value in before:
            variable.assign_replica(value)

    def _make_outer(self, parameters):
        self._creates_outer = True
        first = len(self._store.variables)
        try:
            with self._runtime.variable_scope():
                outer = self.method.outer_optimizer()
                outer.build(parameters)
        finally:
            self._creates_outer = False
        for variable in self._store.variables[first:]:
            variable.is_own = True
        return outer

    def _agree(self, clock):
        """Refuses to train beside workers that train in another way.

        Raises:
          ValueError: Another worker takes local steps of another kind.
        """
        mine = f"local_steps={self.method!r}"
        theirs = agreement.agree(
            self._store, "lock", f"local/{clock.ordinal}", mine
        )
        if mine != theirs:
            raise ValueError(
                f"All workers must train in the same way. Here {mine}, on the "
                f"servers {theirs}."
            )

    # Eager life.

    def watch(self, call):
        """Takes note of a `RunningFit`."""
        self.fit = call

    def see_to_end_of_fit(self):
        """Exchanges what is left when `fit` ends; called in its midst.

        Others wait for it, and nobody knows when the script will do something
        that asks for it.
        """
        self.fit.before_end(functools.partial(self.flush, last=True))

    def begin_fit(self):
        """Called when the others wait for this worker's next push."""
        if self._inners:
            self._runtime.pull()

    def _is_training(self):
        return self.fit is not None and not self.fit.is_over()

    def unpushed(self):
        """Whether this worker has taken steps that no server has heard of."""
        return any(
            int(read_replica(inner.since_push))
            for inner in list(self._inners.values())
        )

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
            for inner in list(self._inners.values())
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
            lambda: self._runtime.build_pull(clocks),
        )
        made = max(int(clock.numpy()) for clock in clocks)
        made = max(made, self._steps_made)
        if self._inners:
            # Who has begun goes on counting its own.
            for clock, value in zip(clocks, own, strict=True):
                clock.assign_replica(value)
        return made

    def tidy(self):
        """Lets go of optimizers that nobody uses any more."""
        over = {
            ordinal: inner
            for ordinal, inner in self._inners.items()
            if inner.optimizer() is None
        }
        if not over:
            return
        self.show_anchor()
        self._flush(list(over.values()), last=True)
        for ordinal, inner in over.items():
            made = int(read_replica(inner.clock))
            self._steps_made = max(self._steps_made, made)
            del self._inners[ordinal]

    def let_go(self, ordinals):
        """Called when variables are gone: their ordinals, a set."""
        self._faces.let_go(ordinals)

    def show_anchor(self):
        """Makes the replicas hold what the servers gave last."""
        if self._faces.any_own():
            number = len(self._store.variables)
            self._traced.call(("show", number), self._build_show_anchor)

    def _build_show_anchor(self):
        self._faces.show(self._of_model(), own=False)

    def before_pull(self):
        """Called before all replicas are refreshed.

        Returns:
          Whether they may be: not in the midst of a period within `fit`.
        """
        if self._is_training() and self.unpushed():
            self.show_anchor()
            return False
        self.flush(last=True)
        return True

    def after_pull(self):
        """Called after all replicas were refreshed."""
        if not (self.method.keeps_own and self._inners):
            number = len(self._store.variables)
            self._traced.call(("adopt", number), self._build_adopt)

    def _build_adopt(self):
        for variable in self._of_model():
            shadow = self._faces.shadow(variable)
            assign(shadow.local_handle, read_replica(variable))

    def flush(self, last=False):
        """Exchanges the steps that no exchange was due for.

        Args:
          last: Whether this worker trains no more for now, so that nobody
            waits for it.
        """
        self.show_anchor()
        self._flush(list(self._inners.values()), last)

    def _flush(self, inners, last):
        left = [one for one in inners if int(one.since_push.numpy())]
        if last and left:
            # Or two workers with steps of different optimizers left would
            # wait for each other.
            self._runtime.coordination.leave_all_but(
                [step_lib.step_counter(inner.outer) for inner in left]
            )
        for inner in left:
            if int(inner.since_push.numpy()):
                number = len(self._store.variables)
                key = ("flush", inner.clock.ordinal, last, number)
                self._traced.call(
                    key, functools.partial(self._build_flush, inner, last)
                )

    def _build_flush(self, inner, last):
        self._exchange.build(inner, {}, shows_own=False, last=last)

    def drop_unpushed(self):
        """Forgets the steps that have not been exchanged; returns how many.

        After a server was lost in the midst of an exchange: some servers may
        have got them, and none is to get them twice.
        """
        self.show_anchor()
        dropped = 0
        for inner in self._inners.values():
            dropped += int(inner.since_push.numpy())
            inner.forget()
        return dropped

    def finish(self):
        """Called when this worker waits for all others to end training."""
        self.flush(last=True)

    def is_open(self):
        """Whether others may wait for this worker, where only it knows."""
        return False

    def before_read(self, variable):
        """Called before a variable is read or assigned eagerly.

        When `fit` is over, what it has left is part of what is seen.
        """
        if not self._is_of_model(variable):
            return
        if self.fit is not None and self.fit.is_over() and self.unpushed():
            self.flush(last=True)
        self.show_anchor()

    def after_write(self, variable):
        """Called after a variable was assigned eagerly: own weights follow."""
        if not self._faces.has_shadow(variable):
            return
        shadow = self._faces.shadow(variable)
        shadow.assign_replica(read_replica(variable))
        for inner in self._inners.values():
            inner.was_set(variable)


def _check_is_here(tensor, method):
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
