"""The largest elements, with their values."""

import math

import tensorflow as tf

from tfdist import checks
from tfdist.compression import base
from tfdist.compression import elias_fano
from tfdist.compression import selection

_ENTRIES, _ELIAS_FANO = base.OWN, base.OWN + 1
# Elements up to which the largest are looked for, not bounded by a sample.
_EXACT = 1 << 20
_WARM_UP = 0.25


class TopK(base.Codec):
    """Sends the largest elements, and keeps the others.

    With `r` the residual, zero at first, and `g` the vector,

        v = r + g
        d = v where |v| is among the k largest, else 0         is sent
        r = v - d                                              is kept

    and `k = ceil(ratio * size)`. So `d + r` is exactly `v`. `ratio=1` is the
    method without compression, to the bit. From 2^20 elements on, the k-th
    largest is estimated from a sample, and about k elements are sent.

    Deep gradient compression has, with `momentum` m, in the place of `g`

        u = m u + g;  v = r + u                    or, with `nesterov`,
        u = m (u + g);  v = r + u + g
        u = 0 where an element is sent                   (`masking`)

    The optimizer is then to have no momentum: pass gradients, clipped if they
    are to be. With `warmup=n` the share of the elements falls by four during
    the first n messages, from 1/4 to `ratio`.

    Args:
      ratio: Share of the elements that are sent, of (0, 1].
      momentum: m, of [0, 1).
      nesterov: Whether it looks ahead.
      masking: Whether `u` is cleared where an element is sent.
      warmup: Messages.
      entropy: Whether indices are coded by Elias and Fano.
      dense_below: Vectors with fewer elements are sent as a whole: `v`, and
        nothing of `u` is cleared.

    References:
      Aji and Heafield, "Sparse communication for distributed gradient
      descent", EMNLP 2017; Lin, Han, Mao, Wang and Dally, "Deep gradient
      compression: reducing the communication bandwidth for distributed
      training", ICLR 2018.
    """

    def __init__(
        self,
        ratio: float = 0.001,
        *,
        momentum: float = 0.0,
        nesterov: bool = False,
        masking: bool = True,
        warmup: int = 0,
        entropy: bool = True,
        dense_below: int = 1024,
    ):
        self.ratio = checks.number(
            "TopK: ratio", ratio, lambda x: 0 < x <= 1, "above 0, at most 1"
        )
        self.momentum = checks.in_range("TopK: momentum", momentum, below=1.0)
        self.nesterov = checks.flag("TopK: nesterov", nesterov)
        self.masking = checks.flag("TopK: masking", masking)
        self.warmup = checks.count("TopK: warmup", warmup, 0)
        self.entropy = checks.flag("TopK: entropy", entropy)
        self.dense_below = checks.count("TopK: dense_below", dense_below, 0)

    def _is_dense(self, size):
        # With momentum, what is sent as a whole is not what came.
        return not self.momentum and self._is_whole(size)

    def _is_whole(self, size):
        return self.ratio == 1 or size < self.dense_below

    def _state(self, size, dtype):
        state = {}
        if self.momentum:
            state["momentum"] = tf.zeros([size], dtype)
        if not self._is_whole(size):
            state["residual"] = tf.zeros([size], dtype)
            state["messages"] = tf.zeros([], tf.int64)
        return state

    def _encode(self, vector, state):
        size = vector.shape[0]
        total, new = self._accumulated(vector, state)
        finite = base.all_finite(total)
        if self._is_whole(size):
            return base.dense(total), new, finite
        entries = self._largest(total, size, state["messages"])
        indices = elias_fano.indices_of(entries)
        values = tf.gather(total, indices)
        new["residual"] = _cleared(total, indices)
        new["messages"] = state["messages"] + 1
        if self.momentum and self.masking:
            new["momentum"] = _cleared(new["momentum"], indices)
        if self.entropy:
            kind, words = _ELIAS_FANO, elias_fano.encode(entries, size)
        else:
            kind, words = _ENTRIES, entries
        data = base.as_bytes(words)
        return base.Message(tf.constant(kind), values, data), new, finite

    def _accumulated(self, vector, state):
        """The vector that elements are sent of, and the momentum's state."""
        new = {}
        if self.momentum:
            momentum = state["momentum"] * self.momentum
            if self.nesterov:
                velocity = momentum + self.momentum * vector
                vector = velocity + vector
            else:
                velocity = vector = momentum + vector
            new["momentum"] = velocity
        if "residual" in state:
            vector = state["residual"] + vector
        return vector, new

    def _largest(self, total, size, messages):
        """Entries of about the k largest elements, ascending."""
        ratio = self._ratio(messages)
        if size < _EXACT:
            count = tf.cast(tf.math.ceil(ratio * size), tf.int32)
            top = tf.math.top_k(tf.abs(total), count, sorted=False)
            indices = tf.sort(top.indices)
            return elias_fano.entries(indices, tf.gather(total, indices) < 0)
        some = selection.sample([total], self.ratio, messages)
        # Where fewer elements than that are not zero, all of these go.
        bound = selection.quantile(some, ratio, otherwise=0.0)
        # The bound itself passes: all elements may be equal.
        signs = selection.signs_above(total, bound * (1 - 2.0**-20))
        return selection.entries(selection.words(signs))

    def _ratio(self, messages):
        """The share of the elements of this message, a float64 scalar."""
        ratio = tf.constant(self.ratio, tf.float64)
        if not self.warmup:
            return ratio
        # 1/4, 1/16, and so on as far as it is more than `ratio`.
        stages = math.ceil(math.log(self.ratio, _WARM_UP)) - 1
        stage = tf.minimum(messages * stages // self.warmup, stages)
        share = tf.pow(
            tf.constant(_WARM_UP, tf.float64), tf.cast(stage + 1, tf.float64)
        )
        return tf.where(messages < self.warmup, tf.maximum(share, ratio), ratio)

    def _decoders(self):
        return [self._decode_entries, self._decode_words]

    def _decode_entries(self, message, size):
        return _sparse(base.from_bytes(message.data, tf.int32), message)

    def _decode_words(self, message, size):
        words = base.from_bytes(message.data, tf.int32)
        return _sparse(elias_fano.decode(words, size), message)


def _sparse(entries, message):
    return tf.IndexedSlices(message.values, elias_fano.indices_of(entries))


def _cleared(vector, indices):
    zeros = tf.zeros(tf.shape(indices), vector.dtype)
    return tf.tensor_scatter_nd_update(vector, indices[:, None], zeros)
