"""A learning rate per gradient that falls with its staleness."""

import numbers

import tensorflow as tf

from tfdist.correction import base


class InverseStaleness(base.Correction):
    """Scales a gradient by `factor / max(1, staleness)`.

    Zhang, Gupta, Lian and Liu, "Staleness-aware async-SGD for distributed
    deep learning", IJCAI 2016, equation 3: a gradient of staleness 0 or 1
    counts fully. (Some public codes divide by `staleness + 1`, which halves
    the step at staleness 1.) The gradient is scaled before the optimizer sees
    it, so it enters a momentum buffer scaled.

    Args:
      factor: The paper's alpha_0 relative to the optimizer's learning rate,
        a positive, finite number.
    """

    def __init__(self, factor=1.0):
        is_number = isinstance(factor, numbers.Real) and not isinstance(
            factor, bool
        )
        if not is_number or not 0 < factor < float("inf"):
            raise ValueError(
                "InverseStaleness: factor must be a positive, finite number, "
                f"came: {factor!r}."
            )
        self.factor = float(factor)

    def __repr__(self):
        return f"InverseStaleness(factor={self.factor:g})"

    def scale(self, staleness):
        late = tf.cast(tf.maximum(staleness, 1), tf.float64)
        return tf.constant(self.factor, tf.float64) / late
