"""Records of one graph of a step that are not exchanged yet."""

import dataclasses

from tfdist import private_keras
from tfdist.runtime.variables.variables import Role


@dataclasses.dataclass
class Pending:
    """Records of one graph, and what an optimizer has yet to hand over."""

    records: list = dataclasses.field(default_factory=list)
    # Reduced gradients that the optimizer has not yet handed over.
    expected: int = 0
    optimizer: object = None
    # Ordinals of its averages of weights that it has not yet assigned after its
    # last update; None where nothing waits for them.
    averages: set | None = None
    # Number of operations when the optimizer's updates were exchanged, or all
    # were recorded.
    settled: int | None = None
    barriers: set = dataclasses.field(default_factory=set)
    # Number of operations when the step began.
    first: int = 0
    # By ordinal: number of operations when a parameter was assigned last.
    assigned: dict = dataclasses.field(default_factory=dict)

    @property
    def is_after_updates(self):
        """Whether something is recorded that follows an optimizer's updates."""
        return self.settled is not None and bool(self.records)


def averages_of(optimizer):
    """Ordinals of the averages on servers that follow the last update, a set.

    Not of an optimizer that accumulates gradients: it updates in a branch, and
    its averages come after that.
    """
    if optimizer is None or optimizer.gradient_accumulation_steps:
        return set()
    averages = [
        getattr(variable, "value", variable)
        for variable in private_keras.averages_of(optimizer)
    ]
    return {
        average.ordinal
        for average in averages
        if getattr(average, "role", None) is Role.SLOT
    }
