"""Refusals of a cluster's description: what, what came, what may.

This module does not import TensorFlow.
"""

from collections.abc import Mapping
from collections.abc import Sequence
import difflib
from typing import Any


class ClusterConfigError(ValueError):
    """The description of the cluster is malformed; the message says where."""


def refusal(name: str, allowed: str, received: Any) -> ClusterConfigError:
    """Returns an error that says what is wrong.

    Args:
        name: what the user calls the part.
        allowed: what is allowed, as "be an integer from 0".
        received: what came.
    """
    return ClusterConfigError(
        f"{name} must {allowed}. Received: {shown(received)} (of type "
        f"{type(received).__name__})."
    )


def shown(value: Any, limit: int = 200) -> str:
    """Returns a `repr` of a length that fits a message."""
    try:
        text = repr(value)
    except ValueError:  # An integer of more digits than Python prints.
        text = "<an integer of thousands of digits>"
    return text if len(text) <= limit else f"{text[:limit]}..."


def refuse_misspelt_keys(
    name: str,
    given: Mapping[str, Any],
    known: Sequence[str],
    watched: Sequence[str],
) -> None:
    """Refuses unknown keys that look like a known one that is missing.

    Args:
        name: what the user calls the object.
        given: the object.
        known: the keys that are read.
        watched: those of them that others are compared with.

    Raises:
        ClusterConfigError: if there is such a key.
    """
    for key in given:
        if key in known:
            continue
        near = difflib.get_close_matches(key.lower(), watched, n=1, cutoff=0.7)
        if near and near[0] not in given:
            raise ClusterConfigError(
                f'{name}["{key}"] looks like a misspelt "{near[0]}". '
                f"Received: keys {shown(list(given))}. Allowed: "
                f"{', '.join(known)}; other keys are ignored."
            )
