"""Sandblaster in the forms in which `simulate` and its like take it."""

import dataclasses
from typing import Any

from tfdist import checks
from tfdist import method_text

NAME = "sandblaster"


@dataclasses.dataclass(frozen=True)
class Sandblaster:
    """L-BFGS over all data in portions, as with `SandblasterStrategy`.

    Args:
      portions_per_worker: Portions of the data, times the number of workers.
      backup_after: Median durations of a portion after which a free worker
        computes it as well; `math.inf` (in texts `inf`) for never.

    Raises:
      ValueError: An argument is not allowed.
    """

    portions_per_worker: int = 8
    backup_after: float = 2.0

    def __post_init__(self):
        portions = checks.count("portions_per_worker", self.portions_per_worker)
        object.__setattr__(self, "portions_per_worker", portions)
        after = self.backup_after
        if not checks.is_number(after) or not after > 1:
            raise ValueError(
                checks.refusal("backup_after", "a number above 1", after)
            )

    @property
    def name(self) -> str:
        """Its text, with the settings that are not the defaults."""
        settings = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if getattr(self, field.name) != field.default
        }
        return str(method_text.Spec(NAME, settings))


def of(strategy: Any) -> Sandblaster | None:
    """Returns the `Sandblaster` that is meant, None if it is another method.

    Args:
      strategy: As for `simulate`.

    Raises:
      ValueError: It is a text with a setting that there is not.
    """
    if isinstance(strategy, Sandblaster):
        return strategy
    if not isinstance(strategy, str):
        return None
    spec = method_text.parse(strategy)
    if spec.name != NAME:
        return None
    known = [field.name for field in dataclasses.fields(Sandblaster)]
    for key in spec.settings:
        if key not in known:
            raise ValueError(
                f"{NAME} has the settings "
                f"{', '.join(f'{name}=' for name in known)}. Received: "
                f"{key!r} in {strategy!r}. L-BFGS itself is set by the "
                "optimizer that the model is compiled with."
            )
    return Sandblaster(**spec.settings)
