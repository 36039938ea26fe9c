"""Gradients of portions on the shards, until it is known which ones count."""

import tensorflow as tf

from tfdist import private_tensorflow
from tfdist.sandblaster import fence
from tfdist.sandblaster import shards as shards_lib

_SUM = "sum of portions"


class Deposits:
    """Portions' gradients, under the tickets of those who have computed them.

    A worker leaves its gradient on all shards, then says so once (`WorkQueue`):
    it counts on all shards or on none. The coordinator adds those that count
    in the order of portions, in float64, so that the sum is the same to the bit
    whoever was faster.

    Args:
      shards: The `Shards`.
      name: Of these deposits, the same on all tasks.
      here: This process's device.
    """

    def __init__(self, shards, name, here):
        self._shards = shards
        self._name = name
        self._here = here
        self._keep = shards_lib.traced(
            self._build_keep,
            tf.TensorSpec([], tf.int64),
            tf.TensorSpec([shards.number], shards.dtype),
            tf.TensorSpec([None], tf.float64),
        )
        self._clear = shards_lib.traced(self._build_clear, fence.TERM)
        self._add = shards_lib.traced(
            self._build_add, tf.TensorSpec([None], tf.int64), fence.TERM
        )
        self._finish = {}

    def keep(self, ticket, gradient, totals):
        """Leaves what a portion has come to.

        Args:
          ticket: Number of the attempt.
          gradient: Tensor `(number,)`, a sum over examples.
          totals: Float64 vector of what else is summed over examples; of the
            same length for all portions.
        """
        self._keep(
            tf.constant(ticket, tf.int64),
            gradient,
            tf.constant(totals, tf.float64),
        )

    def clear(self):
        """Frees all deposits and begins a sum at 0."""
        self._clear(self._term())

    def add(self, tickets):
        """Adds deposits to the sum, and frees them.

        Args:
          tickets: Their numbers, a list, in the order of the sum; all of them
            are there.

        Returns:
          Their totals, a float64 array of one row for each.
        """
        return self._add(tf.constant(tickets, tf.int64), self._term()).numpy()

    def finish(self, target, count):
        """The sum divided by `count` becomes a vector; it begins at 0 again.

        Args:
          target: Name of a vector of the shards.
          count: A float.
        """
        if target not in self._finish:

            def divide(count, term):
                for k, piece in enumerate(self._shards.pieces()):
                    with tf.device(piece.device):
                        sent = tf.identity(count)
                        with piece.guarded(term, sent):
                            self._divide_on(k, piece, target, sent)

            self._finish[target] = shards_lib.traced(
                divide, tf.TensorSpec([], tf.float64), fence.TERM
            )
        self._finish[target](tf.constant(count, tf.float64), self._term())

    def _divide_on(self, k, piece, target, count):
        total = tf.raw_ops.ReadVariableOp(
            resource=self._sum(k, piece), dtype=tf.float64
        )
        total.set_shape([piece.size])
        piece.write(target, tf.cast(total / count, piece.dtype))
        with tf.control_dependencies([total]):
            tf.raw_ops.AssignVariableOp(
                resource=self._sum(k, piece), value=tf.zeros_like(total)
            )

    def _term(self):
        return tf.constant(self._shards.fence.term, tf.int64)

    def _sum(self, k, piece):
        return tf.raw_ops.VarHandleOp(
            dtype=tf.float64,
            shape=[piece.size],
            shared_name=f"{self._name}/{_SUM}/{k}",
        )

    def _kept(self, k):
        return {
            "dtypes": [self._shards.dtype, tf.float64],
            "shared_name": f"{self._name}/deposits/{k}",
        }

    def _build_keep(self, ticket, gradient, totals):
        with tf.device(self._here):
            parts = tf.split(gradient, self._shards.sizes)
        for k, piece in enumerate(self._shards.pieces()):
            with tf.device(piece.device):
                kept = tf.raw_ops.MapStage(
                    key=ticket,
                    indices=[0, 1],
                    values=[
                        tf.identity(parts[k]),
                        # The first shard has the totals.
                        tf.zeros([0], tf.float64) if k else tf.identity(totals),
                    ],
                    **self._kept(k),
                )
                # Or one shard would wait for another.
                private_tensorflow.run_independently(kept)

    def _build_clear(self, term):
        for k, piece in enumerate(self._shards.pieces()):
            with tf.device(piece.device), piece.guarded(term):
                tf.raw_ops.MapClear(**self._kept(k))
                tf.raw_ops.AssignVariableOp(
                    resource=self._sum(k, piece),
                    value=tf.zeros([piece.size], tf.float64),
                )

    def _build_add(self, tickets, term):
        found = None
        for k, piece in enumerate(self._shards.pieces()):
            with tf.device(piece.device):
                sent = tf.identity(tickets)
                with piece.guarded(term, sent):
                    totals = self._add_on(k, piece, sent)
            found = totals if found is None else found
        with tf.device(self._here):
            return tf.identity(found)

    def _add_on(self, k, piece, tickets):
        """Builds the addition on one shard.

        Returns:
          The totals, float64 `(tickets, totals)`.
        """
        handle = self._sum(k, piece)
        start = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float64)
        start.set_shape([piece.size])
        number = tf.size(tickets)

        def add(index, total, totals):
            part, own = tf.raw_ops.MapUnstage(
                key=tickets[index], indices=[0, 1], **self._kept(k)
            )
            part = tf.reshape(part, [piece.size])
            return (
                index + 1,
                total + tf.cast(part, tf.float64),
                totals.write(index, tf.reshape(own, [-1])),
            )

        _, total, totals = tf.while_loop(
            lambda index, *_: index < number,
            add,
            (
                tf.constant(0),
                start,
                tf.TensorArray(tf.float64, number, infer_shape=False),
            ),
            parallel_iterations=1,
        )
        tf.raw_ops.AssignVariableOp(resource=handle, value=total)
        return totals.stack()
