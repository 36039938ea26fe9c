"""The methods with local steps that are more than a class, as papers have them.

Their settings are numbers and names, so that flags can give them.
"""

from collections.abc import Callable
from typing import Any

from tfdist import checks
from tfdist.averaging import base
from tfdist.averaging import outer_optimizers
from tfdist.averaging.accrued_gradients import AccruedGradients
from tfdist.averaging.parameter_averaging import ParameterAveraging


def bmuf(
    period: int | Callable[[Any], Any] = 50,
    *,
    block_momentum: float | None = None,
    block_rate: float = 1.0,
    nesterov: bool = True,
    reset_momentum: bool = True,
    warmup_steps: int = 0,
) -> ParameterAveraging:
    """Blockwise model-update filtering; see `tfdist.BMUFStrategy`."""
    if block_momentum is not None:
        block_momentum = checks.in_range(
            "BMUF: block_momentum", block_momentum, below=1.0
        )
    nesterov = checks.flag("BMUF: nesterov", nesterov)
    checks.in_range("BMUF: block_rate", block_rate, positive=True)
    return ParameterAveraging(
        period,
        outer_optimizers.BlockMomentum(block_momentum, block_rate, nesterov),
        reset_momentum=reset_momentum,
        warmup_steps=warmup_steps,
    )


def diloco(
    period: int | Callable[[Any], Any] = 500,
    *,
    outer_learning_rate: float = 0.7,
    outer_momentum: float = 0.9,
    warmup_steps: int = 0,
) -> ParameterAveraging:
    """DiLoCo; see `tfdist.DiLoCoStrategy`."""
    _check_outer("DiLoCo", outer_learning_rate, outer_momentum)
    return ParameterAveraging(
        period,
        outer_optimizers.nesterov(outer_learning_rate, outer_momentum),
        warmup_steps=warmup_steps,
    )


def async_local_sgd(
    period: int | Callable[[Any], Any] = 50,
    *,
    outer_learning_rate: float = 0.7,
    outer_momentum: float = 0.9,
    c: float = 0.0,
    dynamic: bool = True,
    warmup_steps: int = 0,
) -> ParameterAveraging:
    """Asynchronous local SGD; see `tfdist.AsyncLocalSGDStrategy`."""
    _check_outer("AsyncLocalSGD", outer_learning_rate, outer_momentum)
    return ParameterAveraging(
        period,
        outer_optimizers.DelayedMomentum(
            outer_learning_rate, outer_momentum, c
        ),
        dynamic=dynamic,
        warmup_steps=warmup_steps,
    )


def downpour(
    n_fetch: int = 1,
    n_push: int = 1,
    *,
    outer_optimizer: str = "adagrad",
    outer_learning_rate: float = 0.01,
) -> AccruedGradients:
    """Downpour SGD; see `tfdist.DownpourStrategy`."""
    _check_outer("Downpour", outer_learning_rate)
    if outer_optimizer == "adagrad":
        made = outer_optimizers.adagrad(outer_learning_rate)
    else:
        named = base.keras_optimizer(
            "Downpour", "outer_optimizer", outer_optimizer
        )
        # Keras takes no integer here.
        made = type(named)(float(outer_learning_rate))
    return AccruedGradients(n_fetch, n_push, made)


def _check_outer(owner, rate, momentum=0.0):
    checks.in_range(f"{owner}: outer_learning_rate", rate, positive=True)
    checks.in_range(f"{owner}: outer_momentum", momentum, below=1.0)
