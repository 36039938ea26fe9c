"""Named methods with local steps, each after the paper it is from."""

from collections.abc import Callable
import functools
from typing import Any

import keras
from typing_extensions import Unpack

from tfdist.averaging import named
from tfdist.averaging.accrued_gradients import AccruedGradients
from tfdist.averaging.elastic_averaging import ElasticAveraging
from tfdist.averaging.parameter_averaging import ParameterAveraging
from tfdist.strategies import options
from tfdist.strategies.strategy import ParameterServerStrategy
from tfdist.synchronization import Async
from tfdist.synchronization import Sync


class ParameterAveragingStrategy(ParameterServerStrategy):
    """Synchronous averaging of the workers' weights every `period` steps.

    See `tfdist.averaging.ParameterAveraging`.

    Args:
      period: Local steps between two averagings, an int or a function of the
        local step.
      average_optimizer_state: Whether the optimizer's slots are averaged, too.
      warmup_steps: Local steps during which the period is 1.
      **kwargs: Arguments of `ParameterServerStrategy`, documented there: all
        but `local_steps`; `synchronization` is `Sync()` by default.
    """

    def __init__(
        self,
        period: int | Callable[[Any], Any] = 10,
        *,
        average_optimizer_state: bool = False,
        warmup_steps: int = 0,
        **kwargs: Unpack[options.AnyExchange],
    ):
        kwargs.setdefault("synchronization", Sync())
        super().__init__(
            local_steps=ParameterAveraging(
                period,
                average_optimizer_state=average_optimizer_state,
                warmup_steps=warmup_steps,
            ),
            **kwargs,
        )


class BMUFStrategy(ParameterServerStrategy):
    """Blockwise model-update filtering: averaging with a block momentum.

    Chen and Huo, "Scalable training of deep learning machines by incremental
    block training with intra-block parallel optimization and blockwise
    model-update filtering", ICASSP 2016. With W the filtered model, G the
    mean change of the workers' weights from what they began with,

    ```
    delta = block_momentum * delta + block_rate * G
    W = W + delta
    ```

    and workers begin with W, or with `nesterov` with W + block_momentum *
    delta. As an optimizer that is SGD of rate `block_rate`, with Nesterov's
    momentum in the form in which the point ahead is what is kept: the servers
    hold, and an evaluation sees, what workers begin with.

    Args:
      period: Local steps of a block.
      block_momentum: 0 or more and less than 1; default: 1 - 1 / N, of N
        changes in an update.
      block_rate: The paper's zeta.
      nesterov: Whether workers begin at the point ahead.
      reset_momentum: Whether the local momentum starts afresh with each
        block, without which training often diverges.
      warmup_steps: Local steps during which the period is 1.
      **kwargs: Arguments of `ParameterServerStrategy`, documented there: all
        but `local_steps`; `synchronization` is `Sync()` by default.
    """

    def __init__(
        self,
        period: int | Callable[[Any], Any] = 50,
        *,
        block_momentum: float | None = None,
        block_rate: float = 1.0,
        nesterov: bool = True,
        reset_momentum: bool = True,
        warmup_steps: int = 0,
        **kwargs: Unpack[options.AnyExchange],
    ):
        kwargs.setdefault("synchronization", Sync())
        super().__init__(
            local_steps=named.bmuf(
                period,
                block_momentum=block_momentum,
                block_rate=block_rate,
                nesterov=nesterov,
                reset_momentum=reset_momentum,
                warmup_steps=warmup_steps,
            ),
            **kwargs,
        )


