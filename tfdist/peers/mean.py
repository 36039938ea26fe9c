"""The mean of all workers' parameters, which is the same on all of them."""

import json
import zlib

from absl import logging
import numpy as np
import tensorflow as tf

from tfdist.peers import board


class MeanOfWorkers:
    """Replaces vectors by their mean over the workers that are not lost.

    Each leaves its vectors on its own server. The leader reads them all, and
    gives its mean to the others, so that all have the same bits.

    Args:
      roster: The `Roster`.
      meetings: The `Meetings`.
      name: Prefix of the name of the text that a worker leaves.
      device: Of this worker.
      seconds: That a worker has to be read.
    """

    def __init__(self, roster, meetings, name, device, seconds):
        self._roster = roster
        self._meetings = meetings
        self._name = f"{name}/part"
        self._board = board.Board(device)
        self._seconds = seconds

    def take(self, vectors):
        """Returns the means, as all workers call this with theirs.

        Args:
          vectors: Dict, name -> NumPy vector; a name that other workers lack
            is a mean of those that have it.

        Returns:
          Such a dict; None if all have the same vectors already.
        """
        text = _pack(vectors)
        self._board.post(self._name, text)
        rows = self._meetings.gather([zlib.crc32(text)], "parts")
        if (rows == rows[0]).all():
            return None
        leader = self._roster.leader
        if leader == self._roster.worker_id:
            text = _pack(self._mean(vectors))
        words = self._meetings.from_chief(np.frombuffer(text, np.int32))
        if self._roster.leader != leader:
            logging.warning(
                "%s was lost while workers took the mean: all take what %s "
                "has of it, or its own parameters.",
                self._roster.names[leader],
                self._roster.names[self._roster.leader],
            )
        self._board.post(self._name, b"")
        return _unpack(words.tobytes())

    def _mean(self, vectors):
        parts = {self._roster.worker_id: vectors}
        for worker in self._roster.live:
            reader = board.BoardReader(*self._roster.places[worker])
            try:
                text = reader.read(self._name, self._seconds)
            except (tf.errors.OpError, OSError):
                text = None
            reader.close()
            if text:
                parts[worker] = _unpack(text)
            else:  # Whoever waits for it next gives it up.
                logging.warning(
                    "The mean is without %s, which does not answer.",
                    self._roster.names[worker],
                )
        result = {}
        for name in sorted({name for part in parts.values() for name in part}):
            found = self._finite(
                {
                    worker: part[name]
                    for worker, part in sorted(parts.items())
                    if name in part
                }
            )
            total = np.zeros(found[0].shape, np.float64)
            for vector in found:
                total += vector
            result[name] = (total / len(found)).astype(found[0].dtype)
        return result

    def _finite(self, vectors):
        """Those vectors that are finite, a list; all, if none is."""
        finite = {k: v for k, v in vectors.items() if np.isfinite(v).all()}
        for worker in vectors.keys() - finite.keys():
            logging.warning(
                "Parameters of %s are not finite%s.",
                self._roster.names[worker],
                ": the mean is without them" if finite else "",
            )
        return list((finite or vectors).values())


def _pack(vectors):
    """Bytes of named vectors, a multiple of four."""
    items = sorted(vectors.items())
    facts = [[name, vector.dtype.name, vector.size] for name, vector in items]
    header = json.dumps(facts).encode()
    length = np.array([len(header)], np.int64).tobytes()
    padding = b" " * (-len(header) % 4)
    body = [np.ascontiguousarray(vector).tobytes() for _, vector in items]
    return b"".join([length, header, padding, *body])


def _unpack(text):
    """The dict of `_pack`."""
    (length,) = np.frombuffer(text[:8], np.int64).tolist()
    start = 8 + length + -length % 4
    result = {}
    for name, dtype, size in json.loads(text[8 : 8 + length]):
        end = start + size * np.dtype(dtype).itemsize
        result[name] = np.frombuffer(text[start:end], dtype)
        start = end
    return result
