"""The parts of a model, by the names that a user gives them."""

import dataclasses
import difflib
import fnmatch

import keras

from tfdist import private_keras


@dataclasses.dataclass(frozen=True)
class Part:
    """A layer, or an operation of a functional graph, in a model.

    Attributes:
      name: Its own name.
      path: Names from the model down to it, joined by "/", without the
        model's own; "" is the model itself.
      layer: The `keras.Layer` or `keras.Operation`.
      parent: The path of what it is a part of; None for the model.
    """

    name: str
    path: str
    layer: object
    parent: str | None


def device_of(layer):
    """The device that a layer was placed on, None if on none of its own."""
    return getattr(layer, "_tfdist_device", None)


def parts(model):
    """All parts of a model, each before what it is made of.

    Args:
      model: A `keras.Model`: sequential, functional or subclassed.

    Returns:
      A list of `Part`. What is used in several places (a shared layer) is
      listed once, where it is met first.
    """
    found, seen = [], set()

    def visit(layer, path, parent):
        if id(layer) in seen or isinstance(layer, keras.layers.InputLayer):
            return
        seen.add(id(layer))
        found.append(Part(layer.name, path, layer, parent))
        for child in children(layer):
            below = f"{path}/{child.name}" if path else child.name
            visit(child, below, path)

    visit(model, "", None)
    return found


def children(layer):
    """The layers, and operations, that a layer is directly made of."""
    if not isinstance(layer, keras.Layer):
        return []
    children = list(private_keras.sublayers(layer))
    if isinstance(layer, keras.Model):
        # `x + y` in a functional model is an operation and no layer.
        children += [
            operation
            for operation in getattr(layer, "operations", ())
            if not isinstance(operation, keras.Layer)
        ]
    return [child for child in children if not _is_no_part(child)]


def _is_no_part(layer):
    return isinstance(layer, keras.metrics.Metric)


def choose(model_parts, rules):
    """Rule that holds for each part.

    Args:
      model_parts: What `parts` gave.
      rules: A dict from a path, a name or a pattern of either ("encoder*",
        "*/attention"; "" or the model's name for the model itself) to
        anything. A path beats an equal name further down, either beats a
        pattern, and a later pattern an earlier one. What a part is made of
        goes with it, unless a rule of the same or of a higher rank names it.

    Returns:
      A dict from path to the value of the rule that holds, for the parts that
      a rule names and what they are made of.

    Raises:
      ValueError: A rule that names nothing.
    """
    named = {}  # Path -> (rank, value).
    for pattern, value in rules.items():
        if not isinstance(pattern, str):
            raise ValueError(
                "Argument `placement` must name layers by strings. Received: "
                f"{pattern!r} of type {type(pattern).__name__}"
            )
        rank, matching = _matching(pattern, model_parts)
        if not matching:
            raise ValueError(_nothing(pattern, model_parts))
        for part in matching:
            if rank >= named.get(part.path, (0, None))[0]:
                named[part.path] = rank, value
    holds = {}
    for part in model_parts:
        inherited = holds.get(part.parent)
        own = named.get(part.path)
        if own is None or (inherited and inherited[0] > own[0]):
            own = inherited
        if own is not None:
            holds[part.path] = own
    return {path: value for path, (_, value) in holds.items()}


def _matching(pattern, model_parts):
    """(rank, parts) that a rule names."""
    for attribute in ("path", "name"):
        exact = [p for p in model_parts if getattr(p, attribute) == pattern]
        if exact:
            return 2, exact
    return 1, [
        part
        for part in model_parts
        if part.path
        and (
            fnmatch.fnmatchcase(part.path, pattern)
            or fnmatch.fnmatchcase(part.name, pattern)
        )
    ]


def _nothing(pattern, model_parts):
    names = [part.path for part in model_parts if part.path]
    close = difflib.get_close_matches(pattern, names, n=3)
    hint = f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
    shown = ", ".join(names[:40]) + (", ..." if len(names) > 40 else "")
    return (
        f"placement names {pattern!r}, and no layer has such a name or path."
        f"{hint} There are: {shown or 'none (is the model built?)'}."
    )
