"""Elements above a threshold, fast: passes that XLA compiles, and `tf.where`.

One pass makes a vector of signs, one byte for each element. Eight of them are
looked at as one integer, so that `tf.where` finds the few words that are not
zero in an eighth of the time, and then the elements in them.
"""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfdist.compression import elias_fano

_WORD = 8
# The four signs that each byte of `two_bits` stands for.
_SIGNS_OF_BYTES = np.array([0, 1, 0, -1])[
    np.arange(256)[:, None] >> np.array([0, 2, 4, 6]) & 3
]
# Elements up to which a compiled pass takes longer to begin than to run.
_SMALL = 2**16
# Elements of a sample, and those of them above a quantile.
_SAMPLE, _ABOVE = 8192, 64


class Words(NamedTuple):
    """The words of eight elements of which one or more have passed.

    Attributes:
      places: `[w]` int64, ascending: their numbers.
      signs: `[w, 8]` int8, the signs in them.
      count: Scalar int64, elements that have passed.
    """

    places: tf.Tensor
    signs: tf.Tensor
    count: tf.Tensor


@tf.function(jit_compile=True, autograph=False)
def above(
    residual: tf.Tensor, vector: tf.Tensor, tau: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Compares `residual + vector` with a threshold.

    Args:
      residual: `[size]`.
      vector: `[size]`.
      tau: Scalar.

    Returns:
      The signs, int8: 1, 0 or -1 for each element, and zeros up to a multiple
      of 8. And `[size]`: the sum less `tau * signs`.
    """
    total = residual + vector
    signs = _signs(total, tau)
    left = total - tau * tf.cast(signs, total.dtype)
    return _whole_words(signs), left


@tf.function(jit_compile=True, autograph=False)
def signs_above(vector: tf.Tensor, tau: tf.Tensor) -> tf.Tensor:
    """Returns the signs that `above` does, of a vector without a residual.

    Args:
      vector: `[size]`.
      tau: Scalar.
    """
    return _whole_words(_signs(vector, tau))


def _signs(vector, tau):
    return tf.cast(vector > tau, tf.int8) - tf.cast(vector < -tau, tf.int8)


def _whole_words(signs):
    return tf.pad(signs, [[0, -signs.shape[0] % _WORD]])


def words(signs: tf.Tensor) -> Words:
    """Returns the words of signs that are not zero.

    Args:
      signs: Of `above`.
    """
    rows = tf.reshape(signs, [-1, _WORD])
    places = tf.where(tf.bitcast(rows, tf.int64))[:, 0]
    rows = tf.gather(rows, places)
    return Words(places, rows, tf.math.count_nonzero(rows))


def entries(found: Words) -> tf.Tensor:
    """Returns the entries of elements that have passed, int32, ascending."""
    inside = tf.where(found.signs)
    negative = tf.gather_nd(found.signs, inside) < 0
    places = tf.gather(found.places, inside[:, 0]) * _WORD + inside[:, 1]
    return elias_fano.entries(places, negative)


@tf.function(jit_compile=True, autograph=False)
def two_bits(signs: tf.Tensor) -> tf.Tensor:
    """Returns two bits for each sign, four in a byte, the first lowest.

    Args:
      signs: Of `above`.
    """
    bits = tf.bitwise.bitwise_and(tf.cast(signs, tf.uint8), 3)
    weights = tf.constant([1, 4, 16, 64], tf.uint8)
    return tf.reduce_sum(tf.reshape(bits, [-1, 4]) * weights, 1)


def from_two_bits(data: tf.Tensor, tau: tf.Tensor, size: int) -> tf.Tensor:
    """Returns the vector `[size]` of `tau * signs`.

    Args:
      data: What `two_bits` returned.
      tau: Scalar.
      size: Elements of the vector.
    """
    padded = size + -size % _WORD
    spread = _spread if size > _SMALL else _looked_up
    return spread(tf.ensure_shape(data, [padded // 4]), tau)[:size]


@tf.function(jit_compile=True, autograph=False)
def _spread(data, tau):
    shifts = tf.constant([0, 2, 4, 6], tf.uint8)
    bits = tf.bitwise.bitwise_and(
        tf.bitwise.right_shift(data[:, None], shifts), 3
    )
    values = tf.where(bits == 1, tau, tf.where(bits == 3, -tau, 0))
    return tf.reshape(values, [-1])


def _looked_up(data, tau):
    fours = tau * tf.constant(_SIGNS_OF_BYTES, tau.dtype)
    return tf.reshape(tf.gather(fours, tf.cast(data, tf.int32)), [-1])


def sample(
    vectors: list[tf.Tensor], density: float, messages: tf.Tensor
) -> tf.Tensor:
    """Returns some elements of the sum of vectors, others for each message.

    Args:
      vectors: Each `[size]`.
      density: The least share whose quantile is to be taken.
      messages: Scalar int64, number of the message.
    """
    least = max(_SAMPLE, round(_ABOVE / density))
    # The largest odd stride: it visits all columns of most matrices.
    stride = max(vectors[0].shape[0] // least - 1, 0) | 1
    begin = tf.cast(messages % stride, tf.int32)
    return tf.add_n([vector[begin::stride] for vector in vectors])


def quantile(
    sample: tf.Tensor,
    density: tf.Tensor | float,
    otherwise: float | None = None,
) -> tf.Tensor:
    """Returns the magnitude that about a share of the elements reach.

    Args:
      sample: Vector.
      density: The share, a number or scalar tensor.
      otherwise: What it is where fewer than that share differ from 0. Default:
        the mean of those that do; without any, 0.
    """
    sample = tf.abs(sample)
    size = tf.cast(tf.size(sample), tf.float64)
    share = tf.cast(density, tf.float64) * size
    count = tf.maximum(tf.cast(tf.round(share), tf.int32), 1)
    least = tf.math.top_k(sample, count, sorted=True).values[-1]
    if otherwise is None:
        used = tf.cast(tf.math.count_nonzero(sample), sample.dtype)
        otherwise = tf.math.divide_no_nan(tf.reduce_sum(sample), used)
    return tf.where(least > 0, least, otherwise)
