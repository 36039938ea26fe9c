"""A matrix of low rank in the place of the vector."""

import math

import tensorflow as tf

from tfdist import checks
from tfdist.compression import base

_MULTIPLE = 8


class PowerSGD(base.Codec):
    """The vector as a matrix, and one step of power iteration.

    With `R` the residual, zero at first, `G` the vector, both as matrices of
    about as many rows as columns, and `Q` that of the message before,

        V = R + G
        P = orthonormal(V Q)
        Q = V^T P
        R = V - P Q^T                      is kept, `P` and `Q` are sent

    The first `Q` is random, the same for all. The paper takes each layer's own
    matrix, of which a flat vector knows nothing, and averages `P` and `Q` over
    the workers; here each message stands for itself. Momentum is applied to
    what is decoded.

    Args:
      rank: Columns of `P` and `Q`.
      dense_below: Vectors with fewer elements travel as they are; so do those
        for which `P` and `Q` are no smaller.

    References:
      Vogels, Karimireddy and Jaggi, "PowerSGD: practical low-rank gradient
      compression for distributed optimization", NeurIPS 2019.
    """

    def __init__(self, rank: int = 4, *, dense_below: int = 1024):
        self.rank = checks.count("PowerSGD: rank", rank)
        self.dense_below = checks.count("PowerSGD: dense_below", dense_below, 0)

    def _is_dense(self, size):
        factors = self.rank * sum(_shape(size))
        return factors >= size or super()._is_dense(size)

    def _state(self, size, dtype):
        shape = [_shape(size)[1], self.rank]
        factor = tf.random.stateless_normal(shape, [0, 0], dtype=dtype)
        return {"residual": tf.zeros([size], dtype), "factor": factor}

    def _encode(self, vector, state):
        size = vector.shape[0]
        total = state["residual"] + vector
        matrix = tf.reshape(_padded(total), _shape(size))
        left, _ = tf.linalg.qr(matrix @ state["factor"])
        right = tf.matmul(matrix, left, transpose_a=True)
        residual = total - _product(left, right, size)
        values = tf.concat([tf.reshape(f, [-1]) for f in (left, right)], 0)
        message = base.Message(
            tf.constant(base.OWN), values, tf.zeros([0], tf.uint8)
        )
        # From zeros nothing would ever be found: a column stays as it was.
        is_found = tf.reduce_any(tf.not_equal(right, 0.0), 0)
        factor = tf.where(is_found, right, state["factor"])
        state = {"residual": residual, "factor": factor}
        return message, state, base.all_finite(residual)

    def _decoders(self):
        return [self._decode]

    def _decode(self, message, size):
        rows, columns = _shape(size)
        sizes = [rows * self.rank, columns * self.rank]
        left, right = tf.split(message.values, sizes)
        return _product(
            tf.reshape(left, [rows, self.rank]),
            tf.reshape(right, [columns, self.rank]),
            size,
        )


def _shape(size):
    """Rows and columns."""
    columns = _MULTIPLE * max(round(math.sqrt(size) / _MULTIPLE), 1)
    return [-(-size // columns), columns]


def _padded(vector):
    size = vector.shape[0]
    return tf.pad(vector, [[0, math.prod(_shape(size)) - size]])


def _product(left, right, size):
    product = tf.matmul(left, right, transpose_b=True)
    return tf.reshape(product, [-1])[:size]
