"""Events of a cluster, the same for all methods of synchronization."""

import dataclasses

import tensorflow as tf

from tfdist.synchronization import state as state_lib
from tfdist.synchronization.state import Phase
from tfdist.synchronization.state import Reason
from tfdist.synchronization.state import Status


@dataclasses.dataclass(frozen=True)
class Attendance:
    """Liveness of the workers' processes at one moment.

    Attributes:
      now: Microseconds since the epoch, scalar int64 tensor.
      heard: When each worker was last heard of, int64 vector; 0 for never.
      ended: Whether its process has ended, bool vector.
      entered: When its process began, int64 vector; None if that is unknown.
      preempted: Whether its process has ended because it was told to, bool
        vector; None where that does not happen.
    """

    now: tf.Tensor
    heard: tf.Tensor
    ended: tf.Tensor
    entered: tf.Tensor | None = None
    preempted: tf.Tensor | None = None


@dataclasses.dataclass(frozen=True)
class Patience:
    """For how long workers are waited for, in microseconds.

    Attributes:
      silent: For one that took part and is not heard of.
      missing: For one that has never arrived, from the first arrival on.
      idle: For one that is heard of and sends no gradient.
    """

    silent: int
    missing: int
    idle: int

    @classmethod
    def of_seconds(cls, *, silent, missing, idle):
        """The same from seconds."""
        return cls(int(silent * 1e6), int(missing * 1e6), int(idle * 1e6))


def _is(values, value):
    return tf.equal(values, state_lib.as_int64(value))


def _mask(state, worker):
    return _is(tf.range(state.num_workers, dtype=tf.int64), worker)


def arrive(state, worker, *, key, pulled, now, last=False, finite=None):
    """A gradient of a worker has arrived.

    A worker that was gone takes part again; it enters no further back than
    the slowest of the others, so that nobody has to wait until it has caught
    up. If everybody was gone, training starts afresh; if this worker had ended
    its training, those who had, too, are expected with it.

    Args:
      state: A `State`.
      worker: Its number, int.
      key: Under which the servers keep the gradient, scalar int64 tensor.
      pulled: Version that it was computed from, scalar int64 tensor.
      now: Microseconds, scalar int64 tensor.
      last: bool, whether it is the worker's last: it trains no more, and
        nobody waits for another one.
      finite: Whether the gradient may count, scalar bool tensor; one that is
        NaN or Inf is dropped. None if all may.

    Returns:
      The new `State`.
    """
    mine = _mask(state, worker)
    if not last:
        state = _begin_anew(state, mine)
    # A worker that was killed while it waited leaves an undecided gradient.
    lost = tf.cast(tf.logical_and(mine, state.arrived), tf.int64)
    clock = _clock_of(state, mine, state.clock + 1 - lost)
    finite = tf.ones([], tf.bool) if finite is None else finite
    nonfinite = tf.cast(tf.logical_not(finite), tf.int64)
    # Servers may have freed it already.
    fenced = tf.cast(key < state.fence[worker], tf.int64)
    state = state.set(
        mine,
        status=Status.JOINED,
        phase=Phase.ARRIVED,
        clock=clock,
        key=key,
        pulled=pulled,
        order=state.arrivals,
        staleness=state.version - pulled,
        since=now,
        pushed=state.pushed + 1,
        dropped=state.dropped + lost,
        refused=tf.maximum(nonfinite, fenced),
        nonfinite=state.nonfinite + nonfinite,
    )
    if last:
        state = _remove(state, mine, Reason.LEFT)
    return _started(
        dataclasses.replace(state, arrivals=state.arrivals + 1), now
    )


def join(state, worker, now):
    """A worker begins to train, and will send a gradient after some steps.

    As if one had arrived: the others wait for its first one.

    Args:
      state: A `State`.
      worker: Its number.
      now: Microseconds, scalar int64 tensor.

    Returns:
      The new `State`.
    """
    mine = _mask(state, worker)
    state = _begin_anew(state, mine)
    clock = _clock_of(state, mine, state.clock)
    state = state.set(mine, status=Status.JOINED, clock=clock, since=now)
    return _started(state, now)


def _clock_of(state, mine, clock):
    """That of a worker; no further back than the slowest if it was gone."""
    others = tf.logical_and(state.present, tf.logical_not(mine))
    slowest = tf.reduce_min(tf.where(others, state.clock, tf.int64.max))
    returns = tf.logical_and(
        _is(state.status, Status.GONE), tf.reduce_any(others)
    )
    return tf.where(returns, tf.maximum(clock, slowest), clock)


def _started(state, now):
    """Training has begun, now if not before."""
    first = _is(state.started_at, 0)
    started_at = tf.where(first, now, state.started_at)
    return dataclasses.replace(state, started_at=started_at)


def _begin_anew(state, mine):
    """If everybody is gone, the state of a run that begins.

    Gradients that have not filled an update of the run before are part of
    none: the parameters may have been set since.

    Who comes back from a failure has a run to end that the others have
    ended: it does not wait for them.
    """
    nobody = tf.logical_not(tf.reduce_any(state.present))
    left = _is(state.reason, Reason.LEFT)
    again = nobody & tf.reduce_any(left & mine)
    state = state.set(again & left, status=Status.EXPECTED)
    zero = tf.constant(0, tf.int64)
    return dataclasses.replace(
        state,
        clock=tf.where(nobody, zero, state.clock),
        in_round=tf.where(nobody, zero, state.in_round),
        started_at=tf.where(nobody, zero, state.started_at),
    )


