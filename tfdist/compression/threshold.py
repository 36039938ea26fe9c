"""Elements that have reached a threshold, as one threshold each."""

import tensorflow as tf

from tfdist import checks
from tfdist.compression import base
from tfdist.compression import elias_fano
from tfdist.compression import selection

_ENTRIES, _ELIAS_FANO, _MAP = base.OWN, base.OWN + 1, base.OWN + 2
# From where two bits for each element are fewer than 32 for each entry.
_DENSEST = 1 / 16
_DENSITY = 1 / 250
# Of the difference between the logarithms of tau and of the quantile.
_GAIN = 0.3


class Threshold(base.Codec):
    """Sends +tau or -tau for each element whose sum has passed it.

    With `r` the residual, zero at first, and `g` the vector,

        v = r + g
        d = tau * ((v > tau) - (v < -tau))        is sent
        r = v - d                                 is kept

    so that what is small is delayed, and nothing is lost but by rounding; for
    |v| <= 2 tau, d + r is exactly v. An element moves by one tau in a message
    at most. An entry takes 32 bits, index and sign, or with `entropy` about
    log2(size / entries) + 3. Where more than 1/16 of all elements pass, two
    bits for each element are sent instead. `tau=0` is the method without
    compression, to the bit.

    With `density` tau adapts: before each message the quantile of |v| that
    would let that share of the elements pass is taken from a sample of 8,192
    elements or more, and tau moves there by 0.3 of the logarithm of the ratio.
    Without `tau` it starts there.

    Args:
      tau: The threshold, in the unit of the vector. Default: adapted.
      density: Share of the elements that a message is to have. Default: None,
        tau stays, if `tau` is given; else 1/250.
      entropy: Whether entries are coded by Elias and Fano.
      clip: Bound of the residual's elements, in tau: what is beyond it is
        lost. Default: none.
      dense_below: Vectors with fewer elements travel as they are.

    References:
      Strom, "Scalable distributed DNN training using commodity GPU cloud
      computing", Interspeech 2015. The two bits, the bound of the residual and
      an adapted tau are Deeplearning4j's, whose tau moves by 3.4 % a message.
    """

    def __init__(
        self,
        tau: float | None = None,
        *,
        density: float | None = None,
        entropy: bool = True,
        clip: float | None = None,
        dense_below: int = 1024,
    ):
        if tau is not None:
            tau = checks.not_negative("Threshold: tau", tau)
        if tau is None and density is None:
            density = _DENSITY
        if density is not None:
            density = checks.in_range(
                "Threshold: density", density, below=1.0, positive=True
            )
        if density is not None and tau == 0:
            raise ValueError(
                checks.refusal("Threshold: density", "None with tau=0", density)
            )
        if clip is not None:
            clip = checks.number(
                "Threshold: clip", clip, lambda x: x >= 1, "of at least 1"
            )
        self.tau = tau
        self.density = density
        self.entropy = checks.flag("Threshold: entropy", entropy)
        self.clip = clip
        self.dense_below = checks.count(
            "Threshold: dense_below", dense_below, 0
        )

    def _is_dense(self, size):
        return self.tau == 0 or super()._is_dense(size)

    def _state(self, size, dtype):
        state = {"residual": tf.zeros([size], dtype)}
        if self.density is not None:
            # 0 before the first message, where there is none to start from.
            state["tau"] = tf.constant(self.tau or 0.0, dtype)
            state["messages"] = tf.zeros([], tf.int64)
        return state

    def _encode(self, vector, state):
        size, dtype = vector.shape[0], vector.dtype
        residual, new = state["residual"], {}
        if self.density is None:
            tau = tf.constant(self.tau, dtype)
        else:
            tau = self._adapted(vector, state)
            new = {"tau": tau, "messages": state["messages"] + 1}
        signs, left = selection.above(residual, vector, tau)
        finite = base.all_finite(left)
        if self.clip is not None:
            # A tau of 0 sends nothing: it is no bound.
            bound = tf.where(tau > 0, self.clip * tau, dtype.max)
            left = tf.clip_by_value(left, -bound, bound)
        found = selection.words(signs)

        def sparse():
            entries = selection.entries(found)
            if self.entropy:
                words = elias_fano.encode(entries, size)
                return tf.constant(_ELIAS_FANO), base.as_bytes(words)
            return tf.constant(_ENTRIES), base.as_bytes(entries)

        kind, data = tf.cond(
            found.count > int(size * _DENSEST),
            lambda: (tf.constant(_MAP), selection.two_bits(signs)),
            sparse,
        )
        message = base.Message(kind, tau[None], data)
        return message, {"residual": left, **new}, finite

    def _adapted(self, vector, state):
        """The threshold of this message."""
        some = selection.sample(
            [state["residual"], vector], self.density, state["messages"]
        )
        wanted = selection.quantile(some, self.density)
        tau = state["tau"]
        gain = tf.constant(_GAIN, tau.dtype)
        moved = tf.pow(tau, 1 - gain) * tf.pow(wanted, gain)
        # Nothing to start from, or nothing to compare with.
        known = (tau > 0) & (wanted > 0)
        return tf.where(known, moved, tf.maximum(tau, wanted))

    def _decoders(self):
        return [self._decode_entries, self._decode_words, self._decode_map]

    def _decode_entries(self, message, size):
        return self._sparse(base.from_bytes(message.data, tf.int32), message)

    def _decode_words(self, message, size):
        words = base.from_bytes(message.data, tf.int32)
        return self._sparse(elias_fano.decode(words, size), message)

    def _sparse(self, entries, message):
        tau = message.values[0]
        return tf.IndexedSlices(
            tf.where(entries < 0, -tau, tau), elias_fano.indices_of(entries)
        )

    def _decode_map(self, message, size):
        return selection.from_two_bits(message.data, message.values[0], size)
