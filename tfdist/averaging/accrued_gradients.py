"""Downpour: gradients are accrued, pushed and fetched at their own rates."""

import keras
import tensorflow as tf

from tfdist import checks
from tfdist.averaging import base
from tfdist.averaging import outer_optimizers
from tfdist.correction import Copies
from tfdist.correction import Correction
from tfdist.synchronization import Synchronization


class AccruedGradients(base.LocalSteps):
    """Downpour SGD with fewer exchanges than steps.

    Dean et al., "Large scale distributed deep networks", NIPS 2012, section
    4.1. A worker takes local steps with the optimizer that the model was
    compiled with (the paper's is plain SGD), pushes the sum of its gradients
    after every `n_push` steps and fetches the parameters after every
    `n_fetch`. The servers' optimizer makes an update of each sum.

    With `n_fetch=1` every local step is undone by a fetch: the servers'
    optimizer alone counts. With both 1 this is asynchronous SGD.

    Args:
      n_fetch: Local steps between two fetches.
      n_push: Local steps between two pushes.
      outer_optimizer: Keras optimizer, or its name or config; default: the
        paper's Adagrad, with a rate of 0.01 and sums that begin at 0.
    """

    pushed = base.Pushed.GRADIENTS
    weighted = False

    def __init__(
        self,
        n_fetch: int = 1,
        n_push: int = 1,
        outer_optimizer: keras.Optimizer | None = None,
    ):
        owner = type(self).__name__
        self.n_fetch = checks.count(f"{owner}: n_fetch", n_fetch)
        self.n_push = checks.count(f"{owner}: n_push", n_push)
        self._outer = base.optimizer_config(
            owner,
            "outer_optimizer",
            outer_optimizers.adagrad()
            if outer_optimizer is None
            else outer_optimizer,
        )

    def resolve(
        self,
        synchronization: Synchronization,
        correction: Correction | None,
        num_workers: int,
    ) -> base.LocalSteps:
        super().resolve(synchronization, correction, num_workers)
        if self.n_fetch != self.n_push and synchronization.waits:
            raise ValueError(
                f"{type(self).__name__}: n_fetch={self.n_fetch} other than "
                f"n_push={self.n_push} is for Async and SoftSync; with "
                f"{synchronization!r} each push is answered."
            )
        if self.n_fetch != self.n_push and _is_of_answers(correction):
            raise ValueError(
                f"{type(self).__name__}: n_fetch={self.n_fetch} other than "
                f"n_push={self.n_push} is not for {correction!r}, for which "
                "servers remember what they answer to each push: choose the "
                'same number, or a correction with backups="worker" or one '
                "that needs no copies of parameters, such as InverseStaleness."
            )
        return self

    def steps(self, step: tf.Tensor) -> tf.Tensor:
        return base.period_steps(self.n_push, 0, step)

    def fetch_steps(self, step: tf.Tensor) -> tf.Tensor | None:
        if self.n_fetch == self.n_push:
            return None
        return base.period_steps(self.n_fetch, 0, step)

    def outer_optimizer(self) -> keras.Optimizer:
        return base.new_optimizer(self._outer)


def _is_of_answers(correction):
    """Whether a correction takes each answer of a server for a fetch."""
    return correction is not None and (
        correction.copies is Copies.SERVER or correction.uses_lookahead
    )