def leave(state, worker, preempted=False):
    """A worker will send no more gradients for now.

    Args:
      state: A `State`.
      worker: Its number.
      preempted: Whether it was told to leave, bool.

    Returns:
      The new `State`.
    """
    left, told = (tf.cast(r, tf.int64) for r in (Reason.LEFT, Reason.PREEMPTED))
    reason = tf.where(preempted, told, left)
    return _remove(state, _mask(state, worker), reason)


def excuse(state, worker):
    """A worker has to leave, and waits no longer for a decision.

    What it has sent is decided over as if it waited. Nothing happens while it
    computes: it will send one gradient more.

    Args:
      state: A `State`.
      worker: Its number.

    Returns:
      The new `State`.
    """
    waits = _mask(state, worker) & state.waiting
    return state.set(waits, status=Status.GONE, reason=Reason.PREEMPTED)


def may_go_on(state, worker):
    """Whether a worker need not wait (any more), a scalar bool tensor."""
    excused = ~state.present & state.preempted
    return tf.logical_or(is_decided(state, worker), excused[worker])


def absent(state, initial_workers):
    """The state of a cluster that begins with its first workers alone.

    Args:
      state: A `State` in which nothing has happened.
      initial_workers: How many, int.

    Returns:
      The new `State`.
    """
    number = tf.range(state.num_workers, dtype=tf.int64)
    return _remove(state, number >= initial_workers, Reason.ABSENT)


def _remove(state, mask, reason):
    """Workers are gone, for that reason if they were not before."""
    going = tf.logical_and(mask, state.present)
    return state.set(going, status=Status.GONE, reason=reason)


def forget(state, returning=None):
    """Has servers forget the workers that are `forgettable`."""
    return state.forget(forgettable(state, returning))


def forgettable(state, returning=None):
    """Workers that are remembered, are gone and have nothing undecided.

    Args:
      state: A `State`.
      returning: Number of a worker that is about to arrive: what it has left
        undecided will be dropped.

    Returns:
      A bool vector.
    """
    gone = _is(state.status, Status.GONE) & _is(state.remembered, 1)
    settled = ~state.waiting
    if returning is not None:
        settled |= _mask(state, returning)
    return gone & settled


def fence(state, worker, staged, attendance, patience):
    """Finds gradients that nobody will take any more, and bars the way to them.

    Args:
      state: A `State`.
      worker: Number of the worker that goes on now.
      staged: Keys of the last gradients that each worker has brought to the
        first server, newest first, int64 of shape (num_workers, 2 or more).
      attendance: An `Attendance`.
      patience: A `Patience`.

    Returns:
      The new `State`; and keys, an int64 vector: up to that of each worker,
      its gradients are void, or are in the log.
    """
    silent = (attendance.heard > 0) & (
        attendance.now - attendance.heard > patience.silent
    )
    # The last one that has arrived is decided over, as all before it. What a
    # worker has brought since it may be about to tell of; but not if it is
    # dead, and never of what it brought before that.
    known = tf.where(_mask(state, worker), state.key, state.key - 1)
    known = tf.maximum(known, staged[:, 1])
    newest = tf.maximum(staged[:, 0], state.key)
    known = tf.where(attendance.ended | silent, newest, known)
    void = tf.where(state.arrived, state.key - 1, known)
    fence = tf.maximum(state.fence, void + 1)
    return dataclasses.replace(state, fence=fence), void


def work_on(state, worker, now):
    """A worker computes, and will send a gradient later.

    It has steps to make between two exchanges, and is not idle.

    Args:
      state: A `State`.
      worker: Its number.
      now: Microseconds, scalar int64 tensor.

    Returns:
      The new `State`.
    """
    works = _mask(state, worker) & _is(state.phase, Phase.COMPUTING)
    state = state.set(works & state.present, since=now)
    expected = works & _is(state.status, Status.EXPECTED)
    return state.set(expected, status=Status.JOINED)


def go_on(state, worker, now):
    """A worker has been told what became of its gradient."""
    return all_go_on(state, _mask(state, worker), now)


def all_go_on(state, mask, now):
    """Several workers have, those in the bool vector `mask`."""
    return state.set(mask, phase=Phase.COMPUTING, since=now)


def is_decided(state, worker):
    """Whether a worker may go on, a scalar bool tensor."""
    phase = state.phase[worker]
    return tf.logical_or(_is(phase, Phase.GRANTED), _is(phase, Phase.DROPPED))


def attend(state, attendance, patience):
    """Workers that have ended, or are silent for too long, are gone.

    Args:
      state: A `State`.
      attendance: An `Attendance`.
      patience: A `Patience`.

    Returns:
      The new `State`.
    """
    now = attendance.now
    known = attendance.heard > 0
    last = tf.maximum(attendance.heard, state.since)
    silent = tf.logical_and(known, now - last > patience.silent)
    idle = ~state.waiting & (now - state.since > patience.idle)
    late = tf.logical_and(
        state.started_at > 0, now - state.started_at > patience.missing
    )
    joined = _is(state.status, Status.JOINED)
    if attendance.preempted is not None:
        left = attendance.preempted
        state = _remove(state, left, Reason.PREEMPTED)
        # Its training had ended before, as far as the others knew.
        state = state.set(left & ~state.present, reason=Reason.PREEMPTED)
    state = _remove(state, attendance.ended, Reason.ENDED)
    state = _remove(state, silent, Reason.SILENT)
    state = _remove(state, tf.logical_and(joined, idle), Reason.IDLE)
    state = _remove(state, tf.logical_and(~joined, late), Reason.MISSING)
    if attendance.entered is None:
        return state
    # Another process has come in its place, and may be long in starting.
    replaced = tf.logical_and(joined, attendance.entered > state.since)
    return _remove(state, replaced, Reason.REPLACED)
