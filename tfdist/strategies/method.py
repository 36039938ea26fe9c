"""A method of distributed training as a value."""

import dataclasses
from typing import Any
from typing import Literal

import keras

from tfdist import checks
from tfdist.averaging import LocalSteps
from tfdist.averaging import ParameterAveraging
from tfdist.averaging.base import Pushed
from tfdist.compression import Codec
from tfdist.compression import parse
from tfdist.correction import Copies
from tfdist.correction import Correction
from tfdist.synchronization import Async
from tfdist.synchronization import Synchronization

_COMMUNICATIONS = ("parameter_server", "ring", "peers", "gossip")


@dataclasses.dataclass(frozen=True)
class Method:
    """A point in the space of methods.

    Two are equal if their settings are, whatever their names. The properties
    say which engine carries a method out; nobody needs to ask for classes.

    Attributes:
      synchronization: When pushed gradients become parameters, and who waits:
        a `Synchronization`; default: `Async()`.
      correction: What is done about late gradients: a `Correction`, or None.
      name: For tables and pictures; default: from the others.
      local_steps: What workers do between two exchanges: a `LocalSteps`, or a
        number of steps; None: they push after each.
      communication: "parameter_server", "ring" for all-reduce between
        workers, "peers" where workers send each other updates, or "gossip"
        where they average in pairs.
      compression: Codec of these updates, or a text that names one; None
        sends them as they are.
      warmup_peers: Workers that begin, where workers send each other updates;
        None: all.
      warmup_updates: Updates of each of them before the others join.
    """

    synchronization: Synchronization = dataclasses.field(default_factory=Async)
    correction: Correction | None = None
    name: str = dataclasses.field(default="", compare=False, repr=False)
    local_steps: LocalSteps | int | None = None
    communication: Literal["parameter_server", "ring", "peers", "gossip"] = (
        "parameter_server"
    )
    compression: Codec | str | None = None
    warmup_peers: int | None = None
    warmup_updates: int = 100

    def __post_init__(self):
        if checks.is_number(self.local_steps):
            steps = checks.count("local_steps", self.local_steps)
            steps = ParameterAveraging(steps)
            object.__setattr__(self, "local_steps", steps)
        if isinstance(self.compression, str):
            object.__setattr__(self, "compression", parse(self.compression))
        for name, kind, allowed in (
            (
                "synchronization",
                Synchronization,
                "one of tfdist.synchronization (Async, Sync, SoftSync, "
                "BoundedStaleness)",
            ),
            (
                "correction",
                Correction | None,
                "one of tfdist.correction (DANA, DelayCompensation, FASGD, "
                "GapAware, InverseStaleness) or None",
            ),
            (
                "local_steps",
                LocalSteps | None,
                "a number of steps or one of tfdist.averaging "
                "(AccruedGradients, ElasticAveraging, ParameterAveraging)",
            ),
        ):
            value = getattr(self, name)
            if not isinstance(value, kind):
                raise TypeError(
                    f"Argument `{name}` must be {allowed}. Received: "
                    f"{name}={value!r}"
                )
        if self.communication not in _COMMUNICATIONS:
            raise ValueError(
                "Argument `communication` must be one of "
                f"{', '.join(_COMMUNICATIONS)}. Received: "
                f"communication={self.communication!r}"
            )
        if not self.name:
            parts = [self.local_steps, self.synchronization, self.correction]
            name = " + ".join(repr(part) for part in parts if part is not None)
            object.__setattr__(self, "name", name)

    def resolve(
        self, num_workers: int, initial_workers: int | None = None
    ) -> "Method":
        """Returns the method with all settings known for so many workers.

        Args:
          num_workers: Number of workers that there can be.
          initial_workers: Number of those that begin, for settings on which
            all have to agree from then on; default: all.

        Raises:
          ValueError: The settings do not fit together.
        """
        return self._resolved(
            self.synchronization.resolve(num_workers),
            num_workers,
            initial_workers,
        )

    def alone(self) -> "Method":
        """Returns the method for one process without a cluster.

        Raises:
          ValueError: The settings do not fit together.
        """
        return self._resolved(self.synchronization.alone(), 1)

    def _resolved(self, synchronization, num_workers, initial_workers=None):
        correction, local_steps = self.correction, self.local_steps
        if self.communication == "ring":
            self._check_ring()
        if self.is_among_peers:
            self._check_peers()
        if not self.sends_to_peers:
            self._check_no_peers()
        if correction is not None:
            correction = correction.resolve(
                synchronization, initial_workers or num_workers
            )
        if local_steps is not None:
            local_steps = local_steps.resolve(
                synchronization, correction, initial_workers or num_workers
            )
        if (
            self.communication == "ring"
            and local_steps is not None
            and local_steps.pushed is not Pushed.CHANGE
        ):
            raise ValueError(
                "Argument `local_steps` must be None, ParameterAveraging or "
                'ElasticAveraging with communication="ring", which averages '
                "changes of weights. Received: "
                f"local_steps={self.local_steps!r}"
            )
        return dataclasses.replace(
            self,
            synchronization=synchronization,
            correction=correction,
            local_steps=local_steps,
        )

    def _check_ring(self):
        if not self.synchronization.takes_all:
            raise ValueError(
                "Argument `synchronization` must be Sync() without settings "
                'with communication="ring", which takes all workers together. '
                f"Received: synchronization={self.synchronization!r}"
            )
        if self.correction is not None:
            raise ValueError(
                "Argument `correction` must be None with "
                'communication="ring", where no gradient is late. Received: '
                f"correction={self.correction!r}"
            )

    def _check_peers(self):
        expected = {
            "synchronization": Async(),
            "correction": None,
            "local_steps": None,
        }
        for name, value in expected.items():
            if getattr(self, name) != value:
                raise ValueError(
                    f"Argument `{name}` must be {value!r} with "
                    f'communication="{self.communication}". Received: '
                    f"{name}={getattr(self, name)!r}"
                )

    def _check_no_peers(self):
        for name in ("compression", "warmup_peers"):
            if getattr(self, name) is not None:
                raise ValueError(
                    f"Argument `{name}` must be None but with "
                    'communication="peers". Received: '
                    f"{name}={getattr(self, name)!r}"
                )

    @property
    def peer_arguments(self) -> dict[str, Any]:
        """The arguments of `PeerToPeerStrategy` that make it."""
        return {
            "compression": self.compression,
            "warmup_peers": self.warmup_peers,
            "warmup_updates": self.warmup_updates,
        }

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of `ParameterServerStrategy` that make it."""
        return {
            "synchronization": self.synchronization,
            "correction": self.correction,
            "local_steps": self.local_steps,
            "communication": self.communication,
        }

    @property
    def waits(self) -> bool:
        """Whether a worker may have to wait for others."""
        return self.synchronization.waits

    @property
    def needs_servers(self) -> bool:
        """Whether parameters are on servers."""
        return self.communication == "parameter_server"

    @property
    def all_reduces_gradients(self) -> bool:
        """Whether it is `AllReduceStrategy` that carries it out."""
        return self.communication == "ring" and self.local_steps is None

    @property
    def sends_to_peers(self) -> bool:
        """Whether it is `PeerToPeerStrategy` that carries it out."""
        return self.communication == "peers"

    @property
    def gossips(self) -> bool:
        """Whether it is `GossipStrategy` that carries it out."""
        return self.communication == "gossip"

    @property
    def is_among_peers(self) -> bool:
        """Whether it is one of these two: no servers, and nobody waits."""
        return self.sends_to_peers or self.gossips

    @property
    def steps_on_workers(self) -> bool:
        """Whether each worker takes steps with an optimizer of its own."""
        return self.local_steps is not None or self.is_among_peers

    @property
    def needs_order(self) -> bool:
        """Whether servers have to agree on one order of decisions.

        Else each server applies what arrives at once, or there is none.
        """
        correction = self.correction
        by_server = correction is not None and not correction.on_worker
        ordered = self.synchronization.ordered or by_server
        return self.needs_servers and ordered

    @property
    def remembers_workers(self) -> bool:
        """Whether servers keep something of each worker."""
        correction = self.correction
        return (
            correction is not None
            and correction.remembers_workers
            and not correction.on_worker
        )

    @property
    def copies_per_push(self) -> int:
        """Bytes of a push, in those of the parameters."""
        correction = self.correction
        sends = correction is not None and correction.copies is Copies.WORKER
        return 2 if sends and not correction.on_worker else 1

    def server_optimizer(
        self, optimizer: keras.optimizers.Optimizer
    ) -> keras.optimizers.Optimizer:
        """Returns the optimizer whose updates servers make.

        Args:
          optimizer: That of the model.
        """
        if self.local_steps is None:
            return optimizer
        return self.local_steps.outer_optimizer()

    def with_momentum(self, momentum: float) -> "Method":
        """Returns the method with another momentum of its correction's own.

        Args:
          momentum: 0 or more and less than 1.

        Raises:
          ValueError: The correction has none.
        """
        if self.correction is None or not self.correction.has_momentum:
            raise ValueError(
                "Argument `correction` must be one with a momentum of its own. "
                f"Received: correction={self.correction!r}."
            )
        return dataclasses.replace(
            self, correction=self.correction.with_momentum(momentum)
        )
