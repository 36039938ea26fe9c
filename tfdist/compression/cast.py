"""A narrower floating-point type."""

from typing import Literal

import tensorflow as tf

from tfdist import checks
from tfdist.compression import base

_DTYPES = ("bfloat16", "float16", "float32")


class Cast(base.Codec):
    """Rounds each element to the nearest value of a narrower type.

    Two bytes per element; there is no residual. What is beyond the type's
    range becomes its largest value: 65,504 of float16. Vectors of float32 and
    `Cast("float32")` are the method without compression, to the bit.

    Args:
      dtype: "bfloat16", "float16" or "float32".
    """

    # A cast costs nothing that would be worth keeping small vectors from it.
    dense_below = 0

    def __init__(
        self, dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    ):
        checks.one_of("Cast: dtype", dtype, _DTYPES)
        self.dtype = dtype

    def _state(self, size, dtype):
        return {}

    def _encode(self, vector, state):
        finite = base.all_finite(vector)
        if vector.dtype == self.dtype:
            return base.dense(vector), state, finite
        data = base.as_bytes(_narrow(vector, tf.as_dtype(self.dtype)))
        values = tf.zeros([0], vector.dtype)
        return base.Message(tf.constant(base.OWN), values, data), state, finite

    def _decoders(self):
        return [self._decode]

    def _decode(self, message, size):
        narrow = base.from_bytes(message.data, tf.as_dtype(self.dtype))
        return tf.cast(narrow, message.values.dtype)


@tf.function(jit_compile=True, autograph=False)
def _narrow(vector, dtype):
    largest = tf.cast(dtype.max, vector.dtype)
    return tf.cast(tf.clip_by_value(vector, -largest, largest), dtype)