class DiLoCoStrategy(ParameterServerStrategy):
    """DiLoCo: many local steps, an outer optimizer with Nesterov's momentum.

    Douillard et al., "DiLoCo: distributed low-communication training of
    language models", 2023. The inner optimizer (the paper's is AdamW) keeps
    its state on each worker.

    Args:
      period: Local steps between two exchanges, the paper's H.
      outer_optimizer: Keras optimizer; default: the paper's SGD of rate 0.7
        with Nesterov's momentum of 0.9.
      warmup_steps: Local steps during which the period is 1.
      **kwargs: Arguments of `ParameterServerStrategy`, documented there: all
        but `local_steps`; `synchronization` is `Sync()` by default.
    """

    def __init__(
        self,
        period: int | Callable[[Any], Any] = 500,
        *,
        outer_optimizer: keras.Optimizer | None = None,
        warmup_steps: int = 0,
        **kwargs: Unpack[options.AnyExchange],
    ):
        kwargs.setdefault("synchronization", Sync())
        make = named.diloco
        if outer_optimizer is not None:
            make = functools.partial(
                ParameterAveraging, outer_optimizer=outer_optimizer
            )
        super().__init__(
            local_steps=make(period, warmup_steps=warmup_steps), **kwargs
        )


class AsyncLocalSGDStrategy(ParameterServerStrategy):
    """Asynchronous local SGD with delayed Nesterov and dynamic local steps.

    Liu et al., "Asynchronous local-SGD training for language modeling", 2024.
    Nobody waits; each worker's change is an update.

    Args:
      period: Local steps of the fastest worker between two exchanges.
      outer_optimizer: Keras optimizer, or a function of the number of workers
        that returns one; default: the paper's
        `tfdist.averaging.DelayedNesterov(0.7, 0.9, delay=num_workers)`.
      dynamic: Whether slower workers take fewer steps.
      warmup_steps: Local steps during which the period is 1.
      **kwargs: Arguments of `ParameterServerStrategy`, documented there: all
        but `local_steps`; `synchronization` is `Async()` by default.
    """

    def __init__(
        self,
        period: int | Callable[[Any], Any] = 50,
        *,
        outer_optimizer: Any = None,
        dynamic: bool = True,
        warmup_steps: int = 0,
        **kwargs: Unpack[options.AnyExchange],
    ):
        kwargs.setdefault("synchronization", Async())
        make = named.async_local_sgd
        if outer_optimizer is not None:
            make = functools.partial(
                ParameterAveraging, outer_optimizer=outer_optimizer
            )
        super().__init__(
            local_steps=make(
                period, dynamic=dynamic, warmup_steps=warmup_steps
            ),
            **kwargs,
        )


class ElasticAveragingStrategy(ParameterServerStrategy):
    """Elastic averaging SGD, asynchronous by default.

    See `tfdist.averaging.ElasticAveraging` (Zhang et al. 2015). With
    Nesterov's momentum in the compiled optimizer (the paper's is 0.99) it is
    EAMSGD.

    Args:
      period: Local steps between two exchanges.
      moving_rate: The paper's beta; default: 0.9.
      alpha: Instead, the moving rate of one worker.
      **kwargs: Arguments of `ParameterServerStrategy`, documented there: all
        but `local_steps`; `synchronization` is `Async()` by default, `Sync()`
        is the synchronous variant.
    """

    def __init__(
        self,
        period: int | Callable[[Any], Any] = 10,
        *,
        moving_rate: float | None = None,
        alpha: float | None = None,
        **kwargs: Unpack[options.AnyExchange],
    ):
        super().__init__(
            local_steps=ElasticAveraging(
                period, moving_rate=moving_rate, alpha=alpha
            ),
            **kwargs,
        )


class DownpourStrategy(ParameterServerStrategy):
    """Downpour SGD (Dean et al. 2012), with Adagrad on the servers.

    See `tfdist.averaging.AccruedGradients`. The optimizer that the model is
    compiled with takes the local steps between two fetches.

    Args:
      n_fetch: Local steps between two fetches.
      n_push: Local steps between two pushes.
      outer_optimizer: Keras optimizer; default: the paper's Adagrad.
      **kwargs: Arguments of `ParameterServerStrategy`, documented there: all
        but `local_steps`.
    """

    def __init__(
        self,
        n_fetch: int = 1,
        n_push: int = 1,
        *,
        outer_optimizer: keras.Optimizer | None = None,
        **kwargs: Unpack[options.AnyExchange],
    ):
        super().__init__(
            local_steps=AccruedGradients(n_fetch, n_push, outer_optimizer),
            **kwargs,
        )
