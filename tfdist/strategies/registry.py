"""The one registry of methods: every name that a user can type.

The command line, the simulator, the advisor, the examples, the documents'
tables and the tests read it. It holds the methods of `catalogue` and those
that others `register`. Importing it imports no TensorFlow.
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import difflib
import importlib.metadata
import typing
from typing import Any

from absl import logging

from tfdist import method_text
from tfdist import user_modules
from tfdist.method_text import Spec
from tfdist.strategies import catalogue
from tfdist.strategies import entry as entry_lib
from tfdist.strategies.entry import Entry

if typing.TYPE_CHECKING:
    from tfdist.strategies.method import Method

ENTRY_POINTS = "tfdist.methods"
"""Group of the entry points of packages that register methods."""

_entries = {entry.name: entry for entry in catalogue.ENTRIES}
_installed_are_loaded = False


def register(
    name: str,
    factory: Callable[..., Any],
    *,
    axis: str | None = None,
    defaults: Mapping[str, Any] | None = None,
    paper: str = "",
    help: str = "",
    variants: Callable[[int], Sequence[Mapping[str, Any]]] | None = None,
) -> Entry:
    """Makes a method one that can be named wherever methods are.

    That is in `--strategy=name:setting=value` of the examples and of `tfdist
    simulate`, in `tfdist compare` and `advise`, and in `tfdist.simulation`.
    docs/new_method.md says what the classes have to do, and how commands find
    your module: `--method_module`, or an entry point of the group
    `tfdist.methods`.

    Args:
      name: Letters, digits and underscores.
      factory: A class derived from `tfdist.synchronization.Synchronization`,
        `tfdist.correction.Correction` or `tfdist.averaging.LocalSteps`, or a
        function that makes such an object. Each of its arguments is a setting
        and has a default.
      axis: "synchronization", "correction" or "local_steps". Of a class,
        what it derives from.
      defaults: Settings that hold unless others are given: of the factory,
        where its own are others, and of the other axes, as text:
        `{"synchronization": "sync"}`.
      paper: Authors and year.
      help: One line; default: the first of the factory's docstring.
      variants: Callable that is given the number of workers and returns the
        settings, a list of dicts, of which `advise` takes the fastest where
        none are given.

    Returns:
      The `Entry`.

    Raises:
      TypeError: An argument is of a wrong kind.
      ValueError: The name is taken, or an argument is not allowed.
    """
    if not callable(factory):
        raise TypeError(
            "Argument `factory` must be a class or a function. Received: "
            f"factory={factory!r}."
        )
    made = Entry(
        name,
        factory,
        entry_lib.axis_of(factory) if axis is None else axis,
        dict(defaults or {}),
        paper,
        help or (factory.__doc__ or "").strip().partition("\n")[0],
        variants=variants,
    )
    _check_defaults(made)
    taken = _entries.get(name)
    # A file may be loaded again, or under two names.
    if taken is not None and taken.source != made.source:
        raise ValueError(
            "Argument `name` must be one that is not taken. Received: "
            f"name={name!r}, which is {taken.place}."
        )
    _entries[name] = made
    return made


def names(axis: str | None = None) -> tuple[str, ...]:
    """Returns all names, in the order in which they were registered.

    Args:
      axis: Those of one of `AXES` alone, on servers; default: all.
    """
    _load_installed()
    return tuple(
        name
        for name, entry in _entries.items()
        if axis is None
        or axis == entry.axis
        and entry.communication == "parameter_server"
    )


def get(name: str) -> Entry:
    """Returns an entry.

    Raises:
      ValueError: There is none of that name.
    """
    if name not in _entries:
        _load_installed()
    if name not in _entries:
        raise ValueError(
            f"A method must be one of {', '.join(names())}, with settings "
            f"after colons (softsync:n=1). Received: {name!r}."
            f"{_nearest(name, names())}"
        )
    return _entries[name]


def split(texts: Sequence[str]) -> list[str]:
    """Joins what a flag's commas have split within parentheses.

    Args:
      texts: `["async:correction=dana(momentum=0", "variant=dc)"]` and so on.
    """
    joined = ",".join(texts)
    return method_text.split(joined) if texts else []


def variants(text: str, num_workers: int) -> list[str]:
    """Returns the texts of which the fastest is meant by one.

    Args:
      text: As for `method`.
      num_workers: Number of workers.

    Returns:
      Such texts; none where there is nothing to choose from with so few.
    """
    known = _entries.get(text)
    if known is None or known.variants is None:
        return [text]
    return [str(Spec(text, some)) for some in known.variants(num_workers)]


def describe() -> str:
    """Returns all names with a line of help each."""
    shown = (get(name) for name in names())
    return "\n".join(f"  {one.name:20} {one.help}" for one in shown)


def load(place: str) -> None:
    """Imports a module of the user's, which registers methods.

    Args:
      place: `FILE.py` or `package.module`.

    Raises:
      ImportError: There is no such module.
    """
    user_modules.load(place)


def method(text: str) -> "Method":
    """Returns the method that a text names.

    Args:
      text: A name, and settings after colons: `softsync:n=1`,
        `dana:variant=zero:momentum=0.9`, `easgd:synchronization=sync`,
        `async:correction=dc_asgd(lambda_0=1)`,
        `peer_to_peer:compression=threshold(tau=0.03)`.

    Raises:
      ValueError: There is no such method, or it has no such setting.
    """
    from tfdist.strategies.method import Method  # Imports TensorFlow.

    spec = method_text.parse(str(text))
    entry = get(spec.name)
    settings = {**entry.axes, **spec.settings}
    # Of updates between peers these are settings of the entry's own.
    peers = {
        key: settings.pop(key) for key in entry_lib.PEERS if key in settings
    }
    if peers.get("compression") is not None:
        peers["compression"] = str(peers["compression"])
    open_axes = [*entry.axes, "communication"]
    parts = {axis: settings.pop(axis) for axis in entry.axes}
    communication = settings.pop("communication", entry.communication)
    _check_keys(spec, [*entry.settings, *open_axes], text)
    try:
        made = {axis: _part(axis, value, text) for axis, value in parts.items()}
        made[entry.axis] = entry.make(**settings)
        if made["synchronization"] is None:
            del made["synchronization"]
        return Method(
            **made,
            name=str(text),
            communication=communication,
            **peers,
        )
    except TypeError as error:
        raise ValueError(f"{str(text)!r}: {error}") from error
    except ValueError as error:
        if str(text) in str(error):
            raise
        raise ValueError(f"{str(text)!r}: {error}") from error


def settings(text: str) -> dict[str, Any]:
    """Returns all settings of the method that a text names, with defaults.

    Args:
      text: As for `method`, which accepts it.

    Returns:
      A dict of names to numbers, texts and so on; without axes that are not
      used.
    """
    spec = method_text.parse(text)
    entry = get(spec.name)
    axes = {k: v for k, v in entry.axes.items() if v is not None}
    found = {**entry.settings, **axes, **spec.settings}
    return {
        key: value.nested if isinstance(value, Spec) else value
        for key, value in found.items()
    }


def _part(axis, value, text):
    """Returns the part of a method that a setting of an axis names."""
    if value is None:
        return None
    if axis == "local_steps" and type(value) is int:
        return value
    spec = value if isinstance(value, Spec) else Spec(str(value))
    if spec.name not in names(axis):
        raise ValueError(
            f"{axis} must be one of {', '.join(names(axis))}. Received: "
            f"{spec.name!r} in {text!r}.{_nearest(spec.name, names(axis))}"
        )
    entry = get(spec.name)
    _check_keys(spec, list(entry.settings), text)
    return entry.make(**spec.settings)


def _check_keys(spec, known, text):
    for key in spec.settings:
        if key not in known:
            raise ValueError(
                f"{spec.name} has the settings "
                f"{', '.join(f'{name}=' for name in known)}. Received: "
                f"{key!r} in {str(text)!r}.{_nearest(key, known)}"
            )


def _check_defaults(entry):
    """Refuses an entry whose name alone makes no method."""
    own = entry.settings
    for key in entry.defaults:
        if key not in own and key not in entry.axes:
            raise ValueError(
                "Argument `defaults` must have settings of the factory "
                f"({', '.join(own) or 'none'}) or of other axes "
                f"({', '.join(entry.axes)}). Received: {key!r}."
            )


def _nearest(name, known):
    """Returns the nearest known name, for the end of a message."""
    found = difflib.get_close_matches(name, known, 1)
    return f" Did you mean {found[0]!r}?" if found else ""


def _load_installed():
    """Has the packages that have methods register them."""
    global _installed_are_loaded
    if _installed_are_loaded:
        return
    _installed_are_loaded = True
    for point in importlib.metadata.entry_points(group=ENTRY_POINTS):
        try:
            point.load()
        except Exception as error:  # Whatever the package's code raises.
            logging.warning(
                "The methods of the entry point %s = %s are not there: %s: %s",
                point.name,
                point.value,
                type(error).__name__,
                error,
            )
