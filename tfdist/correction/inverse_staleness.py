"""A learning rate per gradient that falls with its staleness."""

import tensorflow as tf

from tfdist import checks
from tfdist.correction import base


class InverseStaleness(base.Correction):
    """Scales a gradient by `factor / max(1, staleness)`.

    A gradient of staleness 0 or 1 counts fully. (Some public codes divide by
    `staleness + 1`, which halves the step at staleness 1.) The gradient is
    scaled before the optimizer sees it, so it enters a momentum buffer
    scaled. For any optimizer and synchronization; keeps nothing, sends
    nothing more. Optimizers that divide by the size of the gradients, as Adam
    does, take some of it back.

    Args:
      factor: The paper's alpha_0 relative to the optimizer's learning rate,
        a positive, finite number.

    References:
      Zhang, Gupta, Lian and Liu, "Staleness-aware async-SGD for distributed
      deep learning", IJCAI 2016, equation 3.
    """

    def __init__(self, factor: float = 1.0):
        self.factor = checks.in_range(
            "InverseStaleness: factor", factor, positive=True
        )

    def scale(self, staleness: tf.Tensor) -> tf.Tensor:
        """The factor of a gradient.

        Args:
          staleness: Scalar int64 tensor, 0 or more.

        Returns:
          A scalar float64 tensor.
        """
        late = tf.cast(tf.maximum(staleness, 1), tf.float64)
        return tf.constant(self.factor, tf.float64) / late

    def correct(self, late: base.LateGradient, slots: base.Slots) -> tf.Tensor:
        return late.values * tf.cast(
            self.scale(late.staleness), late.values.dtype
        )
