"""One bit for each element, with two values for each block."""

import tensorflow as tf

from tfdist import checks
from tfdist.compression import base
from tfdist.compression import blocks

_BLOCK = 1024


class OneBit(base.Codec):
    """1-bit SGD: each element as the mean of those of its sign.

    With `r` the residual, zero at first, and `g` the vector,

        v = r + g
        d = mean of the block's v >= 0 where v >= 0, else of its v < 0
        r = v - d                                  is kept, `d` is sent

    A block has 1,024 elements; the paper has the columns of each matrix, of
    which a flat vector knows nothing. The paper begins without compression:
    train some epochs with another codec first.

    Args:
      dense_below: Vectors with fewer elements travel as they are.

    References:
      Seide, Fu, Droppo, Li and Yu, "1-bit stochastic gradient descent and its
      application to data-parallel distributed training of speech DNNs",
      Interspeech 2014.
    """

    def __init__(self, *, dense_below: int = 1024):
        self.dense_below = checks.count("OneBit: dense_below", dense_below, 0)

    def _state(self, size, dtype):
        return {"residual": tf.zeros([size], dtype)}

    def _encode(self, vector, state):
        data, means, left = _halve(vector, state["residual"])
        values = tf.reshape(means, [-1])
        message = base.Message(tf.constant(base.OWN), values, data)
        return message, {"residual": left}, base.all_finite(left)

    def _decoders(self):
        return [self._decode]

    def _decode(self, message, size):
        num_blocks = -(-size // _BLOCK)
        return _join(
            tf.ensure_shape(message.data, [num_blocks * _BLOCK // 8]),
            tf.reshape(message.values, [num_blocks, 2]),
            size,
        )


@tf.function(jit_compile=True, autograph=False)
def _halve(vector, residual):
    size, dtype = vector.shape[0], vector.dtype
    total = residual + vector
    rows = blocks.split(total, _BLOCK)
    upper = rows >= 0
    # Zeros after the last element are not negative, and not counted.
    lower_count = tf.reduce_sum(tf.cast(~upper, dtype), 1, keepdims=True)
    upper_count = blocks.lengths(size, _BLOCK, dtype) - lower_count
    means = [
        tf.reduce_sum(tf.where(some, rows, 0), 1, keepdims=True)
        / tf.maximum(count, 1)
        for some, count in ((upper, upper_count), (~upper, lower_count))
    ]
    decoded = tf.where(upper, *means)
    left = total - blocks.join(decoded, size)
    return blocks.pack(upper), tf.concat(means, 1), left


@tf.function(jit_compile=True, autograph=False)
def _join(data, means, size):
    upper = tf.reshape(blocks.unpack(data), [-1, _BLOCK])
    return blocks.join(tf.where(upper, means[:, :1], means[:, 1:]), size)
