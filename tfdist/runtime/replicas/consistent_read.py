"""Reading all servers at one moment: a consistent cut of the training.

All locks are taken, in the order of the servers, before anything is read. A
training step holds the lock of one server and waits for no other one, so
nobody waits for each other. What the locks do not see, an update that one
server has applied and the next one not yet, the marks show
(`ExchangeMarkers`); then it is read again.
"""

import random
import time

from absl import logging
import numpy as np
import tensorflow as tf

from tfdist.runtime.exchange import exchange_markers
from tfdist.runtime.variables import traced_calls

# An update that does not get on for so long is that of a worker that has died
# or was stopped in the middle of it.
ABANDONED_SECONDS = 3.0
# Updates of many workers may never all be done: then they are not waited for.
GIVE_UP_SECONDS = 20.0
_PAUSE_SECONDS = 0.002


def lock_all(store):
    """Builds: takes the locks of all servers.

    Args:
      store: The `ParameterStore`.

    Returns:
      A list of what `unlock` needs, by server, and the operation after which
      all are held.
    """
    locks, held = [], []
    for shard in range(store.num_shards):
        with tf.control_dependencies(held):
            lock = store.lock(shard)
        locks.append(lock)
        held = [lock.op]
    return locks, held[0]


class Reader:
    """Repeats a reading until no update is half done.

    Args:
      store: The `ParameterStore`.
      marks: Its `ExchangeMarkers`.

    Attributes:
      attempts: How often the last reading was done.
    """

    def __init__(self, store, marks):
        self._marks = marks
        self._traced = traced_calls.Traced(store)
        # Exchanges that nobody will complete.
        self._abandoned = set()
        self.attempts = 0

    def read(self, key, build):
        """Reads, again and again if need be.

        Args:
          key: Of what `build` builds, hashable.
          build: Builds the reading; returns what `Marks.build_all` does,
            brought here, and what else is wanted, a structure of tensors.

        Returns:
          What else was wanted.
        """
        self._marks.prepare(self._traced)
        began = time.monotonic()
        seen = {}
        self.attempts = 0
        while True:
            self.attempts += 1
            marks, wanted = self._traced.call(key, build)
            if not marks:
                return wanted
            late = exchange_markers.half_done(
                np.stack([m.numpy() for m in marks])
            )
            now = time.monotonic()
            seen = {one: seen.get(one, now) for one in late}
            abandoned = {
                one
                for one, since in seen.items()
                if now - since > ABANDONED_SECONDS
            }
            self._warn_of(abandoned - self._abandoned, late)
            self._abandoned |= abandoned
            waiting = late.keys() - self._abandoned
            if waiting and now - began > GIVE_UP_SECONDS:
                self._warn_of(waiting, late)
                waiting = ()
            if not waiting:
                return wanted
            time.sleep(random.uniform(0, 2 * _PAUSE_SECONDS))

    def _warn_of(self, exchanges, late):
        for worker, number in sorted(exchanges):
            logging.warning(
                "What is read from the servers holds an update of worker %d "
                "that is not on servers %s (attempt %d).",
                worker,
                late[worker, number],
                self.attempts,
            )
