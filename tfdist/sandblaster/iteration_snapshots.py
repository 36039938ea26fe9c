"""Snapshots of an iteration, which all servers write together.

Between two iterations, the state of a minimization is the current point, its
gradient and the history, a piece of each on every shard, and some scalars. The
coordinator has each server write its pieces and the scalars to its own disk,
into one of two slots in turn: the other one holds the last snapshot that all
servers have completed. A slot whose writer was killed does not pass the
checksums of TensorFlow's files, or differs from those of the other servers.
"""

import json
import time

from absl import logging
import tensorflow as tf

from tfdist.cluster import snapshot_slots
from tfdist.sandblaster import fence
from tfdist.sandblaster import minimizer as minimizer_lib
from tfdist.sandblaster import shards as shards_lib

_SLOTS = (0, 1)
_RECORD = "record"
_TEXT = tf.TensorSpec([], tf.string)
# Pauses are at least so many times as long as a snapshot takes.
_MOST_OF_TIME = 20
# What a disk may say, and a server that is gone does not.
_OF_THE_DISK = (
    tf.errors.DataLossError,
    tf.errors.FailedPreconditionError,
    tf.errors.NotFoundError,
    tf.errors.OutOfRangeError,
    tf.errors.PermissionDeniedError,
    tf.errors.ResourceExhaustedError,
    tf.errors.UnknownError,
)


class StoredShards:
    """The state of a minimization in files, a part of it on each server.

    Args:
      shards: The `Shards`.
    """

    def __init__(self, shards):
        self._shards = shards
        # By point, the functions.
        self._writers = {}
        self._readers = {}

    def write(self, file, record, now):
        """Writes a file on each server.

        Args:
          file: Its name.
          record: A text that is written with it.
          now: Which point and gradient are the current ones, 0 or 1.

        Raises:
          tf.errors.OpError: A disk or a server has failed.
        """
        if now not in self._writers:

            def build(file, record, term):
                for k, piece in enumerate(self._shards.pieces()):
                    with tf.device(piece.device):
                        path = _path(file, k)
                        sent = tf.identity(record)
                        with piece.guarded(term, path, sent):
                            _save(piece, now, path, sent)

            self._writers[now] = shards_lib.traced(
                build, _TEXT, _TEXT, fence.TERM
            )
        self._writers[now](tf.constant(file), tf.constant(record), self._term())

    def read(self, file, now):
        """Reads the file of each server; raises what `write` does."""
        if now not in self._readers:

            def build(file, term):
                for k, piece in enumerate(self._shards.pieces()):
                    with tf.device(piece.device):
                        path = _path(file, k)
                        with piece.guarded(term, path):
                            _restore(piece, now, path)

            self._readers[now] = shards_lib.traced(build, _TEXT, fence.TERM)
        self._readers[now](tf.constant(file), self._term())

    def _term(self):
        return tf.constant(self._shards.fence.term, tf.int64)


