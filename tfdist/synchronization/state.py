"""The state that a synchronization decides over: the cluster at one moment."""

import dataclasses
import enum
import functools
import itertools

import tensorflow as tf


class Status(enum.IntEnum):
    """Whether the others wait for a worker.

    EXPECTED: has not arrived yet; the first updates wait for it.
    JOINED: takes part.
    GONE: has finished, left, died or been silent for too long; nobody waits
      for it until it arrives again.
    """

    EXPECTED = 0
    JOINED = 1
    GONE = 2


class Reason(enum.IntEnum):
    """Why a worker is gone.

    NONE: it is not.
    LEFT: it has said so; its training has ended.
    ENDED: its process has ended.
    SILENT: it has not been heard of for too long.
    IDLE: it is heard of and has sent no gradient for too long.
    MISSING: it has not begun.
    REPLACED: another process has come in its place and has not begun.
    PREEMPTED: it was told to leave before its training had ended.
    ABSENT: the cluster has a place for it, and began without it.
    """

    NONE = 0
    LEFT = 1
    ENDED = 2
    SILENT = 3
    IDLE = 4
    MISSING = 5
    REPLACED = 6
    PREEMPTED = 7
    ABSENT = 8


class Phase(enum.IntEnum):
    """Place of a worker's last gradient.

    COMPUTING: nowhere, the worker computes one.
    ARRIVED: with the servers, undecided.
    ACCEPTED: part of the next update, for which the worker waits.
    GRANTED: part of an update; the worker may go on.
    DROPPED: part of no update; the worker may go on.
    """

    COMPUTING = 0
    ARRIVED = 1
    ACCEPTED = 2
    GRANTED = 3
    DROPPED = 4


_TOTALS = ("version", "head", "in_round", "arrivals", "started_at")
_WORKERS = (
    "status",
    "reason",
    "phase",
    "clock",
    "key",
    "pulled",
    "contributed",
    "order",
    "staleness",
    "since",
    "pushed",
    "accepted",
    "dropped",
    "remembered",
    "refused",
    "nonfinite",
    "staleness_sum",
    "fence",
)
_LOG = ("log_key", "log_staleness", "log_first", "log_count", "log_worker")
# In the place of a key: an update of the gradients before, and nothing more.
NO_GRADIENT = -1
# What is kept of a worker is to be forgotten.
FORGET = -2


def as_int64(value):
    """A tensor, or a number, as an int64 tensor."""
    if tf.is_tensor(value):
        return tf.cast(value, tf.int64)
    # One operation instead of two.
    return tf.constant(value, tf.int64)


def log_size(num_workers):
    """Decisions that are kept.

    Each worker carries all decisions out before it makes the next one fall,
    so no server is ever behind by more than the number of workers, each with
    a gradient, an update, and once being forgotten.
    """
    return 4 * num_workers + 8


def size(num_workers):
    """Length of a packed `State`, int."""
    return (
        len(_TOTALS)
        + len(_WORKERS) * num_workers
        + len(_LOG) * log_size(num_workers)
    )


@functools.cache
def _places(num_workers):
    """Place of each field in a packed `State`: an index, or a slice."""
    lengths = [num_workers for _ in _WORKERS]
    lengths += [log_size(num_workers) for _ in _LOG]
    ends = itertools.accumulate(lengths, initial=len(_TOTALS))
    vectors = [slice(*ends) for ends in itertools.pairwise(ends)]
    places = [*range(len(_TOTALS)), *vectors]
    return dict(zip(_TOTALS + _WORKERS + _LOG, places, strict=True))


