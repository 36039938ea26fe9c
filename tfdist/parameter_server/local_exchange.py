"""The exchange of what an optimizer has done in some local steps."""

import dataclasses
import functools

import keras
import tensorflow as tf

from tfdist.averaging import base as averaging
from tfdist.parameter_server import lifting
from tfdist.parameter_server import records as records_lib
from tfdist.parameter_server import ring as ring_lib
from tfdist.parameter_server import step as step_lib
from tfdist.parameter_server.pull import assign
from tfdist.parameter_server.section import read_replica
from tfdist.parameter_server.variables import Role


@dataclasses.dataclass
class Inner:
    """What is known of one inner optimizer.

    Attributes:
      clock: Its step counter.
      optimizer: The Keras optimizer.
      outer: The outer one.
      parameters: List of the parameters that it trains.
      states: List of other state that its steps assign.
      since_push: Steps since its last push, a worker's int64.
      since_fetch: The same since its last fetch.
      examples: Examples in the steps since its last push, the same.
      accrued: By ordinal, sums of gradients, where these are pushed.
      set_since: Ordinals of parameters that have been set eagerly.
    """

    clock: object
    optimizer: object
    outer: object
    parameters: list
    states: list
    since_push: object
    since_fetch: object
    examples: object
    accrued: dict
    set_since: set = dataclasses.field(default_factory=set)

    def count(self, examples, gradients):
        """Builds: a step has been taken.

        Args:
          examples: Number of its examples, scalar int64 tensor.
          gradients: Its gradients, by ordinal.
        """
        self.since_push.assign_add(1, read_value=False)
        self.since_fetch.assign_add(1, read_value=False)
        self.examples.assign_add(examples, read_value=False)
        for ordinal, total in self.accrued.items():
            gradient = gradients[ordinal]
            if isinstance(gradient, tf.IndexedSlices):
                total.scatter_add(gradient)
            else:
                total.assign_add(gradient, read_value=False)

    def pushed(self):
        """Builds: what it has done has been pushed."""
        self.since_push.assign(0, read_value=False)
        self.examples.assign(0, read_value=False)
        for total in self.accrued.values():
            total.assign(tf.zeros_like(total), read_value=False)

    def forget(self):
        """What it has done since the last push is not pushed."""
        zero = tf.zeros([], tf.int64)
        for counter in (self.since_push, self.since_fetch, self.examples):
            counter.assign_replica(zero)
        for total in self.accrued.values():
            total.assign_replica(tf.zeros(total.shape, total.dtype))

    def was_set(self, variable):
        """A variable has been set eagerly, with own value and anchor alike.

        Once all parameters have been, nothing of what was done is left.
        """
        ordinals = {p.ordinal for p in self.parameters}
        if variable.ordinal not in ordinals:
            return
        if self.accrued:
            self.accrued[variable.ordinal].assign_replica(
                tf.zeros(variable.shape, variable.dtype)
            )
        self.set_since.add(variable.ordinal)
        if self.set_since == ordinals:
            self.set_since.clear()
            for counter in (self.since_push, self.examples):
                counter.assign_replica(tf.zeros([], tf.int64))

    def state(self, role):
        """Its state of a role, a list of `ReplicaVariable`."""
        values = [getattr(v, "value", v) for v in self.optimizer.variables]
        return [value for value in values if value.role is role]


def new_inner(store, method, clock, optimizer, outer, parameters, states):
    """An `Inner` that has done nothing yet.

    Args:
      store: The `ParameterStore`.
      method: The `LocalSteps`.
      clock: See `Inner`, as the others.
      optimizer: The Keras optimizer.
      outer: The outer one.
      parameters: List of the parameters that it trains.
      states: List of other state that its steps assign.
    """

    def zero(name):
        return store.worker_variable(tf.zeros([], tf.int64), name)

    def zeros_like(parameter):
        return store.worker_variable(
            lambda: tf.zeros(parameter.shape, parameter.dtype), "accrued"
        )

    accrues = method.pushed is averaging.Pushed.GRADIENTS
    return Inner(
        clock,
        optimizer,
        outer,
        parameters,
        states,
        zero("since_push"),
        zero("since_fetch"),
        zero("examples"),
        {p.ordinal: zeros_like(p) for p in parameters if accrues},
    )


