"""Methods with local steps, as flags name them; see `local_presets`."""

import keras

from tfdist import averaging
from tfdist.averaging import outer_optimizers
from tfdist.simulation.method import Method
from tfdist.synchronization import Async
from tfdist.synchronization import Sync


def _averaging(
    period=10,
    warmup_steps=0,
    average_optimizer_state=False,
    reset_momentum=False,
):
    return Method(
        Sync(),
        local_steps=averaging.ParameterAveraging(
            period,
            average_optimizer_state=average_optimizer_state,
            reset_momentum=reset_momentum,
            warmup_steps=warmup_steps,
        ),
    )


def _bmuf(
    period=50,
    block_momentum=None,
    block_rate=1.0,
    nesterov=True,
    reset_momentum=True,
    warmup_steps=0,
):
    outer = outer_optimizers.block_momentum(
        block_momentum, block_rate, nesterov
    )
    return Method(
        Sync(),
        local_steps=averaging.ParameterAveraging(
            period,
            outer,
            reset_momentum=reset_momentum,
            warmup_steps=warmup_steps,
        ),
    )


def _diloco(
    period=500, outer_learning_rate=0.7, outer_momentum=0.9, warmup_steps=0
):
    outer = outer_optimizers.nesterov(outer_learning_rate, outer_momentum)
    return Method(
        Sync(),
        local_steps=averaging.ParameterAveraging(
            period, outer, warmup_steps=warmup_steps
        ),
    )


def _easgd(period=10, moving_rate=None, alpha=None):
    return Method(
        Async(),
        local_steps=averaging.ElasticAveraging(
            period, moving_rate=moving_rate, alpha=alpha
        ),
    )


def _async_local_sgd(
    period=50,
    outer_learning_rate=0.7,
    outer_momentum=0.9,
    c=0.0,
    dynamic=True,
    warmup_steps=0,
):
    return Method(
        Async(),
        local_steps=averaging.ParameterAveraging(
            period,
            outer_optimizers.delayed_nesterov(
                outer_learning_rate, outer_momentum, c
            ),
            dynamic=dynamic,
            warmup_steps=warmup_steps,
        ),
    )


def _downpour(
    n_fetch=1, n_push=1, outer_optimizer="adagrad", outer_learning_rate=0.01
):
    if outer_optimizer == "adagrad":
        made = outer_optimizers.adagrad(outer_learning_rate)
    else:
        made = type(keras.optimizers.get(outer_optimizer))(outer_learning_rate)
    return Method(
        Async(), local_steps=averaging.AccruedGradients(n_fetch, n_push, made)
    )


METHODS = {
    "parameter_averaging": _averaging,
    "bmuf": _bmuf,
    "diloco": _diloco,
    "easgd": _easgd,
    "async_local_sgd": _async_local_sgd,
    "downpour": _downpour,
}
"""Name -> what makes the `Method` from its settings."""
