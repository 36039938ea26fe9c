"""Named points in the space of methods, each after the paper it is from."""

from typing import Literal

from typing_extensions import Unpack

from tfdist.correction import DANA
from tfdist.correction import DelayCompensation
from tfdist.strategies import options
from tfdist.strategies.strategy import ParameterServerStrategy
from tfdist.synchronization import Async
from tfdist.synchronization import BoundedStaleness
from tfdist.synchronization import SoftSync
from tfdist.synchronization import Sync


class AsyncStrategy(ParameterServerStrategy):
    """Asynchronous SGD: every gradient is applied when it arrives.

    Downpour SGD with fetch and push at every step (Dean et al. 2012).

    Args:
      **kwargs: Arguments of `ParameterServerStrategy`, documented there: all
        but `synchronization`.
    """

    def __init__(self, **kwargs: Unpack[options.AnyCorrection]):
        super().__init__(synchronization=Async(), **kwargs)


class BackupWorkersStrategy(ParameterServerStrategy):
    """Synchronous SGD that does not wait for the slowest workers.

    See `tfdist.synchronization.Sync` (Chen et al. 2016).

    Args:
      backup_workers: Of all workers, how many each update does not wait for;
        0 waits for all.
      on_drop: "next" or "retry" a batch whose gradient was dropped.
      **kwargs: Arguments of `ParameterServerStrategy`, documented there: all
        but `synchronization`.
    """

    def __init__(
        self,
        backup_workers: int = 1,
        *,
        on_drop: Literal["next", "retry"] = "next",
        **kwargs: Unpack[options.AnyCorrection],
    ):
        super().__init__(
            synchronization=Sync(backup_workers, on_drop=on_drop), **kwargs
        )


class SoftSyncStrategy(ParameterServerStrategy):
    """Asynchronous SGD whose updates average the next few gradients.

    See `tfdist.synchronization.SoftSync` (Zhang et al. 2016). Their
    staleness-aware rate is
    `correction=tfdist.correction.InverseStaleness()`.

    Args:
      s: Gradients per update.
      n: Instead of `s`, the paper's splitting parameter; default: 1.
      **kwargs: Arguments of `ParameterServerStrategy`, documented there: all
        but `synchronization`.
    """

    def __init__(
        self,
        s: int | None = None,
        *,
        n: int | None = None,
        **kwargs: Unpack[options.AnyCorrection],
    ):
        super().__init__(synchronization=SoftSync(s, n=n), **kwargs)


class BoundedStalenessStrategy(ParameterServerStrategy):
    """Asynchronous SGD in which nobody runs far ahead of the slowest.

    See `tfdist.synchronization.BoundedStaleness` (Ho et al. 2013).

    Args:
      max_staleness: Steps by which a worker may be ahead of the slowest.
      **kwargs: Arguments of `ParameterServerStrategy`, documented there: all
        but `synchronization`.
    """

    def __init__(
        self, max_staleness: int = 3, **kwargs: Unpack[options.AnyCorrection]
    ):
        super().__init__(
            synchronization=BoundedStaleness(max_staleness), **kwargs
        )


class DCASGDStrategy(ParameterServerStrategy):
    """Asynchronous SGD with delay compensation (Zheng et al. 2017).

    See `tfdist.correction.DelayCompensation`.

    Args:
      lambda_0: Its strength; default: 2.0, or 0.04 with
        `variance_decay=None`.
      variance_decay: The m of the adaptive variant (DC-ASGD-a), or None for
        the constant one (DC-ASGD-c), whose `lambda_0` has to be tuned.
      backups: Where the parameters are kept that gradients were computed
        from: "server" (memory for a model per worker) or "worker" (twice the
        traffic of a push).
      **kwargs: Arguments of `ParameterServerStrategy`, documented there: all
        but `correction`.
    """

    def __init__(
        self,
        lambda_0: float | None = None,
        variance_decay: float | None = 0.95,
        *,
        backups: Literal["server", "worker"] = "server",
        **kwargs: Unpack[options.AnySynchronization],
    ):
        super().__init__(
            correction=DelayCompensation(
                lambda_0, variance_decay, backups=backups
            ),
            **kwargs,
        )


class DANAStrategy(ParameterServerStrategy):
    """Asynchronous SGD with Nesterov's momentum (Hakimi et al. 2019).

    See `tfdist.correction.DANA`. The optimizer is SGD without momentum.

    Args:
      variant: "slim", "zero" or "dc".
      momentum: gamma, 0 or more and less than 1.
      lambda_0: Of the variant "dc"; default: 2.0.
      backups: Of the variant "dc", "server" (the default) or "worker".
      **kwargs: Arguments of `ParameterServerStrategy`, documented there: all
        but `correction`.
    """

    def __init__(
        self,
        variant: Literal["slim", "zero", "dc"] = "slim",
        momentum: float = 0.9,
        *,
        lambda_0: float | None = None,
        backups: Literal["server", "worker"] | None = None,
        **kwargs: Unpack[options.AnySynchronization],
    ):
        super().__init__(
            correction=DANA(
                variant, momentum, lambda_0=lambda_0, backups=backups
            ),
            **kwargs,
        )
