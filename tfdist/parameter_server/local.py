"""K local steps between exchanges, on one worker.

The replicas of parameters hold one of two things: this worker's own weights
while a training step runs, and at all other times (when the model is
evaluated, saved, looked at) what the servers gave it last, the *anchor*. The
other one is in the parameter's *shadow*. So an evaluation in the middle of a
period shows the parameters of the cluster, and no step of the worker is lost.
"""

import dataclasses

import keras
import tensorflow as tf

from tfdist import private_tensorflow
from tfdist.averaging import base as averaging
from tfdist.parameter_server import agreement
from tfdist.parameter_server import lifting
from tfdist.parameter_server import records as records_lib
from tfdist.parameter_server import step as step_lib
from tfdist.parameter_server.pull import assign
from tfdist.parameter_server.section import read_replica
from tfdist.parameter_server.variables import Role


@dataclasses.dataclass
class _Inner:
    """What is known of one inner optimizer.

    Attributes:
      clock: Its step counter.
      optimizer: The Keras optimizer.
      outer: The outer one.
      parameters: List of the parameters that it trains.
      states: List of other state that its steps assign.
      since_push: Steps since its last push, a worker's int64.
      since_fetch: The same since its last fetch.
      examples: Examples in these steps since the last push.
      accrued: By ordinal, sums of gradients, where these are pushed.
    """

    clock: object
    optimizer: object
    outer: object
    parameters: list
    states: list
    since_push: object
    since_fetch: object
    examples: object
    accrued: dict = dataclasses.field(default_factory=dict)