class LocalExchange:
    """Builds exchanges of local steps.

    Args:
      store: The `ParameterStore`.
      method: The `LocalSteps`.
      averages: Whether updates are means over workers.
      num_workers: Number of workers.
      shadow: Callable of a variable that gives its shadow, where the anchor is
        while a step runs.
    """

    def __init__(self, store, method, *, averages, num_workers, shadow):
        self._store = store
        self._method = method
        self._averages = averages
        self._num_workers = num_workers
        self._shadow = shadow
        # Where the number of steps follows the worker's speed.
        self.speeds = None
        # Where there are no servers: the `Ring` of the workers.
        self.ring = None

    def build(
        self,
        inner,
        points,
        *,
        adopt=True,
        this_round=None,
        shows_own=True,
        last=False,
    ):
        """Builds the exchange of what has been done since the last one.

        Args:
          inner: The `Inner`.
          points: By ordinal, parameters before the last step; or empty.
          adopt: Whether the worker goes on from what comes back.
          this_round: In a `Ring`, the `Round` if it has been called already.
          shows_own: Whether the replicas hold the worker's own values now,
            and the shadows the anchors; else it is the other way round.
          last: Whether this worker trains no more.
        """
        held = [*inner.parameters, *inner.states]
        here = {v.ordinal: read_replica(v) for v in held}
        there = {v.ordinal: read_replica(self._shadow(v)) for v in held}
        own, anchors = (here, there) if shows_own else (there, here)
        points = {**own, **points}
        records, sent = self._records(inner, own, anchors, points)
        if self.ring is not None:
            this_round = this_round or self.ring.build_round(inner)
            records, sent = self.ring.average(inner, records, this_round)
        before = None if adopt else self._versions()
        self._exchange(inner, records, sent, this_round, last)
        for state in inner.states:
            assign(self._shadow(state).local_handle, read_replica(state))
        inner.pushed()
        if adopt:
            takes_part = this_round is None or this_round.takes_part
            kept = None
            if self._method.keeps_own:
                kept = functools.partial(
                    self._kept, own, points, anchors, takes_part
                )
            self._adopt(inner, kept, shows_own)
            return
        for variable in inner.parameters:
            assign(variable.local_handle, own[variable.ordinal])
        self._set_versions(before)

    def _exchange(self, inner, records, sent, this_round, last):
        store, outer = self._store, inner.outer
        counter = step_lib.step_counter(outer)
        if store.corrector is not None:
            store.corrector.before_push(records, outer, counter)
        graph = tf.compat.v1.get_default_graph()
        maker, weight = step_lib.exchange_maker(store), None
        if this_round is not None:
            maker = functools.partial(ring_lib.RingExchange, this_round)
        elif self._averages and self._method.weighted:
            weight = tf.cast(inner.examples.read_value(), tf.float64)
        maker(
            store=store,
            graph=graph,
            records=records,
            counter=counter,
            rate=lambda: keras.ops.convert_to_tensor(outer.learning_rate),
            settings=step_lib.settings_of(outer),
            frozen=set(),
            lifter=lifting.Lifter(graph, store, {t.op for t in sent}, None),
            weight=weight,
            local_steps=inner.since_push.read_value(),
            last=last,
        ).build()
        # The outer optimizer's step ends here.
        tf.raw_ops.AssignAddVariableOp(
            resource=counter.local_handle, value=tf.ones([], counter.dtype)
        )

    def _kept(self, own, points, anchors, takes_part, ordinal, fresh):
        """What a worker that keeps its own weights goes on from."""
        if not takes_part:
            return own[ordinal]
        return self._method.adopt(
            own[ordinal], points[ordinal], anchors[ordinal], fresh
        )

    def _adopt(self, inner, kept, shows_own):
        """Builds what the worker goes on from.

        Args:
          inner: The `Inner`.
          kept: Callable of an ordinal and of fresh parameters that gives own
            weights; None if they are the fresh ones.
          shows_own: As in `build`.
        """
        inner.since_fetch.assign(0, read_value=False)
        for variable in inner.parameters:
            fresh = read_replica(variable)
            shadow = self._shadow(variable).local_handle
            if kept is None:
                assign(shadow, fresh)
                continue
            own = kept(variable.ordinal, fresh)
            if shows_own:
                assign(shadow, fresh)
                assign(variable.local_handle, own)
            else:
                assign(shadow, own)
        if self._method.reset_momentum:
            _reset(inner)
        if self.speeds is not None:
            self.speeds.begin()

    def _records(self, inner, own, anchors, points):
        """What is done on servers, and the tensors that are sent for it."""
        method = self._method
        records, sent = [], []

        def add(variable, fn, value, **kwargs):
            value = self._summable(value)
            sent.append(value)
            records.append(
                records_lib.Update(variable, fn, (value,), {}, **kwargs)
            )

        rule = self._outer_rule(inner.outer)
        for variable in inner.parameters:
            ordinal = variable.ordinal
            anchor = anchors[ordinal]
            if inner.accrued:
                value = inner.accrued[ordinal].read_value()
            else:
                value = method.push(points[ordinal], anchor)
            add(variable, rule, value, is_gradient=True, before=anchor)
        for variable in inner.states:
            add(variable, self._state_rule, own[variable.ordinal])
        for variable in inner.state(Role.AVERAGED):
            add(variable, _replace, read_replica(variable))
        steps = tf.cast(read_replica(inner.clock), tf.float64)
        add(inner.clock, _advance, steps)
        if self.speeds is not None:
            records.append(self.speeds.record(inner.since_push.read_value()))
        return records, sent

    def _summable(self, value):
        """`value`, so that sums of it times examples do not overflow."""
        if self._averages and value.dtype.is_floating and value.dtype.size < 4:
            return tf.cast(value, tf.float32)
        return tf.identity(value)

    # What is done on servers.

    def _outer_rule(self, outer):
        def rule(variable, pushed):
            applied = self._method.apply(variable, pushed)
            if applied is not None:
                variable.assign(applied, read_value=False)
                return
            rate = keras.ops.convert_to_tensor(outer.learning_rate)
            outer.update_step(pushed, variable, tf.cast(rate, variable.dtype))

        return rule

    def _state_rule(self, variable, value):
        """Statistics: their mean, or of one worker alone its share in it."""
        if self._averages:
            _replace(variable, value)
        else:
            workers = tf.constant(self._num_workers, tf.float64)
            if self._store.build_enlisted is not None:
                workers = self._store.build_enlisted()
            share = tf.cast(1.0 / workers, variable.dtype)
            variable.assign_add(share * (value - variable), read_value=False)

    # A push or a fetch alone.

    def _versions(self):
        """What this worker has pulled, of each server; and of each ledger."""
        store = self._store
        versions = [store.pulled_version(k) for k in range(store.num_shards)]
        return [versions, *(one.pulled_by_server() for one in self._ledgers())]

    def _set_versions(self, versions):
        of_servers, *of_ledgers = versions
        for shard, version in enumerate(of_servers):
            self._store.set_pulled_version(shard, version)
        for ledger, numbers in zip(self._ledgers(), of_ledgers, strict=False):
            for shard, number in enumerate(numbers):
                ledger.set_pulled(shard, number)

    def _ledgers(self):
        coordination = self._store.coordination
        return [] if coordination is None else coordination.ledgers

    def fetch(self, inner):
        """Builds a fetch without a push."""
        self._store.build_pull(inner.parameters)
        for variable in inner.parameters:
            assign(self._shadow(variable).local_handle, read_replica(variable))
        inner.since_fetch.assign(0, read_value=False)


def _replace(variable, value):
    variable.assign(tf.cast(value, variable.dtype), read_value=False)


def _advance(clock, steps):
    """A step counter on its server: the most steps that anybody has made."""
    steps = tf.cast(tf.round(steps), clock.dtype)
    clock.assign(tf.maximum(clock.read_value(), steps), read_value=False)


def _reset(inner):
    """Builds: an inner optimizer's momenta are as at the beginning."""
    for variable in inner.state(Role.LOCAL):
        if averaging.is_momentum(variable.name):
            variable.assign(tf.zeros_like(variable), read_value=False)
