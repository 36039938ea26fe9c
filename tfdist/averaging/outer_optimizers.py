"""The outer optimizers that papers give."""

import dataclasses

import keras

from tfdist.averaging.delayed_nesterov import DelayedNesterov


def nesterov(rate, momentum):
    """SGD with Nesterov's momentum, without where that is 0.

    Args:
      rate: The outer rate.
      momentum: 0 or more and less than 1.
    """
    # Keras takes no integers here.
    return keras.optimizers.SGD(
        float(rate), momentum=float(momentum), nesterov=bool(momentum)
    )


@dataclasses.dataclass(frozen=True)
class BlockMomentum:
    """The outer optimizer of BMUF: block momentum (Chen and Huo 2016).

    Called with the number of workers it makes the optimizer.

    Attributes:
      momentum: 0 or more and less than 1; None for 1 - 1 / n, where an update
        is the mean of the changes of n workers.
      rate: The paper's zeta.
      ahead: Whether workers begin at Nesterov's point ahead.
    """

    momentum: float | None
    rate: float
    ahead: bool

    def for_means(self, num_workers, changes):
        """The same, where an update is the mean of the changes of some workers.

        Args:
          num_workers: Number of workers.
          changes: Of how many workers.
        """
        return self(changes)

    def __call__(self, num_workers):
        known = self.momentum
        if known is None:
            known = 1.0 - 1.0 / num_workers
        if self.ahead:
            return nesterov(self.rate, known)
        return keras.optimizers.SGD(float(self.rate), momentum=float(known))


@dataclasses.dataclass(frozen=True)
class DelayedMomentum:
    """The outer optimizer of asynchronous local SGD (Liu et al. 2024).

    Called with the number of workers it makes the optimizer.

    Attributes:
      rate: The outer rate.
      momentum: beta, 0 or more and less than 1.
      c: See `DelayedNesterov`.
    """

    rate: float
    momentum: float
    c: float = 0.0

    def for_means(self, num_workers, changes):
        """As of `BlockMomentum`: as many updates are the changes of all."""
        return self(max(num_workers // changes, 1))

    def __call__(self, num_workers):
        return DelayedNesterov(
            float(self.rate), self.momentum, delay=num_workers, c=self.c
        )


def adagrad(rate=0.01):
    """Adagrad as Dean et al. 2012 have it: its sums begin at 0.

    Args:
      rate: The paper's gamma.
    """
    return keras.optimizers.Adagrad(
        float(rate), initial_accumulator_value=0.0, epsilon=1e-10
    )
