"""The sign of each element, with a scale for each block."""

import tensorflow as tf

from tfdist import checks
from tfdist.compression import base
from tfdist.compression import blocks

_BLOCK = 1024


class Sign(base.Codec):
    """signSGD, with error feedback.

    With `r` the residual, zero at first, and `g` the vector,

        v = r + g
        d = mean of the block's |v| * (1 where v >= 0, else -1)
        r = v - d                                  is kept, `d` is sent

    in blocks of 1,024 elements.

    Args:
      error_feedback: Whether there is a residual; else `v` is `g`.
      dense_below: Vectors with fewer elements travel as they are.

    References:
      Bernstein, Wang, Azizzadenesheli and Anandkumar, "signSGD: compressed
      optimisation for non-convex problems", ICML 2018; Karimireddy, Rebjock,
      Stich and Jaggi, "Error feedback fixes SignSGD and other gradient
      compression schemes", ICML 2019.
    """

    def __init__(self, *, error_feedback: bool = True, dense_below: int = 1024):
        self.error_feedback = checks.flag(
            "Sign: error_feedback", error_feedback
        )
        self.dense_below = checks.count("Sign: dense_below", dense_below, 0)

    def _state(self, size, dtype):
        if not self.error_feedback:
            return {}
        return {"residual": tf.zeros([size], dtype)}

    def _encode(self, vector, state):
        residual = state.get("residual", tf.zeros([], vector.dtype))
        data, scales, left = _signs(vector, residual)
        message = base.Message(tf.constant(base.OWN), scales, data)
        state = {"residual": left} if self.error_feedback else {}
        return message, state, base.all_finite(left)

    def _decoders(self):
        return [self._decode]

    def _decode(self, message, size):
        num_blocks = -(-size // _BLOCK)
        return _join(
            tf.ensure_shape(message.data, [num_blocks * _BLOCK // 8]),
            tf.ensure_shape(message.values, [num_blocks]),
            size,
        )


@tf.function(jit_compile=True, autograph=False)
def _signs(vector, residual):
    size = vector.shape[0]
    total = residual + vector
    rows = blocks.split(total, _BLOCK)
    scales = tf.reduce_sum(tf.abs(rows), 1, keepdims=True) / blocks.lengths(
        size, _BLOCK, vector.dtype
    )
    decoded = tf.where(rows >= 0, scales, -scales)
    left = total - blocks.join(decoded, size)
    return blocks.pack(rows >= 0), tf.reshape(scales, [-1]), left


@tf.function(jit_compile=True, autograph=False)
def _join(data, scales, size):
    upper = tf.reshape(blocks.unpack(data), [-1, _BLOCK])
    scales = scales[:, None]
    return blocks.join(tf.where(upper, scales, -scales), size)
