"""The exchange of what an optimizer has done in some local steps."""

import functools

import keras
import tensorflow as tf

from tfdist import one_replica
from tfdist.runtime.exchange import records as records_lib
from tfdist.runtime.exchange import step as step_lib
from tfdist.runtime.exchange import subgraph_replay
from tfdist.runtime.exchange.pull_response import assign
from tfdist.runtime.local_steps import inner_optimizer as inner_lib
from tfdist.runtime.local_steps import local_speeds
from tfdist.runtime.variables.server_scope import read_replica
from tfdist.runtime.variables.variables import Role


class LocalExchange:
    """Builds exchanges of local steps.

    Args:
      runtime: The `Runtime`.
      method: The `LocalSteps`.
      averages: Whether updates are means over workers.
      num_workers: Number of workers.
      worker_id: Number of this one.
      build_workers: Builds, on a server, how many make up the cluster, a
        scalar float64.
      communication: The `ServerCommunication` or `RingCommunication`.
      shadow: Callable of a variable that gives its shadow, where the anchor is
        while a step runs.
    """

    def __init__(
        self,
        runtime,
        method,
        *,
        averages,
        num_workers,
        worker_id,
        build_workers,
        communication,
        shadow,
    ):
        self._runtime = runtime
        self._store = runtime.store
        self._method = method
        self._averages = averages
        self._num_workers = num_workers
        self._worker = worker_id
        self._build_workers = build_workers
        self._shadow = shadow
        self._communication = communication

    def new_speeds(self):
        """The `Speeds` that an optimizer's number of steps follows, or None."""
        if not self._method.dynamic:
            return None
        return local_speeds.Speeds(
            self._store,
            self._runtime.variable_scope,
            self._num_workers,
            self._worker,
        )

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
          this_round: The `Round` if it has begun already.
          shows_own: Whether the replicas hold the worker's own values now,
            and the shadows the anchors; else it is the other way round.
          last: Whether this worker trains no more.
        """
        own, anchors = self._both(inner, shows_own)
        points = {**own, **points}
        records, sent = self._records(inner, own, anchors, points)
        settle = self._runtime.corrector.before_push(
            records, inner.outer, step_lib.step_counter(inner.outer)
        )
        if this_round is None:
            finite = self._check(inner, records, own)
            this_round = self._communication.build_round(inner)
        else:
            finite = self._was_finite(inner, this_round)
        settle(finite)
        records, sent = self._communication.combine(
            inner, records, sent, this_round, finite
        )
        before = None if adopt else self._versions()
        self._exchange(inner, records, sent, this_round, last, finite)
        for state in inner.states:
            assign(self._shadow(state).local_handle, read_replica(state))
        inner.pushed()
        if finite is not None:
            inner_lib.begin_anew(inner, finite)
        if adopt:
            takes_part = this_round.takes_part
            kept = None
            if self._method.keeps_own:
                kept = functools.partial(
                    self._kept, own, points, anchors, takes_part, finite
                )
            self._adopt(inner, kept, shows_own)
            if inner.speeds is not None:
                inner.speeds.begin()
            return
        for variable in inner.parameters:
            kept = own[variable.ordinal]
            if finite is not None:
                kept = tf.where(finite, kept, read_replica(variable))
            assign(variable.local_handle, kept)
        self._set_versions(before, finite)

    def look(self, inner):
        """Builds the look at what other workers are to be told of `inner`.

        The replicas hold the worker's own values.

        Args:
          inner: The `Inner`.
        """
        own, anchors = self._both(inner, shows_own=True)
        records, _ = self._records(inner, own, anchors, own)
        self._check(inner, records, own)

    def _both(self, inner, shows_own):
        """Own values and anchors of what is exchanged, by ordinal."""
        here = {v.ordinal: read_replica(v) for v in inner.held}
        there = {v.ordinal: read_replica(self._shadow(v)) for v in inner.held}
        return (here, there) if shows_own else (there, here)

    def _check(self, inner, records, own):
        """Builds: is all finite, a scalar bool tensor; None not to look."""
        more = []
        if inner.accrued or self._method.keeps_own:
            # What the worker goes on from is not what it pushes.
            more = [
                (v.name.split(":")[0], own[v.ordinal]) for v in inner.parameters
            ]
        finite = self._runtime.nonfinite.check(records, is_step=True, more=more)
        if finite is not None:
            inner.finite.assign(finite, read_value=False)
        return finite

    def _was_finite(self, inner, this_round):
        """Returns whether the local steps were finite, as `look` has found."""
        nonfinite = self._runtime.nonfinite
        if not nonfinite.looks:
            return None
        if not this_round.takes_part:
            return tf.ones([], tf.bool)
        return inner.finite.read_value()

    def _exchange(self, inner, records, sent, this_round, last, finite):
        outer = inner.outer
        counter = step_lib.step_counter(outer)
        graph = tf.compat.v1.get_default_graph()
        self._communication.exchange(
            inner,
            this_round,
            runtime=self._runtime,
            graph=graph,
            records=records,
            counter=counter,
            rate=lambda: keras.ops.convert_to_tensor(outer.learning_rate),
            settings=records_lib.local_scalars_of(outer),
            frozen=set(),
            lifter=subgraph_replay.Lifter(
                graph, self._store, {t.op for t in sent}, None
            ),
            local_steps=inner.since_push.read_value(),
            last=last,
            finite=finite,
        ).build()
        # The outer optimizer's step ends here.
        tf.raw_ops.AssignAddVariableOp(
            resource=counter.local_handle, value=tf.ones([], counter.dtype)
        )

    def _kept(self, own, points, anchors, takes_part, finite, ordinal, fresh):
        """Builds the weights that a worker with its own continues from."""
        if not takes_part:
            return own[ordinal]
        kept = self._method.adopt(
            own[ordinal], points[ordinal], anchors[ordinal], fresh
        )
        return kept if finite is None else tf.where(finite, kept, fresh)

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
            constraint = one_replica.constraint_of(variable)
            if constraint is not None:
                own = tf.cast(constraint(own), variable.dtype)
            if shows_own:
                assign(shadow, fresh)
                assign(variable.local_handle, own)
            else:
                assign(shadow, own)
        if self._method.reset_momentum:
            inner_lib.reset_momentum(inner)

    def _records(self, inner, own, anchors, points):
        """Returns the records for servers, and the tensors that they need."""
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
        if inner.speeds is not None:
            records.append(inner.speeds.record(inner.since_push.read_value()))
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
            if applied is None:
                rate = keras.ops.convert_to_tensor(outer.learning_rate)
                rate = tf.cast(rate, variable.dtype)
                outer.update_step(pushed, variable, rate)
            else:
                variable.assign(applied, read_value=False)
            # The workers' weights meet it; their mean, or a step of the outer
            # optimizer, need not.
            constraint = one_replica.constraint_of(variable)
            if constraint is not None:
                _replace(variable, constraint(variable.read_value()))

        return rule

    def _state_rule(self, variable, value):
        """Statistics: their mean, or of one worker alone its share in it."""
        if self._averages:
            _replace(variable, value)
        else:
            share = tf.cast(1.0 / self._build_workers(), variable.dtype)
            variable.assign_add(share * (value - variable), read_value=False)

    # A push or a fetch alone.

    def _versions(self):
        """Returns the pulled versions, of each server and of each ledger."""
        store = self._store
        versions = [store.pulled_version(k) for k in range(store.num_shards)]
        return [versions, *(one.pulled_by_server() for one in self._ledgers())]

    def _set_versions(self, versions, finite=None):
        if finite is not None:
            # Weights that are not finite have made room for fresh ones.
            versions = [
                [tf.where(finite, *pair) for pair in zip(*both, strict=False)]
                for both in zip(versions, self._versions(), strict=False)
            ]
        of_servers, *of_ledgers = versions
        for shard, version in enumerate(of_servers):
            self._store.set_pulled_version(shard, version)
        for ledger, numbers in zip(self._ledgers(), of_ledgers, strict=False):
            for shard, number in enumerate(numbers):
                ledger.set_pulled(shard, number)

    def _ledgers(self):
        return self._runtime.coordination.ledgers

    def fetch(self, inner):
        """Builds a fetch without a push."""
        self._runtime.build_pull(inner.parameters)
        for variable in inner.parameters:
            assign(self._shadow(variable).local_handle, read_replica(variable))
        inner.since_fetch.assign(0, read_value=False)


def _replace(variable, value):
    variable.assign(tf.cast(value, variable.dtype), read_value=False)


def _advance(clock, steps):
    """A step counter on its server: the most steps that anybody has made."""
    steps = tf.cast(tf.round(steps), clock.dtype)
    clock.assign(tf.maximum(clock.read_value(), steps), read_value=False)