@dataclasses.dataclass(frozen=True)
class State:
    """The cluster at one moment; every field an int64 tensor.

    Scalars:
      version: Updates decided.
      head: Entries ever written to the log.
      in_round: Gradients in the log since the last update.
      arrivals: Gradients ever arrived.
      started_at: When the first did, microseconds since the epoch; 0 before.

    Vectors with one element per worker:
      status: A `Status`.
      reason: A `Reason`, of the last time that it went.
      phase: A `Phase`.
      clock: Steps finished, as the others count them.
      key: Under which the last gradient is kept by the servers.
      pulled: Version of the parameters that it was computed from.
      contributed: One more than the version for whose successor a gradient of
        this worker was last accepted.
      order: Number of its last arrival among all arrivals.
      staleness: Updates that its last gradient was late by when it was
        accepted, or arrived.
      since: When it last arrived or was told to go on, microseconds.
      pushed, accepted, dropped: Gradients so far.
      remembered: 1 if there are entries of it since it was last forgotten.
      refused: 1 if its last gradient must not be part of an update.
      nonfinite: Gradients so far that were refused because they are NaN or
        Inf; as soon as they are decided over, they are among `dropped`.
      staleness_sum: Updates that its accepted gradients so far were late by,
        together.
      fence: Gradients of smaller keys that have not arrived are void.

    Vectors of the log, a ring that entry `k` enters at `k % log_size`:
      log_key: The gradient to be added, `NO_GRADIENT` or `FORGET`.
      log_staleness: Updates that it is late by.
      log_first: 1 if it is the first of its update.
      log_count: Gradients in the update that follows, 0 if none does.
      log_worker: Whose gradient it is, or who is forgotten.
    """

    version: tf.Tensor
    head: tf.Tensor
    in_round: tf.Tensor
    arrivals: tf.Tensor
    started_at: tf.Tensor
    status: tf.Tensor
    reason: tf.Tensor
    phase: tf.Tensor
    clock: tf.Tensor
    key: tf.Tensor
    pulled: tf.Tensor
    contributed: tf.Tensor
    order: tf.Tensor
    staleness: tf.Tensor
    since: tf.Tensor
    pushed: tf.Tensor
    accepted: tf.Tensor
    dropped: tf.Tensor
    remembered: tf.Tensor
    refused: tf.Tensor
    nonfinite: tf.Tensor
    staleness_sum: tf.Tensor
    fence: tf.Tensor
    log_key: tf.Tensor
    log_staleness: tf.Tensor
    log_first: tf.Tensor
    log_count: tf.Tensor
    log_worker: tf.Tensor

    @classmethod
    def unpack(cls, vector, num_workers):
        """The state in a vector made by `pack`, or in one of zeros."""
        parts = (
            (_TOTALS, 1),
            (_WORKERS, num_workers),
            (_LOG, log_size(num_workers)),
        )
        pieces = tf.split(vector, [len(names) * n for names, n in parts])
        fields = {}
        for (names, n), piece in zip(parts, pieces, strict=True):
            shape = [len(names)] if n == 1 and names is _TOTALS else [-1, n]
            values = tf.unstack(tf.reshape(piece, shape), num=len(names))
            fields.update(zip(names, values, strict=True))
        return cls(**fields)

    @classmethod
    def unpack_array(cls, array, num_workers):
        """The same of a NumPy array, without TensorFlow."""
        places = _places(num_workers).items()
        return cls(**{name: array[place] for name, place in places})

    def pack(self):
        """The state as one int64 vector of `size(num_workers)` elements."""
        rows = [getattr(self, name) for name in _WORKERS + _LOG]
        totals = tf.stack([getattr(self, name) for name in _TOTALS])
        return tf.concat([totals, *rows], 0)

    @property
    def num_workers(self):
        """Workers that the cluster has places for, int."""
        return self.status.shape[0]

    @property
    def enlisted(self):
        """Workers that make up the cluster for now, a bool vector.

        Everybody but those who are gone by plan: absent from the beginning,
        or told to leave. Who has died, or has ended its training, is enlisted.
        """
        by_plan = self.preempted | tf.equal(
            self.reason, as_int64(Reason.ABSENT)
        )
        return self.present | ~by_plan

    @property
    def preempted(self):
        """Workers whose last reason to go was a notice, a bool vector."""
        return tf.equal(self.reason, as_int64(Reason.PREEMPTED))

    @property
    def arrived(self):
        """Workers whose gradient is undecided, a bool vector."""
        return tf.equal(self.phase, as_int64(Phase.ARRIVED))

    @property
    def unusable(self):
        """Workers whose undecided gradient must be dropped, a bool vector."""
        return self.arrived & tf.equal(self.refused, 1)

    @property
    def waiting(self):
        """Workers that have to wait for a decision, a bool vector."""
        return self.arrived | tf.equal(self.phase, as_int64(Phase.ACCEPTED))

    @property
    def present(self):
        """Workers that are waited for, a bool vector."""
        return tf.not_equal(self.status, as_int64(Status.GONE))

    def slowest_clock(self):
        """The smallest clock of those who are waited for."""
        own = tf.where(self.present, self.clock, tf.int64.max)
        return tf.reduce_min(own)

    def set(self, mask, **values):
        """Sets fields of the workers in `mask`."""
        changed = {
            name: tf.where(mask, as_int64(value), getattr(self, name))
            for name, value in values.items()
        }
        return dataclasses.replace(self, **changed)

    # What methods of synchronization do.

    def append(self, mask, *, first, count):
        """Puts the gradients of workers into the log, as they arrived.

        Args:
          mask: Bool vector; more than one only where each is an update.
          first: 1 if the gradient is the first of its update, int or tensor.
          count: Gradients in the update that follows it; 0 if none does.
        """
        mine = as_int64(mask)
        number = tf.reduce_sum(mine)
        earlier = self.order[None, :] < self.order[:, None]
        rank = tf.reduce_sum(as_int64(earlier) * mine[None, :], 1)
        count = as_int64(count)
        updates = as_int64(count > 0)
        staleness = self.version + rank * updates - self.pulled
        state = self._write(
            mask,
            rank,
            key=self.key,
            staleness=staleness,
            first=as_int64(first),
            count=count,
        )
        return dataclasses.replace(
            state,
            in_round=tf.where(count > 0, as_int64(0), self.in_round + number),
            version=self.version + number * updates,
            staleness=tf.where(mask, staleness, self.staleness),
            accepted=self.accepted + mine,
            staleness_sum=self.staleness_sum + mine * staleness,
            remembered=tf.maximum(self.remembered, mine),
        )

    def forget(self, mask):
        """Has what is kept of workers forgotten after all entries so far."""
        rank = tf.cumsum(as_int64(mask), exclusive=True)
        nothing = as_int64(0)
        state = self._write(
            mask,
            rank,
            key=as_int64(FORGET),
            staleness=nothing,
            first=nothing,
            count=nothing,
        )
        return state.set(mask, remembered=0)

    def _write(self, mask, rank, **values):
        """Writes an entry for each worker in `mask`.

        Args:
          mask: Bool vector.
          rank: The order of the entries, int64 vector.
          **values: Of the columns, int64 scalars, or vectors by worker.
        """
        place = tf.math.floormod(self.head + rank, self.log_key.shape[0])
        slots = tf.range(self.log_key.shape[0], dtype=tf.int64)
        # (entry of the ring, worker): where each worker's entry goes.
        puts = tf.logical_and(
            tf.equal(slots[:, None], place[None, :]), mask[None, :]
        )
        taken = tf.reduce_any(puts, 1)
        values["worker"] = tf.range(self.num_workers, dtype=tf.int64)

        def put(name, value):
            new = tf.where(puts, value[None, ...], as_int64(0))
            old = getattr(self, f"log_{name}")
            return f"log_{name}", tf.where(taken, tf.reduce_sum(new, 1), old)

        columns = dict(put(name, value) for name, value in values.items())
        number = tf.reduce_sum(as_int64(mask))
        return dataclasses.replace(self, head=self.head + number, **columns)

    def accept(self, mask):
        """Workers whose gradient is part of the next update wait for it."""
        return self.set(
            mask, phase=Phase.ACCEPTED, contributed=self.version + 1
        )

    def grant(self, mask):
        """Workers whose gradient is part of an update may go on."""
        return self.set(mask, phase=Phase.GRANTED)

    def drop(self, mask):
        """Workers whose gradient does not count may go on without it."""
        state = self.set(mask, phase=Phase.DROPPED)
        dropped = self.dropped + as_int64(mask)
        return dataclasses.replace(state, dropped=dropped)

    def close_round(self, complete):
        """If `complete`, the accepted gradients make an update."""
        place = tf.math.floormod(self.head, self.log_key.shape[0])
        slots = tf.range(self.log_key.shape[0], dtype=tf.int64)
        taken = tf.logical_and(tf.equal(slots, place), complete)
        one = as_int64(complete)
        waiting = tf.equal(self.phase, as_int64(Phase.ACCEPTED))
        return dataclasses.replace(
            self,
            log_key=tf.where(taken, as_int64(NO_GRADIENT), self.log_key),
            log_staleness=tf.where(taken, as_int64(0), self.log_staleness),
            log_first=tf.where(taken, as_int64(0), self.log_first),
            log_count=tf.where(taken, self.in_round, self.log_count),
            log_worker=tf.where(taken, as_int64(0), self.log_worker),
            head=self.head + one,
            in_round=tf.where(complete, as_int64(0), self.in_round),
            version=self.version + one,
            phase=tf.where(
                tf.logical_and(waiting, complete),
                as_int64(Phase.GRANTED),
                self.phase,
            ),
        )


def where(condition, then, otherwise):
    """One of two states.

    Args:
      condition: Scalar bool tensor.
      then: A `State`.
      otherwise: A `State`.
    """

    def chosen(name):
        one, other = getattr(then, name), getattr(otherwise, name)
        # Events leave most fields as they are.
        return one if one is other else tf.where(condition, one, other)

    fields = dataclasses.fields(State)
    return State(**{field.name: chosen(field.name) for field in fields})
