"""A gradient counts less the further its parameter has moved since."""

import math
from typing import Literal

import tensorflow as tf

from tfdist.correction import base
from tfdist.synchronization import Synchronization

_DECAY = 0.999
_EPSILON = 1e-8


class GapAware(base.Correction):
    """Divides a gradient by how many typical steps its parameter has moved.

    Element by element, with `eta` the learning rate,

        step = (w_after - w_before) / eta             after each update k
        mean_square <- 0.999 * mean_square + 0.001 * step^2
        typical = max(eta) * (sqrt(mean_square / (1 - 0.999^k)) + 1e-8)
        g / (1 + |w_now - w_pulled| / typical)

    where `w_pulled` is what `g` was computed from and `max(eta)` the largest
    learning rate so far. So a gradient that is late by many updates in which
    nothing happened to a weight counts fully there. One that is not late, and
    the first of all, are passed on as they are.

    For any optimizer: `step` is measured. With SGD at a constant rate it is
    the momentum buffer, or the gradient, as in the paper (not with
    `nesterov=True`). Regularizers of the loss are part of `g`. The optimizer's
    weight decay is computed from the newest parameters, is not late, and is
    left alone; the authors' code divides it, too, which has it in `g`.

    Of sparse gradients the rows are divided; the typical step is that of the
    whole table over all updates, so a row that is rarely hit has a small one,
    and late gradients count little there.

    Costs, for M bytes of parameters and N workers: M bytes on the servers,
    and for `w_pulled` what `DelayCompensation` says of `backups`; time for
    all rows of a table at each update.

    Args:
      backups: "server" or "worker".

    References:
      Barkai, Hakimi and Schuster, "Gap-aware mitigation of gradient
      staleness", ICLR 2020, arXiv:1909.10802. The constants are those of the
      implementation that one of the authors took part in.
    """

    observes = True

    def __init__(self, *, backups: Literal["server", "worker"] = "server"):
        base.check_backups("GapAware", backups)
        self.backups = backups

    @property
    def copies(self) -> base.Copies:
        """Keeper of the parameters that a gradient was computed from."""
        return base.Copies(self.backups)

    def resolve(
        self, synchronization: Synchronization, num_workers: int
    ) -> base.Correction:
        base.check_has_late_gradients("GapAware", synchronization)
        return self

    def slots(self, shape: list[int], num_workers: int) -> dict[str, list[int]]:
        return {"mean_square": shape, "updates": [], "largest_rate": []}

    def correct(self, late: base.LateGradient, slots: base.Slots) -> tf.Tensor:
        typical = self._typical_step(slots, late.indices)
        gap = tf.math.divide_no_nan(tf.abs(late.delay), typical)
        return late.values / (1 + gap)

    def _typical_step(self, slots, rows):
        """Distance an update moves the parameter; 0 before the first."""
        updates = slots.read("updates")
        # 1 - 0.999^k, without the loss of digits.
        weight = -tf.math.expm1(updates * math.log(_DECAY))
        mean = tf.math.divide_no_nan(slots.read("mean_square", rows), weight)
        return slots.read("largest_rate") * (tf.sqrt(mean) + _EPSILON)

    def observe(
        self,
        before: tf.Tensor,
        after: tf.Tensor,
        rate: tf.Tensor,
        slots: base.Slots,
    ) -> None:
        step = base.squarable(tf.math.divide_no_nan(after - before, rate))
        mean = _DECAY * slots.read("mean_square")
        slots.assign("mean_square", mean + (1 - _DECAY) * tf.square(step))
        slots.assign("updates", slots.read("updates") + 1)
        slots.assign(
            "largest_rate", tf.maximum(slots.read("largest_rate"), rate)
        )
