"""Entries of index and sign, and their entropy coding.

An entry is an int32: an index of 31 bits, and the sign as the highest bit. A
list of ascending entries becomes two streams of bits (Elias 1974, Fano 1971):
the lowest `k` bits of each index, with its sign, one after another; and of the
rest the differences in unary. With `n` of `size` elements, `k` is
floor(log2(size / n)), and an entry takes between k + 2 and k + 4 bits.
"""

import tensorflow as tf

_SIGN = -(2**31)
_INDEX = 2**31 - 1


def entries(indices: tf.Tensor, negative: tf.Tensor) -> tf.Tensor:
    """Returns entries.

    Args:
      indices: `[n]`, integers.
      negative: `[n]` bool.
    """
    signs = tf.where(negative, tf.constant(_SIGN), 0)
    return tf.bitwise.bitwise_or(tf.cast(indices, tf.int32), signs)


def indices_of(entries: tf.Tensor) -> tf.Tensor:
    """Returns the indices of entries, `[n]` int32."""
    return tf.bitwise.bitwise_and(entries, _INDEX)


def encode(entries: tf.Tensor, size: int) -> tf.Tensor:
    """Returns the words that stand for entries, int32.

    Args:
      entries: `[n]` int32, of ascending indices.
      size: Elements of the vector, above all indices.
    """
    count = tf.size(entries)
    low_bits = _low_bits(count, size)
    indices = indices_of(entries)
    low = tf.bitwise.bitwise_and(indices, _ones(low_bits))
    signed = tf.bitwise.bitwise_or(
        tf.bitwise.left_shift(low, 1), tf.cast(entries < 0, tf.int32)
    )
    high = tf.bitwise.right_shift(indices, low_bits) + tf.range(count)
    streams = _pack(signed, low_bits + 1), _set_bits(high)
    return tf.concat([[count], *streams], 0)


def decode(words: tf.Tensor, size: int) -> tf.Tensor:
    """Returns the entries that `encode` was given.

    Args:
      words: `[w]` int32.
      size: What `encode` was given.
    """
    count = words[0]
    low_bits = _low_bits(count, size)
    end = 1 + _packed_words(count, low_bits + 1)
    signed = _unpack(words[1:end], count, low_bits + 1)
    high = _bits_set(words[end:]) - tf.range(count)
    low = tf.bitwise.right_shift(signed, 1)
    indices = tf.bitwise.bitwise_or(tf.bitwise.left_shift(high, low_bits), low)
    return _entries_of(indices, tf.bitwise.bitwise_and(signed, 1))


def _entries_of(indices, negative):
    return entries(indices, tf.cast(negative, tf.bool))


def _low_bits(count, size):
    """floor(log2(size / count)), of integers; 0 without a count."""
    ratio = tf.constant(size) // tf.maximum(count, 1)
    powers = tf.constant([2**k for k in range(1, 31)])
    return tf.reduce_sum(tf.cast(ratio >= powers, tf.int32))


def _ones(bits):
    return tf.bitwise.left_shift(1, bits) - 1


def _packed_words(count, bits):
    """Words that `_pack` makes; one more, so that each has a next one."""
    return (count * bits + 31) // 32 + 1


def _places(count, bits):
    """Of each of `count` values of so many bits: word, and bit within."""
    at = tf.range(count) * bits
    return tf.bitwise.right_shift(at, 5), tf.bitwise.bitwise_and(at, 31)


def _pack(values, bits):
    """Values of `bits` bits, 31 at most, one after another in words."""
    word, shift = _places(tf.size(values), bits)
    pairs = tf.bitwise.left_shift(
        tf.cast(values, tf.uint64), tf.cast(shift, tf.uint64)
    )
    # No two values share a bit, so that a sum is their union.
    return tf.math.unsorted_segment_sum(
        tf.reshape(tf.bitcast(pairs, tf.int32), [-1]),
        tf.reshape(tf.stack([word, word + 1], 1), [-1]),
        _packed_words(tf.size(values), bits),
    )


def _unpack(words, count, bits):
    word, shift = _places(count, bits)
    pairs = tf.stack([tf.gather(words, word), tf.gather(words, word + 1)], 1)
    shifted = tf.bitwise.right_shift(
        tf.bitcast(pairs, tf.uint64), tf.cast(shift, tf.uint64)
    )
    mask = tf.cast(_ones(bits), tf.uint64)
    return tf.cast(tf.bitwise.bitwise_and(shifted, mask), tf.int32)


def _set_bits(places):
    """Words in which the bits at ascending places are set."""
    words = tf.bitwise.right_shift(places[-1:], 5) + 1
    bits = tf.bitwise.left_shift(1, tf.bitwise.bitwise_and(places, 31))
    return tf.math.unsorted_segment_sum(
        bits, tf.bitwise.right_shift(places, 5), tf.reduce_sum(words)
    )


def _bits_set(words):
    """Places of the bits that are set, ascending."""
    bits = tf.bitwise.bitwise_and(
        tf.bitwise.right_shift(words[:, None], tf.range(32)), 1
    )
    return tf.cast(tf.where(tf.reshape(bits, [-1]))[:, 0], tf.int32)
