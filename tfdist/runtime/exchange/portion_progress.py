"""Progress within portions of the data, kept by the servers that apply it.

A push of `fit` with `work="queue"` says of which batch of which portion it is.
Each server keeps for each portion the number of the batch that comes next. It
applies a push of that batch or a later one, notes that, both under its lock,
and leaves out a push of an earlier batch. So a worker that takes over a
portion begins where the slowest server is: each server applies each batch once,
whichever worker died in whichever moment of its push.
"""

import numpy as np
import tensorflow as tf

from tfdist.cluster import resource_values
from tfdist.null_methods import empty_list
from tfdist.null_methods import nothing

# Of pushes that are of no portion: no epoch, one portion, its first batch.
_NO_PLACE = [-1, 0, 1, 0, 0]
# Of a server that has seen no push: in the place of an epoch's number and cut.
_NOTHING = [-2, 0]


class NoProgress:
    """See `PortionProgress`; where data is not given out in portions."""

    is_kept = False
    place = empty_list
    build_advance = check = nothing
    # None: all is applied.
    build_claim = nothing


class PortionProgress:
    """The next batch of each portion, on the servers, and this worker's own.

    Args:
      store: The `ParameterStore`.
    """

    is_kept = True

    def __init__(self, store):
        self._store = store
        # Number of the epoch, its cut, how many portions it has, number of the
        # portion and of the batch.
        self._place = store.worker_variable(
            tf.constant(_NO_PLACE, tf.int64), "place"
        )
        self._read = tf.function(
            self._build_read, input_signature=[], autograph=False
        )

    # Around a step.

    def set_place(self, epoch, cut, portions, portion, batch):
        """Says of which batch the next push is.

        Args:
          epoch: Number of the epoch, greater than those of all before.
          cut: Checksum of its portions.
          portions: How many portions it has.
          portion: Number of the portion.
          batch: Number of the batch in the portion, from 0.
        """
        self._place.assign([epoch, cut, portions, portion, batch])

    def clear_place(self):
        """Says that the next push is of no portion."""
        self._place.assign(_NO_PLACE)

    def check(self, step):
        """Refuses steps of which a batch's number does not tell enough.

        Args:
          step: The `Step` that has exchanged an optimizer's updates.

        Raises:
          ValueError: It has several optimizer steps, or accumulates.
        """
        reason = None
        if step.num_updates > 1:
            reason = "several optimizer steps in one training step"
        elif step.accumulates:
            reason = "gradient_accumulation_steps"
        if reason is not None:
            raise ValueError(
                'Argument `work` must be "shares" but with one optimizer step '
                "for each batch, by which servers know what they have seen. "
                f'Received: work="queue" with {reason}'
            )

    # In the training step.

    def place(self):
        """Builds the reading of what a push says, a list of one tensor."""
        return [self._place.read_value()]

    def build_advance(self):
        """Builds: the next push is of the next batch."""
        self._place.assign_add(
            tf.constant([0, 0, 0, 0, 1], tf.int64), read_value=False
        )

    def build_claim(self, shard, place, shards, enabled=None):
        """Builds, in the server's scope under a lock: notes a push's batch.

        Args:
          shard: Number of the server.
          place: From `place`, on the server.
          shards: Numbers of the servers that keep the progress of the push.
          enabled: Whether the push may count at all, a scalar bool tensor;
            None if it may.

        Returns:
          Whether it is to be applied, a scalar bool tensor.
        """
        epoch, cut, portions, portion, batch = tf.unstack(place, num=5)
        handle = self._handle(shard)
        head = 2 + self._store.num_shards
        old = self._value(handle)
        kept = [int(k in shards) for k in range(self._store.num_shards)]
        zeros = tf.zeros([portions], tf.int64)
        now = tf.cond(
            tf.equal(old[0], epoch),
            lambda: old,
            lambda: tf.concat(
                [[epoch, cut], tf.constant(kept, tf.int64), zeros], 0
            ),
        )
        is_next = (old[0] <= epoch) & (batch >= now[head + portion])
        counts = tf.less(epoch, 0) | is_next
        noted = tf.greater_equal(epoch, 0) & is_next
        if enabled is not None:
            noted &= enabled
        with tf.device(self._store.devices[shard]):
            tf.raw_ops.AssignVariableOp(
                resource=handle,
                value=tf.cond(
                    noted,
                    lambda: tf.tensor_scatter_nd_update(
                        now, [[head + portion]], [batch + 1]
                    ),
                    lambda: old,
                ),
            )
        return counts

    # Outside of it.

    def latest(self):
        """Returns the last epoch that a server has, and its cut, two ints."""
        vectors = self._store.call(self._read)
        return max(tuple(vector.numpy()[:2].tolist()) for vector in vectors)

    def read(self, epoch):
        """Returns the next batch of each portion, an int64 array.

        Args:
          epoch: Number of the epoch.

        Returns:
          By portion, the least of all servers; empty where no push of the
          epoch has come to any.
        """
        vectors = [vector.numpy() for vector in self._store.call(self._read)]
        head = 2 + self._store.num_shards
        known = [v if v[0] == epoch else None for v in vectors]
        seen = [vector for vector in known if vector is not None]
        if not seen:
            return np.zeros([0], np.int64)
        keeping = np.max([vector[2:head] for vector in seen], 0)
        nothing = np.zeros_like(seen[0][head:])
        return np.min(
            [
                nothing if vector is None else vector[head:]
                for vector, keeps in zip(known, keeping, strict=True)
                if keeps
            ],
            0,
        )

    def _build_read(self):
        found = []
        for shard in range(self._store.num_shards):
            value = self._value(self._handle(shard))
            with tf.device(self._store.worker_device):
                found.append(tf.identity(value))
        return found

    def _handle(self, shard):
        return self._store.resource(shard, "portions", tf.int64, [None])

    def _value(self, handle):
        """Builds the reading of a server's vector; two numbers without any.

        The epoch, its cut, a number by server (whether it keeps the progress
        of this one), and by portion the next batch.
        """
        return resource_values.build_read_or(
            handle, np.array(_NOTHING, np.int64), shape=[None]
        )
