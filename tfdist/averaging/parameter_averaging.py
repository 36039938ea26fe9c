"""The mean of what workers have made of the parameters, or what is made of it.

Local SGD, BMUF and DiLoCo are one method with different outer optimizers.
"""

from collections.abc import Callable
import copy
from typing import Any

import keras
import tensorflow as tf

from tfdist import checks
from tfdist.averaging import base
from tfdist.correction import Correction
from tfdist.synchronization import Synchronization


class ParameterAveraging(base.LocalSteps):
    """Workers train for `period` steps; then their weights are averaged.

    Written in changes of weights, so that it is defined for any
    synchronization: with theta the parameters and theta_i what worker i has
    made of them, each update of n workers is

    ```
    delta = sum_i(m_i (theta - theta_i)) / sum_i(m_i)
    theta = outer_optimizer(theta, delta)
    ```

    with m_i the examples that worker i has seen in its steps. With the
    default outer optimizer, SGD of rate 1, that is the weighted mean of the
    theta_i: parameter averaging (Su and Chen 2015; Deeplearning4j), local SGD
    (Stich 2019), with `warmup_steps` post-local SGD (Lin et al. 2020). With
    Nesterov's momentum it is BMUF (Chen and Huo, ICASSP 2016) and DiLoCo
    (Douillard et al. 2023).

    An update of one worker alone (`Async`, `BoundedStaleness`) is not divided
    by the number of workers: N of them move the parameters N times as far as
    their mean.

    Args:
      period: Local steps between two exchanges: an int, or a function of the
        steps that the inner optimizer has counted (a scalar int64 tensor)
        that returns one. Parameter averaging uses 5 to 20, DiLoCo 500.
      outer_optimizer: Keras optimizer, or its name or config, or a function
        of the number of workers that returns one; default: `SGD(1.0)`. It
        counts updates; its state stays on the servers.
      average_optimizer_state: Whether the inner optimizer's slots (momentum,
        Adam's moments) are averaged as well, weighted alike; else they stay
        each worker's own. For synchronizations that average.
      reset_momentum: Whether the inner optimizer's momenta start afresh after
        each exchange; second moments (Adam's) do not.
      warmup_steps: Local steps during which the period is 1.
      dynamic: Whether a worker whose speed is v takes `floor(v / v_max *
        period)` steps, at least 1, where v_max is that of the fastest (Liu
        et al. 2024, DyLU).
    """

    def __init__(
        self,
        period: int | Callable[[Any], Any] = 10,
        outer_optimizer: Any = None,
        *,
        average_optimizer_state: bool = False,
        reset_momentum: bool = False,
        warmup_steps: int = 0,
        dynamic: bool = False,
    ):
        owner = type(self).__name__
        self.period = base.checked_period(owner, "period", period)
        self.warmup_steps = checks.count(
            f"{owner}: warmup_steps", warmup_steps, 0
        )
        average_optimizer_state = checks.flag(
            f"{owner}: average_optimizer_state", average_optimizer_state
        )
        reset_momentum = checks.flag(f"{owner}: reset_momentum", reset_momentum)
        if average_optimizer_state and reset_momentum:
            raise ValueError(
                "Arguments `average_optimizer_state` and `reset_momentum` of "
                f"{owner} must not both be True. Received: "
                "average_optimizer_state=True, reset_momentum=True"
            )
        if outer_optimizer is None:
            outer_optimizer = keras.optimizers.SGD(1.0)
        # A function is called when the number of workers is known.
        self._outer = outer_optimizer
        if base.is_factory(outer_optimizer):
            base.check_factory(owner, "outer_optimizer", outer_optimizer)
        else:
            self._outer = base.optimizer_config(
                owner, "outer_optimizer", outer_optimizer
            )
        self.average_optimizer_state = average_optimizer_state
        self.reset_momentum = reset_momentum
        self.dynamic = checks.flag(f"{owner}: dynamic", dynamic)

    def resolve(
        self,
        synchronization: Synchronization,
        correction: Correction | None,
        num_workers: int,
    ) -> base.LocalSteps:
        super().resolve(synchronization, correction, num_workers)
        if self.average_optimizer_state and not synchronization.averages:
            raise ValueError(
                "Argument `synchronization` must be one whose updates average "
                "workers (Sync, SoftSync) with average_optimizer_state of "
                f"{type(self).__name__}. Received: "
                f"synchronization={synchronization!r}"
            )
        if self.dynamic and synchronization.waits:
            raise ValueError(
                f"{type(self).__name__}: dynamic=True is for workers that do "
                f"not wait for each other, and with {synchronization!r} they "
                "do: use Async or SoftSync."
            )
        if not base.is_factory(self._outer):
            return self
        outer = self._outer
        changes = synchronization.gradients_per_update(num_workers)
        if changes and hasattr(outer, "for_means"):
            made = outer.for_means(num_workers, changes)
        else:
            made = outer(num_workers)
        resolved = copy.copy(self)
        resolved._outer = base.optimizer_config(  # noqa: SLF001
            type(self).__name__, "outer_optimizer", made
        )
        return resolved

    def steps(self, step: tf.Tensor) -> tf.Tensor:
        return base.period_steps(self.period, self.warmup_steps, step)

    def outer_optimizer(self) -> keras.Optimizer:
        return base.new_optimizer(self._outer)
