"""Sums over all workers, bit for bit the same on each."""

import functools
import time
import zlib

import numpy as np
import tensorflow as tf

from tfdist import private_tensorflow
from tfdist.cluster import collective_sums


def key_of(text):
    """A positive int32 that is the same on all workers for the same text."""
    return zlib.crc32(text.encode()) & 0x7FFFFFFF


def of(peers, tolerance):
    """Returns the collectives of a worker.

    Args:
      peers: The `Peers`; None for one worker alone.
      tolerance: The `FaultTolerance`, whose `stall_timeout` bounds them.
    """
    if peers is None:
        return NoCollectives()
    waits = tolerance.on_stall == "wait"
    return Collectives(peers, 0.0 if waits else tolerance.stall_timeout)


class NoCollectives:
    """The collectives of one worker alone: a sum is what it brings."""

    num_workers = 1
    has_failed = False

    def sum(self, vector, name, piece=None):
        """Returns `vector`."""
        return vector

    def gather(self, row, name):
        """Returns the matrix whose only row is `row`."""
        return np.asarray(row, np.int64)[None]

    def from_chief(self, words):
        """Returns `words`."""
        return words

    def call(self, function, *args):
        """Calls a function."""
        return function(*args)


class Collectives:
    """The collectives of a cluster of workers.

    Args:
      peers: The `Peers`.
      seconds: That a worker may take to come to a collective; 0 for no bound.

    Attributes:
      device: This worker's CPU.
      num_workers: Number of workers.
    """

    def __init__(self, peers, seconds):
        # Whether a sum has taken too long.
        self._has_stalled = False
        self._peers = peers
        self.device = peers.device
        self._seconds = seconds
        self.num_workers = peers.num_workers
        # By piece: pieces run at the same time, steps one after the other.
        # Each is a variable that holds since when the piece is being summed,
        # in seconds since the epoch; 0 if it is not.
        self._tokens = {}
        # What was seen there, and when it was first.
        self._seen = {}
        self._eager = {}
        peers.watching.add(self)

    def sum(self, vector, name, piece=None):
        """Builds the sum of all workers' vectors.

        Args:
          vector: Of the same size and type on all workers.
          name: That tells which vectors belong together.
          piece: Sums with the same one run one after the other.
        """
        return self._in_order(
            functools.partial(collective_sums.build, key=key_of(name)),
            vector,
            piece,
        )

    def gather_rows(self, rows, power, name, piece):
        """Builds the rows of all workers, in the order of the workers.

        Args:
          rows: Matrix of as many rows on all workers.
          power: Scalar int32 from 0 to 31, another for each number of rows.
          name: That tells which rows belong together.
          piece: As in `sum`.
        """
        key = (key_of(name) & ~31) + tf.convert_to_tensor(power)
        return self._in_order(
            functools.partial(collective_sums.build_rows, key=key), rows, piece
        )

    def _in_order(self, build, tensor, piece):
        token = self._token(piece)
        with tf.control_dependencies([tensor]):
            now = tf.timestamp()
        token.assign(now, read_value=False)
        result = build(
            tensor,
            device=self.device,
            num_workers=self.num_workers,
            tokens=[token.handle],
        )
        token.assign(0.0, read_value=False)
        return result

    def _token(self, piece):
        if piece not in self._tokens:
            with tf.init_scope(), tf.device(self.device):
                self._tokens[piece] = private_tensorflow.hidden_variable(
                    tf.zeros([], tf.float64)
                )
        return self._tokens[piece]

    @property
    def has_failed(self):
        """Whether no sum succeeds any more, for good."""
        return self._has_stalled or self._peers.has_lost

    def look(self):
        """Ends all sums if one has waited for too long; at each heartbeat.

        Returns:
          Whether a sum is under way.
        """
        now = time.monotonic()
        is_under_way = False
        for piece, token in list(self._tokens.items()):
            since = float(token.numpy())
            is_under_way |= since != 0.0
            if self._seen.get(piece, (None,))[0] != since:
                self._seen[piece] = since, now
            elif since and 0 < self._seconds < now - self._seen[piece][1]:
                self._peers.watching.discard(self)  # Once is for good.
                self._has_stalled = True
                private_tensorflow.abort_collectives(
                    tf.errors.DEADLINE_EXCEEDED,
                    f"A sum over the workers took over {self._seconds:g} s.",
                )
        return is_under_way

    def gather(self, row, name):
        """Returns all workers' rows of whole numbers.

        Args:
          row: Sequence of ints, as long on all workers.
          name: That tells which rows belong together.

        Returns:
          An int64 array `(num_workers, len(row))`.
        """
        rows = np.zeros([self.num_workers, len(row)], np.int64)
        rows[self._peers.worker_id] = row
        return self._sum_eagerly(rows, name)

    def from_chief(self, words):
        """Returns the chief's `words`, an int32 vector as long on all."""
        mine = words if self._peers.worker_id == 0 else np.zeros_like(words)
        return self._sum_eagerly(mine, "from_chief")

    def _sum_eagerly(self, array, name):
        name = f"{name}/{array.shape}"
        if name not in self._eager:
            self._eager[name] = tf.function(
                functools.partial(self.sum, name=name), autograph=False
            )
        return self.call(self._eager[name], tf.constant(array)).numpy()

    def call(self, function, *args):
        """Calls a function that has collectives, and explains its errors.

        Raises:
          tf.errors.UnavailableError: A worker is gone; the message names it.
          tf.errors.DeadlineExceededError: One has not come in time.
        """
        try:
            return function(*args)
        except _OF_OTHERS as error:
            lost = self._peers.lost_worker()
            if lost is not None:
                raise tf.errors.UnavailableError(None, None, lost) from error
            if not isinstance(error, tf.errors.DeadlineExceededError):
                raise
            raise tf.errors.DeadlineExceededError(
                None,
                None,
                "All workers answer, and one has not come to this step or to "
                f"this end of an epoch within {self._seconds:g} s. Do all run "
                "the same program, with as many steps in loops of its own? "
                "Where a worker needs longer: fault_tolerance=tfdist."
                "FaultTolerance(stall_timeout=...).",
            ) from error


# The errors of collectives of which another worker is the cause.
_OF_OTHERS = (
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.FailedPreconditionError,
    tf.errors.InternalError,
    tf.errors.UnavailableError,
    tf.errors.UnknownError,
)
