"""What is simulated: a point in the space of methods, under a name."""

import dataclasses

from tfdist import synchronization as synchronization_lib
from tfdist.averaging import LocalSteps
from tfdist.averaging import ParameterAveraging
from tfdist.correction import Copies
from tfdist.correction import Correction
from tfdist.synchronization import Synchronization


@dataclasses.dataclass(frozen=True)
class Method:
    """A point in the space of methods.

    Attributes:
      synchronization: A `Synchronization`; default: `Async()`.
      correction: A `Correction`, or None.
      name: For tables and pictures; default: from the others.
      local_steps: What workers do between two exchanges, one of
        `tfdist.averaging`, or a number of steps; None: they push after each.
    """

    synchronization: Synchronization = dataclasses.field(
        default_factory=synchronization_lib.Async
    )
    correction: Correction | None = None
    name: str = ""
    local_steps: LocalSteps | int | None = None

    def __post_init__(self):
        if type(self.local_steps) is int:
            steps = ParameterAveraging(self.local_steps)
            object.__setattr__(self, "local_steps", steps)
        if not isinstance(self.synchronization, Synchronization):
            raise TypeError(
                "Method: synchronization must be one of "
                "tfdist.synchronization. Received: "
                f"{self.synchronization!r}."
            )
        if self.correction is not None and not isinstance(
            self.correction, Correction
        ):
            raise TypeError(
                "Method: correction must be one of tfdist.correction or None. "
                f"Received: {self.correction!r}."
            )
        if self.local_steps is not None and not isinstance(
            self.local_steps, LocalSteps
        ):
            raise TypeError(
                "Method: local_steps must be a number of steps, one of "
                f"tfdist.averaging or None. Received: {self.local_steps!r}."
            )
        if not self.name:
            parts = [self.local_steps, self.synchronization, self.correction]
            name = " + ".join(repr(part) for part in parts if part is not None)
            object.__setattr__(self, "name", name)

    def resolve(self, num_workers):
        """The method with all settings known for so many workers.

        Raises:
          ValueError: The settings do not fit together.
        """
        synchronization = self.synchronization.resolve(num_workers)
        correction = self.correction
        if correction is not None:
            correction = correction.resolve(synchronization, num_workers)
        local_steps = self.local_steps
        if local_steps is not None:
            local_steps = local_steps.resolve(
                synchronization, correction, num_workers
            )
        return dataclasses.replace(
            self,
            synchronization=synchronization,
            correction=correction,
            local_steps=local_steps,
        )

    @property
    def remembers_workers(self):
        """Whether servers keep something of each worker."""
        correction = self.correction
        return (
            correction is not None
            and correction.remembers_workers
            and not correction.on_worker
        )

    def server_optimizer(self, optimizer):
        """The optimizer whose updates servers make.

        Args:
          optimizer: That of the model.
        """
        if self.local_steps is None:
            return optimizer
        return self.local_steps.outer_optimizer()

    @property
    def copies_per_push(self):
        """How many times the parameters' bytes a push is."""
        correction = self.correction
        sends = correction is not None and correction.copies is Copies.WORKER
        return 2 if sends and not correction.on_worker else 1
