"""Eight bits for each element, with a scale for each block."""

from typing import Literal

import tensorflow as tf

from tfdist import checks
from tfdist.compression import base
from tfdist.compression import blocks

_BLOCK = 256
_LARGEST = 127
_ROUNDING = ("nearest", "stochastic")


class Int8(base.Codec):
    """Rounds to a multiple of each block's largest element / 127.

    For each block `x` of 256 elements, with `c` its largest |x|,

        q = round(x * (127 / c))                   nearest; ties to even
        q = floor(x * (127 / c) + u)               stochastic, u of [0, 1)

    are sent, in a byte each, with `c / 127`, and `q * (c / 127)` is decoded.
    There is no residual. Stochastic rounding is right on average; nearest is
    off by half of a multiple at most, always alike for the same element.

    Args:
      rounding: "nearest" or "stochastic".
      seed: Of `u`, with the number of the message, which is another for each
        worker. An int.
      dense_below: Vectors with fewer elements travel as they are.

    References:
      Alistarh et al., "QSGD: communication-efficient SGD via gradient
      quantization and encoding", NeurIPS 2017, has stochastic rounding, and
      a scale for each block ("bucket").
    """

    def __init__(
        self,
        rounding: Literal["nearest", "stochastic"] = "nearest",
        *,
        seed: int = 0,
        dense_below: int = 1024,
    ):
        checks.one_of("Int8: rounding", rounding, _ROUNDING)
        self.rounding = rounding
        self.seed = checks.count("Int8: seed", seed, 0)
        self.dense_below = checks.count("Int8: dense_below", dense_below, 0)

    def _state(self, size, dtype):
        if self.rounding == "nearest":
            return {}
        return {base.NOISE: tf.zeros([], tf.int64)}

    def _encode(self, vector, state):
        size = vector.shape[0]
        if self.rounding == "nearest":
            rounded, scales = _nearest(vector)
        else:
            number = state[base.NOISE]
            noise = tf.random.stateless_uniform(
                [size],
                tf.stack([tf.constant(self.seed, tf.int64), number]),
                dtype=vector.dtype,
            )
            rounded, scales = _stochastic(vector, noise)
            state = {base.NOISE: number + 1}
        data = base.as_bytes(rounded)[:size]
        message = base.Message(tf.constant(base.OWN), scales, data)
        return message, state, base.all_finite(vector)

    def _decoders(self):
        return [
            lambda message, size: _decode(
                tf.ensure_shape(message.data, [size]), message.values
            )
        ]


def _scaled(vector):
    """Elements in multiples of their block's scale, and the scales."""
    rows = blocks.split(vector, _BLOCK)
    largest = tf.reduce_max(tf.abs(rows), 1, keepdims=True)
    # Below that, the quotient would not be finite.
    least = 2 * _LARGEST / vector.dtype.max
    factor = tf.where(largest > least, _LARGEST / largest, 0)
    one = tf.constant(1 / _LARGEST, vector.dtype)
    return rows * factor, tf.reshape(largest, [-1]) * one


@tf.function(jit_compile=True, autograph=False)
def _nearest(vector):
    scaled, scales = _scaled(vector)
    return _as_int8(tf.round(scaled)), scales


@tf.function(jit_compile=True, autograph=False)
def _stochastic(vector, noise):
    scaled, scales = _scaled(vector)
    return _as_int8(tf.floor(scaled + blocks.split(noise, _BLOCK))), scales


def _as_int8(rows):
    return tf.cast(tf.clip_by_value(rows, -_LARGEST, _LARGEST), tf.int8)


@tf.function(jit_compile=True, autograph=False)
def _decode(data, scales):
    rows = blocks.split(tf.bitcast(data, tf.int8), _BLOCK)
    return blocks.join(
        tf.cast(rows, scales.dtype) * scales[:, None], data.shape[0]
    )