class IterationSnapshots:
    """Writes and finds the snapshots of one strategy's minimizations.

    Args:
      name: Prefix of the files' names, the same in all lives of the chief.
      devices: List of the servers' devices, in order.
      here: This process's device.
      clock: Callable that gives the time in seconds.

    Attributes:
      slot: That of the last complete snapshot, or None.
      seconds: Those that each snapshot of this process took, a list.
    """

    def __init__(self, name, devices, here, clock=time.monotonic):
        self._name = name.replace("/", "-")
        self._devices = tuple(devices)
        self._here = here
        self._clock = clock
        # Seconds between two snapshots; None if a server writes none.
        self._every = None
        self._next = None
        self._failed = False
        self._offers = shards_lib.traced(self._build_offers)
        self._texts = {}
        self.slot = None
        self.seconds = []

    def look(self):
        """Asks the servers whether they write snapshots, and how often.

        Raises:
          tf.errors.OpError: A server is gone.
        """
        offers = self._offers().numpy()
        can_write = [bool(directory) for directory, _ in offers]
        self._every = float(offers[0][1]) if all(can_write) else None
        if any(can_write) and not all(can_write):
            logging.warning(
                "Servers write no snapshots: number %d has no directory.",
                can_write.index(False),
            )
        if self._every is not None and self._next is None:
            self._next = self._clock() + self._every

    def is_due(self):
        """Whether servers write snapshots, and the last one is old enough."""
        return self._every is not None and self._clock() >= self._next

    def write(self, stored, now, record):
        """Writes a snapshot.

        Args:
          stored: The `StoredShards`.
          now: Which point and gradient are the current ones, 0 or 1.
          record: Dict of what else belongs to the state, which JSON can hold;
            with `fit` and `done`, the numbers of the call and of iterations.

        Returns:
          Whether it was written. What is in a disk's way is logged.

        Raises:
          tf.errors.OpError: A server is gone.
        """
        began = self._clock()
        slot = _SLOTS[0] if self.slot is None else 1 - self.slot
        try:
            stored.write(self._file(slot), json.dumps(record), now)
        except _OF_THE_DISK as error:
            if not self._failed:
                logging.error(
                    "A server cannot write a snapshot, and the one before "
                    "counts: %s",
                    error.message.splitlines()[0][:300],
                )
            self._failed = True
            self._next = self._clock() + self._every
            return False
        if self._failed:
            logging.warning("Servers write snapshots again.")
        self._failed = False
        self.slot = slot
        end = self._clock()
        self.seconds.append(end - began)
        self._next = end + max(self._every, _MOST_OF_TIME * (end - began))
        return True

    def records(self):
        """Returns the snapshots that all servers have, the newest first.

        Returns:
          A list of tuples: the slot, and the record.

        Raises:
          tf.errors.OpError: A server is gone.
        """
        if self._every is None:
            return []
        found = []
        for slot in _SLOTS:
            texts = {self._text(k, slot) for k in range(len(self._devices))}
            text = texts.pop()
            if text is not None and not texts:
                found.append((slot, json.loads(text)))
        return sorted(
            found, key=lambda one: (one[1]["fit"], one[1]["done"]), reverse=True
        )

    def read(self, stored, slot, now):
        """Puts a snapshot back on all shards.

        Args:
          stored: The `StoredShards`.
          slot: Its slot.
          now: Which point and gradient were the current ones.

        Returns:
          Whether all of it could be read.

        Raises:
          tf.errors.OpError: A server is gone.
        """
        try:
            stored.read(self._file(slot), now)
        except _OF_THE_DISK as error:
            logging.warning(
                "A snapshot cannot be read: %s", error.message.splitlines()[0]
            )
            return False
        self.slot = slot
        return True

    def _text(self, k, slot):
        """The record in a slot of a server; None if it has none to read."""
        if k not in self._texts:
            self._texts[k] = shards_lib.traced(
                lambda file: self._build_text(k, file), _TEXT
            )
        try:
            text = self._texts[k](tf.constant(self._file(slot)))
        except _OF_THE_DISK:
            return None
        return text.numpy().decode()

    def _file(self, slot):
        return f"{self._name}-{slot}"

    def _build_offers(self):
        offers = []
        for device in self._devices:
            with tf.device(device):
                offers.append(snapshot_slots.build_offer())
        with tf.device(self._here):
            return tf.stack(offers)

    def _build_text(self, k, file):
        with tf.device(self._devices[k]):
            (text,) = tf.raw_ops.RestoreV2(
                prefix=_path(file, k),
                tensor_names=[_RECORD],
                shape_and_slices=[""],
                dtypes=[tf.string],
            )
        with tf.device(self._here):
            return tf.ensure_shape(text, [])


def _path(file, k):
    """Builds, in the device's scope: the path of a shard's part of a file."""
    name = tf.strings.join([tf.identity(file), f"-shard-{k}"])
    return snapshot_slots.build_path(name)


def _kept(now):
    """Vectors and matrices of the state, dict of name in the file to name."""
    return {
        "point": minimizer_lib.POINTS[now],
        "gradient": minimizer_lib.GRADIENTS[now],
        "history": minimizer_lib.HISTORY,
    }


def _save(piece, now, path, record):
    """Builds: one shard is written."""
    kept = _kept(now)
    tf.raw_ops.SaveV2(
        prefix=path,
        tensor_names=[*kept, _RECORD],
        shape_and_slices=[""] * (len(kept) + 1),
        tensors=[*map(piece.read, kept.values()), record],
    )


def _restore(piece, now, path):
    """Builds: one shard is read."""
    kept = _kept(now)
    values = tf.raw_ops.RestoreV2(
        prefix=path,
        tensor_names=list(kept),
        shape_and_slices=[""] * len(kept),
        dtypes=[piece.dtype] * len(kept),
    )
    for name, value in zip(kept.values(), values, strict=True):
        piece.write(name, tf.ensure_shape(value, piece.shape(name)))
