"""An update once any s gradients have arrived."""

import copy

import tensorflow as tf

from tfdist import checks
from tfdist.synchronization import base
from tfdist.synchronization.state import State


class SoftSync(base.Synchronization):
    """Softsync: each update averages the next `s` gradients, of any workers.

    Zhang, Gupta, Lian and Liu, "Staleness-aware async-SGD for distributed
    deep learning", IJCAI 2016, section 3. Nobody waits and nothing is
    dropped; a fast worker may contribute several gradients to one update.
    What has not filled an update when the training of all workers ends is part
    of none, but counts as applied in `strategy.push_counts()`.
    `s=1` is `Async`.

    Args:
      s: Gradients per update, at least 1.
      n: Instead of `s`, the paper's splitting parameter: the update is made
        of `s = floor(workers / n)` gradients, 1 <= n <= workers. `n` near 1
        is slow and fresh; the staleness of a gradient is about `n`. Where
        workers are added or told to leave, `s` follows. Default, without
        `s`: 1, as many gradients as there are workers.
    """

    def __init__(self, s: int | None = None, *, n: int | None = None):
        if s is None and n is None:
            n = 1
        if s is not None and n is not None:
            raise ValueError(
                "Arguments `s` (gradients per update) and `n` (splitting "
                "parameter) of SoftSync must not both be given. Received: "
                f"s={s!r}, n={n!r}"
            )
        self.s = None if s is None else checks.count("SoftSync: s", s)
        self.n = None if n is None else checks.count("SoftSync: n", n)

    def __repr__(self):
        if type(self) is not SoftSync:
            # It may have other settings.
            return super().__repr__()
        return (
            f"SoftSync(s={self.s})" if not self.n else f"SoftSync(n={self.n})"
        )

    @property
    def averages(self) -> bool:
        """Whether an update may be made of several gradients."""
        return self.s != 1

    def resolve(self, num_workers: int) -> base.Synchronization:
        if self.s is not None:
            return self
        if self.n > num_workers:
            raise ValueError(
                "Argument `n` of SoftSync must be at most the number of "
                f"workers, {num_workers}. Received: n={self.n}"
            )
        resolved = copy.copy(self)
        resolved.s = num_workers // self.n
        return resolved

    def gradients_per_update(self, num_workers: int) -> int:
        """Number of gradients in an update, while all workers are there.

        Args:
          num_workers: Their number: `s` counts all places, some of which may
            be unused.
        """
        if self.n is None:
            return self.s
        return max(num_workers // self.n, 1)

    def alone(self) -> base.Synchronization:
        if self.s is not None:
            return self
        alone = copy.copy(self)
        alone.s, alone.n = 1, None
        return alone

    def decide(self, state: State) -> State:
        state = state.drop(state.unusable)
        arrived = state.arrived
        number = state.in_round + tf.cast(tf.reduce_any(arrived), tf.int64)
        full = number >= self._gradients(state)
        state = state.append(
            arrived,
            first=tf.cast(tf.equal(number, 1), tf.int64),
            count=tf.where(full, number, 0),
        )
        return state.grant(arrived)

    def _gradients(self, state):
        """Gradients that make an update now, scalar int64 tensor."""
        if self.n is None:
            return tf.constant(self.s, tf.int64)
        enlisted = tf.reduce_sum(tf.cast(state.enlisted, tf.int64))
        return tf.maximum(enlisted // self.n, 1)
