"""Workers that explore around a centre, tied to it by an elastic force."""

from collections.abc import Callable
import copy
from typing import Any

import keras
import tensorflow as tf

from tfdist import checks
from tfdist.averaging import base
from tfdist.correction import Correction
from tfdist.synchronization import Synchronization


class ElasticAveraging(base.LocalSteps):
    """EASGD, and with a momentum in the inner optimizer EAMSGD.

    Zhang, Choromanska and LeCun, "Deep learning with elastic averaging SGD",
    NIPS 2015. The servers hold the centre c, each of p workers its own
    weights x. Every `period` steps

    ```
    d = alpha (x - c);  x = x - d;  c = c + d
    ```

    with the x at which the step's gradient is computed, alpha = beta / p.
    With `Async` the centre is read once, under its server's lock, for both
    sides (algorithm 1); with `Sync` all workers move against the same centre,
    which moves by beta times their mean distance (equations 5 and 6). The
    centre is what is evaluated and saved.

    With Nesterov's momentum Keras's weights are the point ahead, at which the
    gradient is computed; the elastic force acts on them.

    Args:
      period: Local steps between two exchanges, the paper's tau: an int, or a
        function of the steps counted.
      moving_rate: The paper's beta, of the whole of the workers.
      alpha: Instead, the moving rate of one worker, less than 1.
    """

    keeps_own = True
    weighted = False

    def __init__(
        self,
        period: int | Callable[[Any], Any] = 10,
        *,
        moving_rate: float | None = None,
        alpha: float | None = None,
    ):
        owner = type(self).__name__
        self.period = base.checked_period(owner, "period", period)
        if moving_rate is not None and alpha is not None:
            raise ValueError(
                f"Arguments `moving_rate` and `alpha` of {owner} must not "
                f"both be given. Received: moving_rate={moving_rate!r}, "
                f"alpha={alpha!r}"
            )
        if alpha is not None:
            alpha = checks.in_range(
                f"{owner}: alpha", alpha, below=1.0, positive=True
            )
        else:
            moving_rate = 0.9 if moving_rate is None else moving_rate
            moving_rate = checks.in_range(
                f"{owner}: moving_rate", moving_rate, positive=True
            )
        self.moving_rate = moving_rate
        self.alpha = alpha
        self.pushed = base.Pushed.WEIGHTS

    def resolve(
        self,
        synchronization: Synchronization,
        correction: Correction | None,
        num_workers: int,
    ) -> base.LocalSteps:
        super().resolve(synchronization, correction, num_workers)
        owner = type(self).__name__
        is_sync = synchronization.takes_all
        if synchronization.ordered and not is_sync:
            raise ValueError(
                "Argument `synchronization` must be Async(), or Sync() "
                f"without backup workers, with {owner}. Received: "
                f"synchronization={synchronization!r}"
            )
        if correction is not None:
            raise ValueError(
                f"Argument `correction` must be None with {owner}, which "
                "reads the centre when it moves it, so nothing is late; leave "
                f"the correction out. Received: correction={correction!r}"
            )
        alpha = self.alpha
        if alpha is None:
            alpha = self.moving_rate / num_workers
            if not alpha < 1:
                raise ValueError(
                    f"Argument `moving_rate` of {owner} must be less than the "
                    "number of workers. Received: "
                    f"moving_rate={self.moving_rate:g} for {num_workers} "
                    "workers"
                )
        resolved = copy.copy(self)
        resolved.moving_rate, resolved.alpha = None, alpha
        resolved.pushed = base.Pushed.WEIGHTS
        if is_sync:
            self._check_together(alpha, num_workers)
            resolved.moving_rate = alpha * num_workers
            resolved.pushed = base.Pushed.CHANGE
        return resolved

    def _check_together(self, alpha, num_workers):
        """Refuses forces that overshoot.

        An exchange multiplies the distance between the centre and the mean of
        the workers by 1 - alpha - num_workers * alpha.
        """
        name = "moving_rate" if self.alpha is None else "alpha"
        limit = 2.0 / (num_workers + 1)
        if name == "moving_rate":
            limit *= num_workers
        value = getattr(self, name)
        if not value < limit:
            raise ValueError(
                f"Argument `{name}` of {type(self).__name__} must be less than "
                f"{limit:.3g} with Sync() and {num_workers} workers: beyond, "
                "the centre and the workers move apart. Received: "
                f"{name}={value:g}"
            )

    def steps(self, step: tf.Tensor) -> tf.Tensor:
        return base.period_steps(self.period, 0, step)

    def outer_optimizer(self) -> keras.Optimizer:
        return keras.optimizers.SGD(self.moving_rate or 1.0)

    def apply(
        self, parameter: tf.Tensor, pushed: tf.Tensor
    ) -> tf.Tensor | None:
        if self.pushed is base.Pushed.CHANGE:
            return None
        return parameter + self.alpha * (pushed - parameter)

    def adopt(
        self,
        own: tf.Tensor,
        point: tf.Tensor,
        anchor: tf.Tensor,
        fresh: tf.Tensor,
    ) -> tf.Tensor:
        if self.pushed is base.Pushed.CHANGE:
            return own - self.alpha * (point - anchor)
        # fresh = c + alpha (x - c), so that x - c = (x - fresh) / (1 - alpha).
        return own - self.alpha / (1.0 - self.alpha) * (point - fresh)
