"""Equality and text of objects that are nothing but their settings."""

import enum

import numpy as np


class Comparable:
    """A base of classes whose instances are equal if their settings are.

    So are their texts, which workers compare: all settings, and nothing of
    this process.
    """

    def __eq__(self, other):
        if type(self) is not type(other):
            return NotImplemented
        return vars(self) == vars(other)

    def __hash__(self):
        # Settings may be dicts, which have no hash.
        return hash(type(self))

    def __repr__(self):
        settings = ", ".join(
            f"{name.lstrip('_')}={_shown(value)}"
            for name, value in vars(self).items()
        )
        return f"{type(self).__name__}({settings})"


def _shown(value):
    """A setting as text, the same in every process."""
    if callable(value):
        return "a function"
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, float):
        # Keras's own settings are of float32.
        short = f"{value:g}"
        is_same = np.float32(short) == np.float32(value)
        return short if is_same else repr(value)
    config = value.get("config") if isinstance(value, dict) else None
    if isinstance(config, dict) and "class_name" in value:
        # An object of Keras's; a function has a name for a configuration.
        settings = ", ".join(
            f"{k}={_shown(v)}" for k, v in config.items() if v is not None
        )
        return f"{value['class_name']}({settings})"
    return repr(value)