class Local:
    """Makes exchanges of a worker that takes `LocalSteps`.

    Args:
      store: The `ParameterStore`.
      method: The `LocalSteps`, resolved.
      synchronization: The `Synchronization`, resolved.
      num_workers: Number of workers.
      worker_id: Number of this one.
    """

    def __init__(
        self, store, method, synchronization, *, num_workers, worker_id
    ):
        self.method = method
        self._store = store
        self._averages = synchronization.averages
        self._num_workers = num_workers
        self._worker = worker_id
        # By the ordinals of step counters, and of parameters.
        self._inners = {}
        self._shadows = {}
        self._creates_outer = False
        self._shows_own = store.worker_variable(False, "shows_own")
        self._functions = {}
        # The call of `fit` that is under way.
        self.fit = None
        self._speeds = None
        self._began = store.worker_variable(
            tf.zeros([], tf.float64), "period_began"
        )

    # Variables.

    @property
    def needs_points(self):
        """Whether weights before a step are asked for."""
        return self.method.keeps_own

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

    def _shadow(self, parameter):
        """Where the other one of own weights and anchor is."""
        if parameter.ordinal not in self._shadows:
            self._shadows[parameter.ordinal] = self._store.worker_variable(
                lambda: read_replica(parameter), "shadow"
            )
        return self._shadows[parameter.ordinal]

    def _parameters(self):
        return [v for v in self._store.variables if v.role is Role.PARAMETER]

    # While a step is traced.

    def before_step(self, graph, first, *, own):
        """Builds: the replicas hold what a step needs, before all of it.

        Only when a step has been traced is it known whether it trains.

        Args:
          graph: The graph of the step.
          first: Number of its operations before it.
          own: Whether it needs this worker's own weights.
        """
        steps = graph.get_operations()[first:]
        handles = {id(v.local_handle) for v in self._parameters()}
        handles |= {id(s.local_handle) for s in self._shadows.values()}
        before = len(graph.get_operations())
        with graph.as_default(), tf.control_dependencies(None):
            self._build_show(own)
        swap = graph.get_operations()[before:]
        for operation in swap:
            private_tensorflow.run_independently(operation)
        inputs = {
            id(inner) for outer, inner in graph.captures if id(outer) in handles
        }
        for operation in steps:
            if any(id(tensor) in inputs for tensor in operation.inputs):
                private_tensorflow.add_control_inputs(operation, swap)

    def _build_show(self, own):
        pairs = [(v, self._shadow(v)) for v in self._parameters()]

        def swap():
            for variable, shadow in pairs:
                here, there = read_replica(variable), read_replica(shadow)
                with tf.control_dependencies([here.op, there.op]):
                    assign(variable.local_handle, there)
                    assign(shadow.local_handle, here)
            self._shows_own.assign(own, read_value=False)
            return True

        is_shown = tf.equal(self._shows_own.read_value(), own)
        return tf.cond(is_shown, lambda: True, swap)

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
        inner = self._inner(clock, optimizer, parameters, states)
        for variable in (inner.since_push, inner.since_fetch):
            variable.assign_add(1, read_value=False)
        inner.examples.assign_add(examples, read_value=False)
        for ordinal, total in inner.accrued.items():
            _accrue(total, gradients[ordinal])
        step = tf.cast(clock.read_value(), tf.int64)
        due = inner.since_push.read_value() >= self._steps(step)
        fetch_steps = self.method.fetch_steps(step)
        if fetch_steps is None:

            def push():
                self._exchange(inner, points)
                return True

            tf.cond(due, push, lambda: False)
            return
        fetches = inner.since_fetch.read_value() >= fetch_steps

        def push_alone():
            self._exchange(inner, points, adopt=False)
            return True

        def fetch():
            self._fetch(inner)
            return True

        tf.cond(due, push_alone, lambda: False)
        tf.cond(fetches, fetch, lambda: False)

    def _steps(self, step):
        steps = self.method.steps(step)
        if not self.method.dynamic:
            return steps
        speeds = read_replica(self._speeds)
        mine, most = speeds[self._worker], tf.reduce_max(speeds)
        share = tf.where(mine > 0, mine / tf.maximum(most, 1e-30), 1.0)
        dynamic = tf.floor(share * tf.cast(steps, tf.float64) + 1e-9)
        return tf.maximum(tf.cast(dynamic, tf.int64), 1)

    def _inner(self, clock, optimizer, parameters, states):
        """What is known of an inner optimizer, made at its first step."""
        ordinals = [v.ordinal for v in parameters]
        if clock.ordinal in self._inners:
            inner = self._inners[clock.ordinal]
            known = [v.ordinal for v in inner.parameters]
            if known != ordinals or set(inner.states) != set(states):
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

        def zero(name):
            return store.worker_variable(tf.zeros([], tf.int64), name)

        with tf.init_scope():
            outer = self._make_outer(parameters)
            if self.method.dynamic and self._speeds is None:
                self._speeds = self._make_speeds()
            store.commit()
            self._agree(clock)
            inner = _Inner(
                clock,
                optimizer,
                outer,
                parameters,
                states,
                zero("since_push"),
                zero("since_fetch"),
                zero("examples"),
            )
            if self.method.pushed is averaging.Pushed.GRADIENTS:
                inner.accrued = {
                    v.ordinal: store.worker_variable(
                        lambda v=v: tf.zeros(v.shape, v.dtype), "accrued"
                    )
                    for v in parameters
                }
            for parameter in self._parameters():
                self._shadow(parameter)
        self._inners[clock.ordinal] = inner
        return inner

    def _make_outer(self, parameters):
        self._creates_outer = True
        try:
            with self._store.variable_scope():
                outer = self.method.outer_optimizer()
                outer.build(parameters)
        finally:
            self._creates_outer = False
        return outer

    def _agree(self, clock):
        """Refuses to train beside workers that train in another way.

        Raises:
          ValueError: Another worker takes local steps of another kind.
        """
        mine = f"local_steps={self.method!r}"
        build = tf.function(
            lambda text: agreement.build(
                self._store, "lock", f"local/{clock.ordinal}", text
            ),
            autograph=False,
        )
        theirs = build(tf.constant(mine)).numpy().decode()
        if mine != theirs:
            raise ValueError(
                f"All workers must train in the same way. Here {mine}, on the "
                f"servers {theirs}."
            )

    # The exchange.

    def _exchange(self, inner, points, adopt=True):
        """Builds the exchange of what has been done since the last one.

        Args:
          inner: The `_Inner`.
          points: By ordinal, parameters before the last step; or empty.
          adopt: Whether the worker goes on from what comes back.
        """
        store, method = self._store, self.method
        own = {v.ordinal: read_replica(v) for v in inner.parameters}
        anchors = {
            v.ordinal: read_replica(self._shadow(v)) for v in inner.parameters
        }
        records, sent = self._records(inner, own, anchors, points)
        outer = inner.outer
        counter = step_lib.step_counter(outer)
        if store.corrector is not None:
            store.corrector.before_push(records, outer, counter)
        graph = tf.compat.v1.get_default_graph()
        pulled = None if adopt else self._versions()
        weight = None
        if self._averages and method.weighted:
            weight = tf.cast(inner.examples.read_value(), tf.float64)
        step_lib.exchange_maker(store)(
            store=store,
            graph=graph,
            records=records,
            counter=counter,
            rate=lambda: keras.ops.convert_to_tensor(outer.learning_rate),
            settings=step_lib.settings_of(outer),
            frozen=set(),
            lifter=lifting.Lifter(
                graph, store, {tensor.op for tensor in sent}, None
            ),
            weight=weight,
            local_steps=inner.since_push.read_value(),
        ).build()
        # The outer optimizer's step ends here.
        one = tf.ones([], counter.dtype)
        tf.raw_ops.AssignAddVariableOp(resource=counter.local_handle, value=one)
        inner.since_push.assign(0, read_value=False)
        inner.examples.assign(0, read_value=False)
        for total in inner.accrued.values():
            total.assign(tf.zeros_like(total), read_value=False)
        if not adopt:
            for variable in inner.parameters:
                assign(variable.local_handle, own[variable.ordinal])
            self._set_versions(pulled)
            return
        inner.since_fetch.assign(0, read_value=False)
        for variable in inner.parameters:
            fresh = read_replica(variable)
            ordinal = variable.ordinal
            assign(self._shadow(variable).local_handle, fresh)
            if method.keeps_own:
                value = own[ordinal]
                value = method.adopt(
                    value, points.get(ordinal, value), anchors[ordinal], fresh
                )
                assign(variable.local_handle, value)
        if method.reset_optimizer_state:
            self._reset(inner.optimizer)
        if self._speeds is not None:
            self._began.assign(tf.timestamp(), read_value=False)

    def _records(self, inner, own, anchors, points):
        """What is done on servers, and the tensors that are sent for it."""
        method = self.method
        records, sent = [], []

        def add(variable, fn, value, **kwargs):
            value = tf.identity(value)
            sent.append(value)
            records.append(
                records_lib.Update(variable, fn, (value,), {}, **kwargs)
            )

        for variable in inner.parameters:
            ordinal = variable.ordinal
            if inner.accrued:
                value = inner.accrued[ordinal].read_value()
            else:
                value = method.push(
                    points.get(ordinal, own[ordinal]), anchors[ordinal]
                )
            add(
                variable,
                self._outer_rule(inner.outer),
                value,
                is_gradient=True,
                before=anchors[ordinal],
            )
        for variable in inner.states:
            add(variable, self._state_rule, read_replica(variable))
        if method.average_optimizer_state:
            for variable in _values(inner.optimizer):
                if variable.role is Role.AVERAGED:
                    add(variable, _assign, read_replica(variable))
        steps = tf.cast(read_replica(inner.clock), tf.float64)
        add(inner.clock, _advance, steps)
        if self._speeds is not None:
            records.append(self._speed_record(inner))
        return records, sent

    def _outer_rule(self, outer):
        def rule(variable, pushed):
            applied = self.method.apply(variable, pushed)
            if applied is not None:
                variable.assign(applied, read_value=False)
                return
            rate = keras.ops.convert_to_tensor(outer.learning_rate)
            outer.update_step(pushed, variable, tf.cast(rate, variable.dtype))

        return rule

    def _state_rule(self, variable, value):
        """Statistics: their mean, or of one worker alone its share in it."""
        if self._averages:
            variable.assign(tf.cast(value, variable.dtype), read_value=False)
        else:
            share = tf.cast(1.0 / self._num_workers, variable.dtype)
            variable.assign_add(share * (value - variable), read_value=False)

    def _versions(self):
        """What this worker has pulled, of each server."""
        store = self._store
        versions = [store.pulled_version(k) for k in range(store.num_shards)]
        if store.coordination is not None:
            ledgers = store.coordination.ledgers
            return [versions, *(one.pulled_by_server() for one in ledgers)]
        return [versions]

    def _set_versions(self, versions):
        store = self._store
        own, *of_ledgers = versions
        for shard, version in enumerate(own):
            store.set_pulled_version(shard, version)
        if store.coordination is not None:
            for ledger, numbers in zip(
                store.coordination.ledgers, of_ledgers, strict=False
            ):
                for shard, number in enumerate(numbers):
                    ledger.set_pulled(shard, number)

    def _fetch(self, inner):
        """Builds a fetch without a push."""
        self._store.build_pull(inner.parameters)
        for variable in inner.parameters:
            fresh = read_replica(variable)
            assign(self._shadow(variable).local_handle, fresh)
        inner.since_fetch.assign(0, read_value=False)

    def _reset(self, optimizer):
        """Builds: an inner optimizer's state is as at the beginning."""
        for variable in _values(optimizer):
            if variable.first_value is not None:
                value = tf.fill(variable.shape, variable.first_value)
                variable.assign(
                    tf.cast(value, variable.dtype), read_value=False
                )

    # Dynamic local steps.

    def _make_speeds(self):
        """Steps per second of each worker, on a server."""
        with self._store.variable_scope():
            speeds = tf.Variable(
                tf.zeros([self._num_workers], tf.float64),
                trainable=False,
                name="local_steps_per_second",
            )
        speeds.assigned_by_workers = True
        return speeds

    def _speed_record(self, inner):
        now = tf.timestamp()
        began = self._began.read_value()
        steps = tf.cast(inner.since_push.read_value(), tf.float64)
        speed = tf.where(began > 0, steps / tf.maximum(now - began, 1e-9), 0.0)
        mine = tf.IndexedSlices(speed[None], tf.constant([self._worker]))
        return records_lib.Mutation(self._speeds, "scatter_update", mine)

    # Eager life.

    def watch(self, call):
        """Takes note of a call of `fit`, a `Call`."""
        self.fit = call

    def _is_training(self):
        return self.fit is not None and not self.fit.is_over()

    def unpushed(self):
        """Whether this worker has taken steps that no server has heard of."""
        return any(
            int(inner.since_push.numpy()) for inner in self._inners.values()
        )

    def show_anchor(self):
        """Makes the replicas hold what the servers gave last."""
        if bool(self._shows_own.numpy()):
            number = len(self._store.variables)
            self._call(("show", number), lambda: self._build_show(False))

    def before_pull(self):
        """Called before all replicas are refreshed.

        Returns:
          Whether they may be: not in the midst of a period within `fit`.
        """
        if self._is_training() and self.unpushed():
            self.show_anchor()
            return False
        self.flush()
        return True

    def after_pull(self):
        """Called after all replicas were refreshed."""
        if not (self.method.keeps_own and self._inners):
            number = len(self._store.variables)
            self._call(("adopt", number), self._build_adopt)

    def _build_adopt(self):
        for parameter in self._parameters():
            assign(
                self._shadow(parameter).local_handle, read_replica(parameter)
            )

    def flush(self):
        """Exchanges the steps that are left when training ends."""
        for inner in self._inners.values():
            if int(inner.since_push.numpy()):
                self._call(
                    ("flush", inner.clock.ordinal),
                    lambda inner=inner: self._build_flush(inner),
                )
                if not self._is_training() and self._store.coordination:
                    # It has arrived, and nobody is to wait for its next one.
                    self._store.coordination.leave()
        self.show_anchor()

    def _build_flush(self, inner):
        self._build_show(True)
        self._exchange(inner, {})

    def before_read(self, variable):
        """Called before a variable is read eagerly."""
        if variable.role is Role.PARAMETER:
            self.show_anchor()

    def after_write(self, variable):
        """Called after a variable was assigned eagerly: own weights follow."""
        if variable.ordinal in self._shadows:
            self._shadows[variable.ordinal].assign_replica(
                read_replica(variable)
            )

    def _call(self, key, build):
        if key not in self._functions:
            function = tf.function(lambda: build(), autograph=False)
            self._functions[key] = function.get_concrete_function()
        self._functions[key]()


def _accrue(total, gradient):
    if isinstance(gradient, tf.IndexedSlices):
        total.scatter_add(gradient)
    else:
        total.assign_add(gradient, read_value=False)


def _assign(variable, value):
    variable.assign(tf.cast(value, variable.dtype), read_value=False)


def _advance(clock, steps):
    """A step counter on its server: the most steps that anybody has made."""
    steps = tf.cast(tf.round(steps), clock.dtype)
    clock.assign(tf.maximum(clock.read_value(), steps), read_value=False)


def _values(optimizer):
    return [getattr(v, "value", v) for v in optimizer.variables]


def _names(variables):
    return sorted(v.name for v in variables)
