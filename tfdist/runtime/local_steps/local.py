"""K local steps between exchanges, on one worker.

What the replicas hold during a step and between steps: `OwnValues`. How what
the steps come to reaches other workers: `ServerCommunication`, or
`RingCommunication` without servers.
"""

import functools

from absl import logging
import tensorflow as tf

from tfdist.averaging import base as averaging
from tfdist.runtime.local_steps import inner_optimizer as inner_lib
from tfdist.runtime.local_steps import local_exchange
from tfdist.runtime.local_steps import local_optimizers
from tfdist.runtime.local_steps import local_step
from tfdist.runtime.local_steps import own_values
from tfdist.runtime.variables import traced_calls
from tfdist.runtime.variables.server_scope import read_replica


class Local:
    """Makes exchanges of a worker that takes `LocalSteps`.

    Args:
      runtime: The `Runtime`.
      method: The `LocalSteps`, resolved.
      synchronization: The `Synchronization`, resolved.
      num_workers: Number of workers.
      worker_id: Number of this one.
      communication: The `ServerCommunication` or `RingCommunication`.
      build_workers: Builds, on a server, how many make up the cluster, a
        scalar float64; default: `num_workers`.

    Attributes:
      method: The `LocalSteps`.
      fit: The outermost `RunningFit` that is under way, or was last; None
        before it, and when its steps have been exchanged at its end.
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
        communication,
        build_workers=None,
    ):
        self.method = method
        # Weak references to state that a `tf.function` which a step calls has
        # assigned, by ordinal: later steps call the same trace.
        self.assigned_within = {}
        self._runtime = runtime
        self._store = runtime.store
        self._communication = communication
        self._own_values = own_values.OwnValues(runtime.store, runtime.commit)
        self._exchange = local_exchange.LocalExchange(
            runtime,
            method,
            averages=synchronization.averages,
            num_workers=num_workers,
            worker_id=worker_id,
            build_workers=build_workers
            or (lambda: tf.constant(num_workers, tf.float64)),
            communication=communication,
            shadow=self._own_values.shadow,
        )
        self._traced = traced_calls.Traced(runtime.store)
        self._optimizers = local_optimizers.LocalOptimizers(
            runtime.store, method, runtime.variable_scope, runtime.build_pull
        )
        self.fit = None

    # Variables.

    def before_variable(self):
        """Called before a variable is made, outside of steps."""
        self._communication.before_variable()

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
        return self._optimizers.role_of(role, made_by_optimizer)

    # What is saved.

    @property
    def keeps_own(self):
        """Whether a worker goes on from other weights than it is given."""
        return self.method.keeps_own

    @property
    def inners(self):
        """The inner optimizers, a list of `Inner`."""
        return self._optimizers.all

    @property
    def has_begun(self):
        """Whether an optimizer has ever taken steps."""
        return self._optimizers.have_begun

    def shadow(self, variable):
        """The variable with the other one of own value and anchor."""
        return self._own_values.shadow(variable)

    # While a step is traced.

    def new_step(self, arguments, evaluates):
        """A `LocalStep` to follow a call of `strategy.run`, as it is traced.

        Args:
          arguments: What the step function is called with.
          evaluates: Whether it is a step of an evaluation or prediction.
        """
        return local_step.LocalStep(self, arguments, evaluates)

    def before_step(self, graph, first, *, own):
        """Builds: the replicas hold what a step needs, see `ShadowWeights`."""
        self._own_values.show_before(graph, first, own)

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
            local_optimizers.check_is_here(tensor, self.method)
        inner = self._inner(clock, optimizer, parameters, states)
        inner.count(examples, gradients)
        step = tf.cast(clock.read_value(), tf.int64)
        steps = self.method.steps(step)
        if inner.speeds is not None:
            steps = inner.speeds.share_of(steps)
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
        inner = self._optimizers.find(clock, parameters, states)
        if inner is not None:
            return inner
        with tf.init_scope():
            outer, speeds = self.own_parts(optimizer, parameters)
            local_optimizers.check_pieces(parameters, outer)
            local_optimizers.check_epsilon(parameters, outer)
            self._runtime.commit()
            self._runtime.unused_models.refuse(parameters)
            with self._communication.meeting():
                self._communication.begin(self, optimizer, clock)
                inner = inner_lib.new_inner(
                    self._store,
                    self.method,
                    clock,
                    optimizer,
                    outer,
                    parameters,
                    states,
                    speeds,
                )
                self._own_values.tell_apart()
                self._optimizers.add(inner)
                self._runtime.state.resume_local_steps()
        return inner

    def own_parts(self, optimizer, parameters):
        """See `LocalOptimizers.own_parts`."""
        return self._optimizers.own_parts(
            optimizer, parameters, self._exchange.new_speeds
        )

    def outer_variables(self, optimizer):
        """See `LocalOptimizers.outer_variables`."""
        return self._optimizers.outer_variables(optimizer)

    def show_own(self):
        """Makes the replicas hold this worker's own values."""
        self._own_values.show_own()

    def own_values_kept(self):
        """Scope after which the replicas hold the own values of before."""
        return self._own_values.kept()

    # Eager life.

    def check_eager(self):
        """Refuses that an optimizer acts in a step that runs eagerly."""
        self._communication.check_eager()

    def watch(self, call, frame):
        """Takes note of a `RunningFit`, and of its frame."""
        if self.fit is None or not self.fit.is_around(frame):
            self.fit = call
            if self.keeps_own and self.has_begun:
                self.show_anchor()
                self.after_pull()
        for inner in self.inners:
            # The time between two calls is not of the steps. But callbacks
            # train in the middle of a period, too.
            if inner.speeds is not None and not inner.has_steps():
                inner.speeds.begin()
        self._communication.begin_fit(self, call, frame)

    def note_data(self, checksum, is_seed):
        """Takes note of the data of a call; see `FitCalls.note_data`."""
        self._communication.note_data(checksum, is_seed)

    def call_in_fit(self, call, function, *args):
        """Calls a `train_function` of Keras.

        Args:
          call: Callable of it and its arguments that calls it.
          function: The `train_function`.
          *args: Its arguments.
        """
        function = functools.partial(call, function)
        return self._communication.call_in_fit(self, function, *args)

    def begin_fit(self, is_late):
        """Called when the others wait for this worker's next push.

        Args:
          is_late: Whether servers would drop steps that are left.
        """
        if is_late and self.unpushed() and (dropped := self.drop_unpushed()):
            logging.warning(
                "Dropping %d local steps that an exception in `fit` has left: "
                "the other workers have made updates since.",
                dropped,
            )
        if self.has_begun:
            self._runtime.pull()

    def is_training(self):
        """Whether a call of `fit` is under way."""
        return self.fit is not None and not self.fit.is_over()

    def unpushed(self):
        """Whether this worker has taken steps that no server has heard of."""
        return self._optimizers.unpushed()

    def in_period(self):
        """Ordinals of parameters with steps that are not exchanged, a set."""
        inners = self.inners
        if not self._own_values.are_kept:
            inners = [inner for inner in inners if inner.has_steps()]
        return {v.ordinal for inner in inners for v in inner.parameters}

    def has_progressed(self):
        """Whether steps have been made since the last call.

        Called in the thread of the heartbeat.
        """
        return self._optimizers.has_progressed()

    def steps_made(self):
        """The most local steps that a worker has told the servers of."""
        return self._optimizers.steps_made()

    def tidy(self):
        """Lets go of optimizers that nobody uses any more."""
        over = self._optimizers.over()
        if over and self._communication.release(self, over):
            self._optimizers.let_go(over)

    def let_go(self, ordinals):
        """Called when variables are gone: their ordinals, a set."""
        self._own_values.let_go(ordinals)

    def show_anchor(self):
        """Makes the replicas hold what the servers gave last."""
        self._own_values.show_anchor()

    def before_pull(self):
        """Called before all replicas are refreshed.

        Returns:
          Whether they may be: not in the middle of a period within `fit`.
        """
        may_be = self._communication.before_pull(self)
        self._forget_fit()
        return may_be

    def follow(self, variables):
        """Called when servers have given replicas what steps begin with.

        Args:
          variables: List of `ReplicaVariable`.
        """
        self._own_values.follow(variables)

    def after_pull(self):
        """Called after all replicas were refreshed.

        Own values follow, but for weights of a worker's own: exchanges move
        these, and nothing else would move what no step trains.
        """
        self._own_values.adopt({v.ordinal for v in self._kept()})

    def adopt_given(self):
        """Called when a worker's own weights follow those that it has pulled.

        Which the chief has set. Not in the middle of a period, whose steps
        would be lost.
        """
        if self.keeps_own and not self.unpushed():
            self._own_values.adopt()

    def flush(self, last=False):
        """Exchanges the steps that no exchange was due for.

        Args:
          last: Whether this worker trains no more for now, so that nobody
            waits for it.
        """
        self._communication.flush(self, last)

    def drop_unpushed(self):
        """Forgets the steps that have not been exchanged.

        After a server was lost in the middle of an exchange: some servers may
        have got them, and none is to get them twice.

        Returns:
          How many are lost: none where the worker keeps its own weights.
        """
        self.show_anchor()
        dropped = self._optimizers.drop_unpushed()
        return 0 if self.keeps_own else dropped

    def finish(self, meets=False):
        """Called when this worker waits for all others to end training.

        Args:
          meets: Whether all workers call this, as in `strategy.barrier`.
        """
        self._communication.finish(self, meets)
        self._forget_fit()

    def is_open(self):
        """Whether others may wait for this worker, where only it knows."""
        return self._communication.is_open(self)

    def before_read(self, variable):
        """Called before a variable is read or assigned eagerly.

        When `fit` is over, what it has left is part of what is seen.
        """
        if not self._own_values.is_of_model(variable):
            return
        is_over = self.fit is not None and self.fit.is_over()
        if is_over and self._communication.has_left(self):
            self.flush(last=True)
        self._forget_fit()
        self.show_anchor()

    def _forget_fit(self):
        """Takes steps after `fit` for those of a loop of the user's own."""
        if self.fit is not None and self.fit.is_over():
            self.fit = None

    def after_write(self, variable):
        """Called after a variable was assigned eagerly: own weights follow."""
        if self._own_values.after_write(variable):
            self._optimizers.was_set(variable)

    # What `ServerCommunication` and `RingCommunication` ask for.

    @property
    def has_own_values(self):
        """Whether own values and what was given first are told apart."""
        return self._own_values.are_apart

    def adopt_fresh(self):
        """Tells fresh values apart, from own weights that are kept."""
        self._own_values.tell_apart({v.ordinal for v in self._kept()})

    def end_own_values(self):
        """Called when all have ended their training: the next one is new."""
        self._own_values.tell_apart_no_more()

    def take_over(self, spread):
        """Takes over fresh values, but for own weights that are kept.

        Where a fresh value is another one than all workers had, the chief has
        set it: own weights follow.

        Args:
          spread: Callable that brings them.

        Returns:
          What it does.
        """
        self._runtime.commit()
        before = [(v, read_replica(v)) for v in self._kept()]
        result = spread()
        kept = {
            variable.ordinal
            for variable, value in before
            if tf.reduce_all(tf.equal(read_replica(variable), value))
        }
        self._own_values.adopt(kept)
        return result

    def _kept(self):
        """Variables whose own values stay when others are given, a list."""
        return self._optimizers.kept() if self.keeps_own else []

    def exchange_left(self, inner, last):
        """Exchanges what an `Inner` has done; the replicas hold the anchors.

        Args:
          inner: The `Inner`.
          last: See `LocalExchange.build`.
        """
        number = len(self._store.variables)
        self._traced.call(
            ("flush", inner.clock.ordinal, last, number),
            lambda: self._exchange.build(inner, {}, shows_own=False, last=last),
        )

    def look(self, inner):
        """Looks at what others are to be told of an `Inner`, see there."""
        self._traced.call(
            ("look", inner.clock.ordinal), lambda: self._build_look(inner)
        )

    def _build_look(self, inner):
        self._own_values.build_show(own=True)
        self._exchange.look(inner)

    def build_turn(self, inner, this_round):
        """Builds a `Round` that has begun, outside of a step."""
        with tf.control_dependencies([this_round.began]):
            self._own_values.build_show(own=True)
        self._exchange.build(inner, {}, this_round=this_round)
