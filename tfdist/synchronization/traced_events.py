"""The events of a cluster as functions of vectors, each traced once.

What happens is decided by some hundred little operations. They are the same in
every graph that decides, but for the numbers that they are given: so they are
traced once in a process, and graphs call them.

All vectors are int64. An event is one vector, from `event`, as is a `State`,
from `State.pack`.
"""

import functools
from typing import NamedTuple

import tensorflow as tf

from tfdist import private_tensorflow
from tfdist.synchronization import events
from tfdist.synchronization import state as state_lib
from tfdist.synchronization.state import Phase

# What a heartbeat may have to tell, in the order of `tick`.
TOLD = ("working", "leaving", "joining", "preempted")
# Before the vectors of an event: worker, key, pulled, finite, current, now.
_NUMBERS = 6


def event(attendance, worker=0, *, key=0, pulled=0, finite=True, current=True):
    """Packs what happens to whom, and when, into one vector.

    Args:
      attendance: An `Attendance` of tensors.
      worker: Number of the worker that does it.
      key: Of its gradient.
      pulled: Version that this was computed from.
      finite: Whether it may count.
      current: Whether what the worker knows is of the epoch of the state.

    Returns:
      An int64 vector: six numbers, and four vectors by worker.
    """
    numbers = [worker, key, pulled, finite, current, attendance.now]
    nothing = tf.zeros_like(attendance.heard)
    vectors = [
        nothing if vector is None else tf.cast(vector, tf.int64)
        for vector in (
            attendance.heard,
            attendance.ended,
            attendance.entered,
            attendance.preempted,
        )
    ]
    numbers = tf.stack([tf.cast(number, tf.int64) for number in numbers])
    return tf.concat([numbers, *vectors], 0)


class _Numbers(NamedTuple):
    """The numbers of an event; scalar tensors."""

    worker: tf.Tensor
    key: tf.Tensor
    pulled: tf.Tensor
    finite: tf.Tensor
    current: tf.Tensor


