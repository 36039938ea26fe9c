"""The outer optimizers that papers give."""

import keras

from tfdist.averaging.delayed_nesterov import DelayedNesterov


def nesterov(rate, momentum):
    """SGD with Nesterov's momentum, without where that is 0.

    Args:
      rate: The outer rate.
      momentum: 0 or more and less than 1.
    """
    return keras.optimizers.SGD(
        rate, momentum=momentum, nesterov=bool(momentum)
    )


def block_momentum(momentum, rate, ahead):
    """What filters blocks' updates (Chen and Huo 2016).

    Args:
      momentum: 0 or more and less than 1; None for 1 - 1 / workers.
      rate: The paper's zeta.
      ahead: Whether workers begin at Nesterov's point ahead.

    Returns:
      A function of the number of workers that makes the optimizer.
    """

    def make(num_workers):
        known = 1.0 - 1.0 / num_workers if momentum is None else momentum
        if ahead:
            return nesterov(rate, known)
        return keras.optimizers.SGD(rate, momentum=known)

    return make


def delayed_nesterov(rate, momentum, c=0.0):
    """What asynchronous local SGD has (Liu et al. 2024).

    Args:
      rate: The outer rate.
      momentum: beta, 0 or more and less than 1.
      c: See `DelayedNesterov`.

    Returns:
      A function of the number of workers that makes the optimizer.
    """

    def make(num_workers):
        return DelayedNesterov(rate, momentum, delay=num_workers, c=c)

    return make


def adagrad(rate=0.01):
    """Adagrad as Dean et al. 2012 have it: its sums begin at 0.

    Args:
      rate: The paper's gamma.
    """
    return keras.optimizers.Adagrad(
        rate, initial_accumulator_value=0.0, epsilon=1e-10
    )
