"""Texts that name methods, such as `async:correction=dc_asgd(lambda_0=1)`.

METHOD  = NAME | NAME:SETTING:... | NAME(SETTING, ...)
SETTING = KEY=VALUE
VALUE   = number | true | false | none | text | NAME(SETTING, ...)
"""

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import re
from typing import Any
from typing import Union

Value = Union[int, float, bool, str, None, "Spec"]

_FORM = re.compile(r"\s*(\w+)\s*(?:\((.*)\)|:(.*))?\s*", re.DOTALL)
_WORDS = {"none": None, "true": True, "false": False}


@dataclasses.dataclass(frozen=True)
class Spec:
    """A name and its settings. `str` makes the text that `parse` reads."""

    name: str
    settings: Mapping[str, Value] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        return ":".join([self.name, *map(_shown, self.settings.items())])

    @property
    def nested(self) -> str:
        """The same as the value of a setting, NAME(SETTING, ...)."""
        return f"{self.name}({','.join(map(_shown, self.settings.items()))})"


def parse(text: str) -> Spec:
    """Returns what a text says, whether there is such a method or not.

    Args:
      text: See the top of this file.

    Raises:
      ValueError: It has another form.
    """
    form = _FORM.fullmatch(text)
    if form is None:
        raise ValueError(
            "A method must be a name with settings after colons, as in "
            "softsync:s=2 or async:correction=dc_asgd(lambda_0=1). Received: "
            f"{text!r}."
        )
    name, inner, after = form.groups()
    parts = []
    if after is not None:
        parts = split(after, ":", text)
    elif inner is not None and inner.strip():
        parts = split(inner, ",:", text)
    settings = {}
    for part in parts:
        key, equals, value = part.partition("=")
        key = key.strip()
        if not equals or not key.isidentifier() or key in settings:
            raise ValueError(
                f"A setting of {name} must be NAME=VALUE, and given once. "
                f"Received: {part!r} in {text!r}."
            )
        settings[key] = _value(value.strip())
    return Spec(name, settings)


def split(
    text: str, separators: str = ",", whole: str | None = None
) -> Sequence[str]:
    """Splits where a separator is outside of all parentheses.

    Args:
      text: The text.
      separators: Characters.
      whole: What it is a part of, for the message; default: `text`.

    Raises:
      ValueError: Parentheses do not match.
    """
    parts, depth = [""], 0
    for char in text:
        depth += (char == "(") - (char == ")")
        if depth < 0:
            break
        if char in separators and not depth:
            parts.append("")
        else:
            parts[-1] += char
    if depth:
        raise ValueError(
            "Each parenthesis of a method must be closed. Received: "
            f"{text if whole is None else whole!r}."
        )
    return parts


def _value(text: str) -> Value:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    if text.endswith(")"):
        return parse(text)
    return _WORDS.get(text.lower(), text)


def _shown(item: tuple[str, Any]) -> str:
    key, value = item
    if isinstance(value, Spec):
        return f"{key}={value.nested}"
    if value is None or isinstance(value, bool):
        return f"{key}={str(value).lower()}"
    return f"{key}={value}"