class TracedEvents:
    """Functions of vectors, for graphs and eager calls.

    Those that are called in graphs return the new state first.

    Args:
      decisions: The `Decisions`.
      num_workers: Number of workers.
    """

    def __init__(self, decisions, num_workers):
        self._decisions = decisions
        self._num_workers = num_workers
        self._traced = {}

    def call(self, name, *vectors, **told):
        """Calls the function of that name, traced when it was first called.

        Args:
          name: Of a method of this class.
          *vectors: Its arguments, tensors of known shapes.
          **told: The same where traces differ by it.

        Returns:
          What it returns.
        """
        key = name, *told.items()
        function = self._traced.get(key)
        if function is None:
            specs = [tf.TensorSpec(v.shape, v.dtype) for v in vectors]
            build = getattr(self, name)
            # Without arguments that have defaults: TensorFlow would try to
            # bind them in each call, and print all that it is called with.
            traced = tf.function(
                lambda *vectors: build(*vectors, **told), autograph=False
            )
            with private_tensorflow.outside_of_functions(), tf.device(None):
                function = traced.get_concrete_function(*specs)
            self._traced[key] = function
        return function(*vectors)

    # With a worker that waits for the decision.

    def arrive(self, vector, event, *, last=False):
        """A gradient arrives.

        Returns:
          The new state, and who need not wait any more, a bool vector.
        """
        numbers, attendance = self._unpack_event(event)
        old = self._unpack(vector)
        new = self._arrived(old, numbers, attendance, last)
        new = state_lib.where(numbers.current, new, old)
        return new.pack(), old.waiting & ~new.waiting

    def collect(self, vector, event, staged):
        """A worker asks what became of its gradient, and goes on.

        Args:
          vector: The state.
          event: That of this worker.
          staged: See `events.fence`.

        Returns:
          The new state, and an outcome, see `_over`.
        """
        numbers, attendance = self._unpack_event(event)
        state = self._unpack(vector)
        over = numbers.current & events.is_decided(state, numbers.worker)
        return self._over(state, numbers, attendance, staged, over)

    # With one that goes on at once.

    def submit(self, vector, event, staged, *, last=False):
        """A gradient arrives, and its worker goes on: `arrive`, `collect`."""
        numbers, attendance = self._unpack_event(event)
        old = self._unpack(vector)
        new = self._arrived(old, numbers, attendance, last)
        state = state_lib.where(numbers.current, new, old)
        return self._over(state, numbers, attendance, staged, numbers.current)

    # Other events.

    def tick(self, vector, event, told):
        """A heartbeat, and what it tells.

        Args:
          vector: The state.
          event: That of the worker whose heartbeat it is.
          told: Of each of `TOLD`, a bool vector.

        Returns:
          The new state; who need not wait any more, a bool vector; whether
          this worker need not; how many workers make up the cluster, a scalar.
        """
        numbers, attendance = self._unpack_event(event)
        old = self._unpack(vector)
        told = dict(zip(TOLD, tf.unstack(told, num=len(TOLD)), strict=True))
        new = self._decisions.tick(old, attendance, numbers.worker, **told)
        return (
            new.pack(),
            old.waiting & ~new.waiting,
            events.may_go_on(new, numbers.worker),
            tf.math.count_nonzero(new.enlisted),
        )

    def may_go_on(self, vector, worker):
        """See `events.may_go_on`."""
        return events.may_go_on(self._unpack(vector), worker)

    def _arrived(self, state, numbers, attendance, last):
        return self._decisions.arrive(
            state,
            numbers.worker,
            key=numbers.key,
            pulled=numbers.pulled,
            attendance=attendance,
            last=last,
            finite=numbers.finite,
        )

    def _over(self, state, numbers, attendance, staged, over):
        """A worker's gradient has been decided over, if `over`.

        Returns:
          The new state; whether the gradient is part of an update; its
          staleness; its number among all arrivals; the length of the log; and
          the log's ring, int64 of shape (6, ring): key, staleness, first,
          count, worker, and in the first places of the last row up to which
          key each worker's gradients are void, see `events.fence`.
        """
        worker = numbers.worker
        fenced, void = events.fence(
            state, worker, staged, attendance, self._decisions.patience
        )
        state = state_lib.where(numbers.current, fenced, state)
        log = tf.stack(
            [
                state.log_key,
                state.log_staleness,
                state.log_first,
                state.log_count,
                state.log_worker,
                tf.pad(void, [[0, state.log_key.shape[0] - void.shape[0]]]),
            ]
        )
        dropped = tf.equal(
            state.phase[worker], tf.constant(Phase.DROPPED, tf.int64)
        )
        after = events.go_on(state, worker, attendance.now)
        return (
            state_lib.where(over, after, state).pack(),
            numbers.current & ~dropped,
            state.staleness[worker],
            state.order[worker],
            state.head,
            log,
        )

    def _unpack(self, vector):
        return state_lib.State.unpack(vector, self._num_workers)

    def _unpack_event(self, event):
        """The `_Numbers` of an event, and the `Attendance`."""
        numbers, heard, ended, entered, preempted = tf.split(
            event, [_NUMBERS, *4 * [self._num_workers]]
        )
        worker, key, pulled, finite, current, now = tf.unstack(numbers)
        return (
            _Numbers(worker, key, pulled, finite > 0, current > 0),
            events.Attendance(now, heard, ended > 0, entered, preempted > 0),
        )


def kept(make):
    """Has functions of tfdist's own methods made once for all who ask.

    Args:
      make: Callable of a `Decisions` and a number of workers.

    Returns:
      The callable to ask. Methods of others are made for each who asks: these
      compare equal as they please.
    """
    # As many as are compared at a time.
    known = functools.lru_cache(64)(make)

    def ask(decisions, num_workers):
        own = type(decisions.method).__module__.startswith("tfdist.")
        return (known if own else make)(decisions, num_workers)

    return ask


traced_events = kept(TracedEvents)
