"""The gradient that one would have now, estimated from the one of then."""

from typing import Literal

import tensorflow as tf

from tfdist import checks
from tfdist.correction import base
from tfdist.correction import rows
from tfdist.synchronization import Synchronization


class DelayCompensation(base.Correction):
    """Adds what the gradient has probably changed by since it was computed.

    The optimizer gets, element by element,

        g + lambda * g * g * (w_now - w_pulled)

    where `w_pulled` is what this worker had computed `g` from. `g * g` stands
    for the diagonal of the Hessian, so this is the first-order estimate of
    the gradient at `w_now`. By default lambda is adaptive (DC-ASGD-a): with
    `variance_decay=m`

        mean_square <- m * mean_square + (1 - m) * g * g
        lambda = lambda_0 / sqrt(mean_square + epsilon)

    With `variance_decay=None` it is constant, `lambda = lambda_0`
    (DC-ASGD-c). A constant has to be tuned: the change grows as the square of
    the gradients, so a lambda that helps one model does nothing on another,
    whose gradients are small. The adaptive change grows as the gradients, as
    the gradient itself does.

    A gradient that is not late is passed on as it is; `lambda_0=0` is
    asynchronous SGD (for finite gradients). Too large a lambda adds noise and
    may diverge.

    For any optimizer (the paper's is SGD without momentum). Weight decay of
    the optimizer is not part of `g`; a regularizer of the loss is. Rows of
    sparse gradients: only these are compensated, and only their mean squares
    move.

    `w_pulled` costs, for M bytes of parameters and N workers:

    - `backups="server"`: up to N * M bytes on the servers, which keep what
      they last gave to each worker (workers that pulled the same version
      share it); no traffic. A table of which a few rows change is copied
      whole at each update.
    - `backups="worker"`: nothing is kept; each push is twice as large (of
      tables only the rows that have gradients).

    As with every correction that is made on servers, large tables are pulled
    whole.

    Args:
      lambda_0: At least 0; default: 2.0, or 0.04 with
        `variance_decay=None`. The paper uses both for CIFAR-10.
      variance_decay: The paper's m, 0 or more and less than 1 (CIFAR-10:
        0.95, ImageNet: 0), or None for a constant lambda. Unless it is None,
        another M bytes on the servers.
      epsilon: Positive.
      backups: "server" or "worker".

    References:
      Zheng, Meng, Wang, Chen, Yu, Ma and Liu, "Asynchronous stochastic
      gradient descent with delay compensation", ICML 2017, arXiv:1609.08326,
      algorithm 2 and section 6.
    """

    def __init__(
        self,
        lambda_0: float | None = None,
        variance_decay: float | None = 0.95,
        *,
        epsilon: float = 1e-7,
        backups: Literal["server", "worker"] = "server",
    ):
        if lambda_0 is None:
            lambda_0 = 0.04 if variance_decay is None else 2.0
        name = "DelayCompensation"
        self.lambda_0 = checks.in_range(f"{name}: lambda_0", lambda_0)
        if variance_decay is not None:
            variance_decay = checks.in_range(
                f"{name}: variance_decay", variance_decay, below=1.0
            )
        self.variance_decay = variance_decay
        self.epsilon = checks.in_range(
            f"{name}: epsilon", epsilon, positive=True
        )
        base.check_backups(name, backups)
        self.backups = backups

    @property
    def copies(self) -> base.Copies:
        """Keeper of the parameters that a gradient was computed from."""
        return base.Copies(self.backups)

    def resolve(
        self, synchronization: Synchronization, num_workers: int
    ) -> base.Correction:
        base.check_has_late_gradients("DelayCompensation", synchronization)
        return self

    def slots(self, shape: list[int], num_workers: int) -> dict[str, list[int]]:
        return {} if self.variance_decay is None else {"mean_square": shape}

    def correct(self, late: base.LateGradient, slots: base.Slots) -> tf.Tensor:
        if late.indices is None:
            return late.values + self._change(
                late.values, late.delay, slots, None
            )
        numbers, places, total = rows.sums(late.values, late.indices)
        first = rows.are_first(late.indices)
        # Row by row; the delay of an entry is that of its row.
        delay = tf.boolean_mask(late.delay, first)
        change = self._change(total, delay, slots, numbers)
        # To one entry of each row: the others stay as they are.
        change = tf.gather(change, places)
        return late.values + tf.where(
            rows.beside(first, change), change, tf.zeros_like(change)
        )

    def _change(self, gradient, delay, slots, numbers):
        """The compensation of whole parameters, or of the rows `numbers`."""
        scale = self.lambda_0
        if self.variance_decay is not None:
            decay = self.variance_decay
            mean = decay * slots.read("mean_square", numbers)
            gradient = base.squarable(gradient)
            mean += (1 - decay) * tf.square(gradient)
            slots.assign("mean_square", mean, numbers)
            scale = scale / tf.sqrt(mean + self.epsilon)
        # In this order the square of a large gradient does not overflow.
        return (scale * gradient) * (gradient * delay)
