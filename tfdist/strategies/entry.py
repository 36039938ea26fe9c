"""An entry of the registry: a name that a user can type, and what it is."""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import importlib
import inspect
import re
import sys
from typing import Any

# Settings of updates between peers: name -> default.
PEERS = {"compression": None, "warmup_peers": None, "warmup_updates": 100}

AXES = {
    "synchronization": "tfdist.synchronization:Synchronization",
    "correction": "tfdist.correction:Correction",
    "local_steps": "tfdist.averaging:LocalSteps",
}
"""Axis of a method -> base class of its values."""

_NAME = re.compile(r"[A-Za-z]\w*")
_VALUES = ("none", "true", "false")


@dataclasses.dataclass(frozen=True)
class Entry:
    """One name of the registry. Making one imports no TensorFlow.

    Attributes:
      name: What a user types.
      factory: A class, or function, whose call with settings by name makes
        the object; or where it is, "package.module:name", which is imported
        at its first use.
      axis: One of `AXES`, the kind of the object.
      defaults: Settings that hold unless others are given: of the factory,
        where its own are others, and of the other axes, as text.
      paper: Authors and year.
      help: One line.
      preset: The class of `tfdist` that is this method, or "".
      variants: Callable that is given the number of workers and returns the
        settings, a list of dicts, of which `advise` takes the fastest where
        none are given. Default: the defaults alone.
      communication: As of `Method`; another one than "parameter_server" makes
        it a method of its own, and no value of its axis.
    """

    name: str
    factory: Callable[..., Any] | str
    axis: str
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    paper: str = ""
    help: str = ""
    preset: str = ""
    variants: Callable[[int], Sequence[Mapping[str, Any]]] | None = None
    communication: str = "parameter_server"

    def __post_init__(self):
        name = self.name
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ValueError(
                "Argument `name` must be letters, digits and underscores, a "
                f"letter first. Received: name={name!r}."
            )
        if name.lower() in _VALUES:
            raise ValueError(
                f"Argument `name` must not be one of {', '.join(_VALUES)}. "
                f"Received: name={name!r}."
            )
        if self.axis not in AXES:
            raise ValueError(
                f"Argument `axis` must be one of {', '.join(AXES)}. Received: "
                f"axis={self.axis!r}."
            )

    @property
    def place(self) -> str:
        """Place of the factory, "package.module:name"."""
        if isinstance(self.factory, str):
            return self.factory
        name = getattr(self.factory, "__qualname__", repr(self.factory))
        return f"{getattr(self.factory, '__module__', '?')}:{name}"

    @property
    def source(self) -> tuple[str | None, str]:
        """File and name of the factory, whatever its module is called."""
        module, _, name = self.place.partition(":")
        return getattr(sys.modules.get(module), "__file__", module), name

    @property
    def settings(self) -> dict[str, Any]:
        """The settings: name -> default.

        Raises:
          TypeError: One of the factory's has no default.
        """
        if self.communication == "peers":
            return {**self._of_factory, **PEERS}
        return self._of_factory

    @property
    def _of_factory(self):
        found = {}
        signature = inspect.signature(self._callable())
        for name, parameter in signature.parameters.items():
            if parameter.kind in (
                parameter.VAR_POSITIONAL,
                parameter.VAR_KEYWORD,
            ):
                continue
            found[name] = self.defaults.get(name, parameter.default)
            if found[name] is parameter.empty:
                raise TypeError(
                    f"Argument `factory` of the method {self.name!r} must have "
                    f"a default for each setting, in its signature or in "
                    f"`defaults`. Received: {self.place} with {name!r}, "
                    "which has none."
                )
        return found

    @property
    def axes(self) -> dict[str, Any]:
        """The other axes of a method of this name: axis -> default."""
        return {
            axis: self.defaults.get(axis) for axis in AXES if axis != self.axis
        }

    def make(self, **settings: Any) -> Any:
        """Makes the object.

        Args:
          **settings: Those of the factory that are not the defaults.

        Raises:
          TypeError: The factory makes something else.
        """
        made = self._callable()(**{**self._of_factory, **settings})
        if not isinstance(made, _load(AXES[self.axis])):
            raise TypeError(
                f"Argument `factory` of the method {self.name!r} must make a "
                f"{AXES[self.axis].replace(':', '.')}. Received: {self.place}, "
                f"which has made {made!r}."
            )
        return made

    def _callable(self):
        if isinstance(self.factory, str):
            return _load(self.factory)
        return self.factory


def axis_of(factory: Callable[..., Any]) -> str:
    """Returns the axis that a class derives from.

    Args:
      factory: The class.

    Raises:
      TypeError: It is no class, or derives from none of them.
    """
    bases = {axis: _load(place) for axis, place in AXES.items()}
    for axis, base in bases.items():
        if isinstance(factory, type) and issubclass(factory, base):
            return axis
    raise TypeError(
        "Argument `axis` must be given where `factory` is not a class derived "
        f"from {', '.join(base.__name__ for base in bases.values())}. "
        f"Received: factory={factory!r}."
    )


def _load(place):
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)
