"""Old spellings of public names, which work for one release and warn."""

import itertools
import os
import pathlib
import traceback
from typing import Any
import warnings

# A class statement calls Python's own `abc` before it calls this package.
_NOT_THE_USERS = (f"{pathlib.Path(__file__).parent}{os.sep}", "<frozen ")


def warn(message: str) -> None:
    """Warns at the user's line, which is the one to be changed."""
    files = [call.filename for call in reversed(traceback.extract_stack())]
    own = itertools.takewhile(lambda f: f.startswith(_NOT_THE_USERS), files)
    warnings.warn(message, DeprecationWarning, stacklevel=1 + len(list(own)))


def warn_of_rename(old: str, new: str) -> None:
    """Warns that what is written `old` is written `new` now."""
    warn(f"`{old}` will go with the next release: write `{new}`.")


def renamed_argument(
    arguments: dict[str, Any],
    old: str,
    new: str,
    value: str,
    values: dict[str, str],
) -> str:
    """Takes an argument under its old name out of the arguments of a call.

    Args:
      arguments: Keyword arguments; `old` is removed.
      old: The argument's old name.
      new: Its new one.
      value: What it is under that one.
      values: Old value -> new value.

    Returns:
      The value.
    """
    if old not in arguments:
        return value
    value = arguments.pop(old)
    meant = values.get(value, value)
    warn_of_rename(f"{old}={value!r}", f"{new}={meant!r}")
    return meant


class OldName:
    """An attribute, property or method of a class under its old name.

    ```python
    settle = deprecated.OldName("barrier")
    ```

    Args:
      new: Its new name.
    """

    def __init__(self, new: str):
        self._new = new

    def __set_name__(self, owner: type, name: str):
        self._old = name

    def __get__(self, instance: Any, owner: type) -> Any:
        warn_of_rename(self._old, self._new)
        return getattr(owner if instance is None else instance, self._new)

    def __set__(self, instance: Any, value: Any):
        warn_of_rename(self._old, self._new)
        setattr(instance, self._new, value)

    def move(self, cls: type) -> None:
        """Gives a class that defines the old name the new one instead."""
        if self._old in vars(cls):
            warn_of_rename(self._old, self._new)
            setattr(cls, self._new, vars(cls)[self._old])
            delattr(cls, self._old)
