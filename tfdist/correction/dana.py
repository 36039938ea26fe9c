"""Momentum of each worker, and gradients where the parameters will be."""

import copy
from typing import Literal

import keras
import numpy as np
import tensorflow as tf

from tfdist import checks
from tfdist.correction import base
from tfdist.correction import optimizers
from tfdist.correction.delay_compensation import DelayCompensation
from tfdist.synchronization import SoftSync
from tfdist.synchronization import Synchronization

_VARIANTS = ("zero", "slim", "dc")


class DANA(base.Correction):
    """Nesterov's momentum for many workers: look ahead over all of them.

    Each worker i has a momentum v_i. Until its gradient arrives, each of the
    workers will once have moved the parameters by about
    `eta * gamma * v_j`; so it computes its gradient there. With `theta` the
    parameters, `eta` the learning rate, `gamma` the momentum:

    `variant="zero"` (algorithm 4), on the server, for a gradient g of
    worker i:

        v_i <- gamma * v_i + g ;   theta <- theta - eta * v_i
        the worker gets  theta - eta * gamma * sum_j v_j

    `variant="dc"`: the same, with `g + lambda * g * g * (theta - theta_i)` in
    the place of g, where theta_i is what the worker had got
    (`DelayCompensation`).

    `variant="slim"`: the worker keeps v_i and pushes `gamma * v_i + g`; the
    server does plain SGD on `Theta = theta - eta * gamma * sum_j v_j`. The
    same iterates as "zero", for a constant rate and without weight decay or
    constraints, which act on Theta; where the rate changes, theta moves once
    by the change of `eta * gamma * sum_j v_j`.

    With one worker "zero" and "slim" are SGD with Nesterov's momentum; "dc"
    also compensates for the distance of its look-ahead. Where an update
    averages s gradients (`SoftSync`), it is `eta * gamma / s * sum_j v_j`. The
    `eta` of the look-ahead is that of the last update.

    The optimizer has to be SGD without momentum: that is here. Rows of sparse
    gradients become dense, as momentum moves all of them ("slim" pushes all).

    With "zero" and "dc" a worker's replicas are the look-ahead. `evaluate`,
    `predict`, `strategy.pull()` and `barrier()` fetch theta. So do the ways of
    Keras and TensorFlow to save a model, and the `ClusterMonitor` before
    validation and each epoch. The next gradient is that of theta. What a
    program reads itself is the look-ahead; within a period of local steps, so
    is what is evaluated and saved. With "slim" all see Theta.

    Costs, for M bytes of parameters and N workers: "zero" (N + 1) * M bytes
    on the servers, "dc" what `backups` of `DelayCompensation` cost on top,
    "slim" M bytes on each worker; no traffic but that of "dc" with
    `backups="worker"`. The momentum of a worker that is gone, or whose `fit`
    has ended, leaves the sum; with "slim" it stays with the worker. The
    `ClusterCheckpoint` saves it.

    Args:
      variant: "zero", "slim" or "dc".
      momentum: gamma, 0 or more and less than 1.
      lambda_0: Of "dc" only; default: 2.0.
      backups: Of "dc" only, "server" (the default) or "worker".

    References:
      Hakimi, Barkai, Gabel and Schuster, "Taming momentum in a distributed
      asynchronous environment", 2019, arXiv:1907.11612.
    """

    densifies = True
    has_momentum = True

    def __init__(
        self,
        variant: Literal["slim", "zero", "dc"] = "slim",
        momentum: float = 0.9,
        *,
        lambda_0: float | None = None,
        backups: Literal["server", "worker"] | None = None,
    ):
        if variant not in _VARIANTS:
            raise ValueError(
                "Argument `variant` of DANA must be one of "
                f"{list(_VARIANTS)}. Received: variant={variant!r}"
            )
        self.variant = variant
        self.momentum = checks.in_range("DANA: momentum", momentum, below=1.0)
        self._compensation = None
        if variant == "dc":
            self._compensation = DelayCompensation(
                2.0 if lambda_0 is None else lambda_0,
                variance_decay=None,
                backups="server" if backups is None else backups,
            )
            self.copies = self._compensation.copies
        else:
            for name, value in (("lambda_0", lambda_0), ("backups", backups)):
                if value is not None:
                    raise ValueError(
                        f"Argument `{name}` of DANA must be left out except "
                        f"with variant='dc'. Received: {name}={value!r} with "
                        f"variant={variant!r}"
                    )
        self.on_worker = variant == "slim"
        on_server = not self.on_worker
        self.remembers_workers = self.uses_lookahead = self.observes = on_server
        # Of an update, as `resolve` finds out.
        self._gradients = 1

    def __repr__(self):
        if type(self) is not DANA:
            # It may have other settings.
            return super().__repr__()
        dc = ""
        if self._compensation is not None:
            dc = (
                f", lambda_0={self._compensation.lambda_0:g}, "
                f"backups={self.copies.value!r}"
            )
        return f"DANA({self.variant!r}, momentum={self.momentum:g}{dc})"

    def with_momentum(self, momentum: float) -> base.Correction:
        """The same with another momentum."""
        made = copy.copy(self)
        made.momentum = checks.in_range("DANA: momentum", momentum, below=1.0)
        return made

    def resolve(
        self, synchronization: Synchronization, num_workers: int
    ) -> base.Correction:
        base.check_has_late_gradients(
            "DANA",
            synchronization,
            f", and use SGD(momentum={self.momentum:g}, nesterov=True)",
        )
        resolved = copy.copy(self)
        if isinstance(synchronization, SoftSync):
            resolved._gradients = (  # noqa: SLF001
                synchronization.gradients_per_update(num_workers)
            )
        return resolved

    def check_optimizer(self, optimizer: keras.Optimizer) -> None:
        optimizers.check_is_sgd(
            "DANA",
            optimizer,
            f"the momentum is DANA's own (momentum={self.momentum:g})",
            momentum=False,
        )

    def slots(self, shape: list[int], num_workers: int) -> dict[str, list[int]]:
        if self.on_worker:
            return {"momentum": shape}
        return {"momenta": [num_workers, *shape], "sum": shape, "rate": []}

    def correct(self, late: base.LateGradient, slots: base.Slots) -> tf.Tensor:
        gamma = self.momentum
        if self.on_worker:
            momentum = _plus(gamma * slots.read("momentum"), late)
            slots.assign("momentum", momentum)
            return _plus(gamma * momentum, late)
        values = late.values
        if self._compensation is not None:
            values = self._compensation.correct(late, slots)
        before = slots.read("momenta", late.worker)
        momentum = _plus(gamma * before, late, values)
        slots.assign("momenta", momentum, late.worker)
        slots.assign("sum", slots.read("sum") + (momentum - before))
        return momentum

    def observe(
        self,
        before: tf.Tensor,
        after: tf.Tensor,
        rate: tf.Tensor,
        slots: base.Slots,
    ) -> None:
        slots.assign("rate", rate)

    def look_ahead(self, parameter: tf.Tensor, slots: base.Slots) -> tf.Tensor:
        scale = slots.read("rate") * (self.momentum / self._gradients)
        return parameter - scale * slots.read("sum")

    def for_workers(
        self, slots: dict[str, np.ndarray], num_workers: int
    ) -> dict[str, np.ndarray]:
        # Workers of the same number go on with their momentum; that of those
        # who are not there any more leaves the sum.
        momenta = slots["momenta"][:num_workers]
        if len(momenta) < num_workers:
            more = num_workers - len(momenta)
            zeros = np.zeros((more, *momenta.shape[1:]), momenta.dtype)
            momenta = np.concatenate([momenta, zeros])
        elif len(momenta) == len(slots["momenta"]):
            return slots
        return {**slots, "momenta": momenta, "sum": momenta.sum(0)}

    def forget(self, worker: tf.Tensor, slots: base.Slots) -> None:
        momentum = slots.read("momenta", worker)
        slots.assign("momenta", tf.zeros_like(momentum), worker)
        # Afresh: what rounding has left in the sum goes, too.
        slots.assign("sum", tf.reduce_sum(slots.read("momenta"), 0))


def _plus(dense, late, values=None):
    """`dense` plus a gradient, which may be sparse."""
    values = late.values if values is None else values
    if late.indices is None:
        return dense + values
    return tf.tensor_scatter_nd_add(dense, late.indices[:, None], values)
