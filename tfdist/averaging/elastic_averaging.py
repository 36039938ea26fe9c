"""Workers that explore around a centre, tied to it by an elastic force."""

from collections.abc import Callable
from typing import Any

import keras

from tfdist.averaging import base


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
        base.check_period(owner, "period", period)
        if moving_rate is not None and alpha is not None:
            raise ValueError(
                f"{owner}: give one of moving_rate and alpha, came: "
                f"moving_rate={moving_rate!r}, alpha={alpha!r}."
            )
        if alpha is not None:
            alpha = base.check_rate(owner, "alpha", alpha, high=1.0)
        else:
            moving_rate = 0.9 if moving_rate is None else moving_rate
            moving_rate = base.check_rate(owner, "moving_rate", moving_rate)
        self.period = period
        self.moving_rate = moving_rate
        self.alpha = alpha
        self.pushed = base.Pushed.WEIGHTS

    def resolve(self, synchronization, correction, num_workers):
        super().resolve(synchronization, correction, num_workers)
        owner = type(self).__name__
        is_sync = synchronization.takes_all
        if synchronization.ordered and not is_sync:
            raise ValueError(
                f"{owner} is defined for Async() and for Sync() without "
                f"backup workers, came: {synchronization!r}."
            )
        if correction is not None:
            raise ValueError(
                f"{owner} reads the centre when it moves it, so nothing is "
                f"late; leave the correction out, came: {correction!r}."
            )
        alpha = self.alpha
        if alpha is None:
            alpha = self.moving_rate / num_workers
            if not alpha < 1:
                raise ValueError(
                    f"{owner}: moving_rate / workers must be less than 1, "
                    f"came: {self.moving_rate:g} / {num_workers}."
                )
        resolved = ElasticAveraging(self.period, alpha=alpha)
        if is_sync:
            resolved.moving_rate = alpha * num_workers
            resolved.pushed = base.Pushed.CHANGE
        return resolved

    def steps(self, step):
        return base.period_steps(self.period, 0, step)

    def outer_optimizer(self):
        return keras.optimizers.SGD(self.moving_rate or 1.0)

    def apply(self, parameter, pushed):
        if self.pushed is base.Pushed.CHANGE:
            return None
        return parameter + self.alpha * (pushed - parameter)

    def adopt(self, own, point, anchor, fresh):
        if self.pushed is base.Pushed.CHANGE:
            return own - self.alpha * (point - anchor)
        # fresh = c + alpha (x - c), so that x - c = (x - fresh) / (1 - alpha).
        return own - self.alpha / (1.0 - self.alpha) * (point - fresh)
