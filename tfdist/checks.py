"""Refuses arguments by name, with what was received and what is allowed."""

import math
import numbers
import os


def is_number(value):
    """Whether a value is a real number, and no bool."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def is_count(value, least):
    """Whether a value is an integer of at least `least`, and no bool."""
    return (
        isinstance(value, numbers.Integral)
        and not isinstance(value, bool)
        and value >= least
    )


def refusal(name, allowed, value):
    """Returns the text of an error about an argument.

    Args:
      name: Name of the argument; of a class's as `Gamma: shape`.
      allowed: What it must be, such as "a number above 0".
      value: What was received.
    """
    owner, _, name = name.rpartition(": ")
    of = f" of {owner}" if owner else ""
    received = f"{name}={value!r}"
    return f"Argument `{name}`{of} must be {allowed}. Received: {received}"


def count(name, value, least=1):
    """Refuses what is not an integer of at least `least`; returns an int.

    Args:
      name: See `refusal`.
      value: What was received.
      least: int.

    Raises:
      ValueError: It is refused.
    """
    if not is_count(value, least):
        raise ValueError(
            refusal(name, f"an integer of at least {least}", value)
        )
    return int(value)


def number(name, value, is_good, allowed):
    """Refuses what is not a finite number for which `is_good` holds.

    Args:
      name: See `refusal`.
      value: What was received.
      is_good: Callable of a float.
      allowed: What that says in words, such as "above 0".

    Returns:
      `value` as a float.

    Raises:
      ValueError: It is refused.
    """
    if not is_number(value) or not math.isfinite(value) or not is_good(value):
        raise ValueError(refusal(name, f"a finite number {allowed}", value))
    return float(value)


def positive(name, value):
    """Refuses what is not a finite number above 0; returns a float."""
    return number(name, value, lambda x: x > 0, "above 0")


def not_negative(name, value):
    """Refuses what is not a finite number of at least 0; returns a float."""
    return number(name, value, lambda x: x >= 0, "of at least 0")


def in_range(name, value, *, below=math.inf, positive=False):
    """Refuses what is not a number of `[0, below)`; returns a float.

    Args:
      name: See `refusal`.
      value: What was received.
      below: Numbers have to be smaller.
      positive: Whether 0 is refused.

    Raises:
      ValueError: It is refused.
    """
    if not is_number(value) or not 0 <= value < below or positive and not value:
        least = "greater than 0" if positive else "of at least 0"
        bound = "finite" if below == math.inf else f"less than {below:g}"
        raise ValueError(refusal(name, f"a number {least} and {bound}", value))
    return float(value)


def flag(name, value):
    """Refuses what is neither True nor False, NumPy's included; returns a bool.

    Args:
      name: See `refusal`.
      value: What was received.

    Raises:
      ValueError: It is refused.
    """
    # NumPy is not imported: the launcher starts without it.
    is_numpys = str(getattr(value, "dtype", "")) == "bool" and not value.shape
    if not (isinstance(value, bool) or is_numpys):
        raise ValueError(refusal(name, "True or False", value))
    return bool(value)


def path(name, value):
    """Refuses what is no path; returns it as it is.

    Args:
      name: See `refusal`.
      value: What was received.

    Raises:
      ValueError: It is neither a text nor an `os.PathLike`, or is empty.
    """
    if not isinstance(value, str | os.PathLike) or not os.fspath(value):
        raise ValueError(refusal(name, "a path", value))
    return value


def one_of(name, value, allowed):
    """Refuses what is none of the texts that are allowed.

    Args:
      name: See `refusal`.
      value: What was received.
      allowed: Several texts.

    Raises:
      ValueError: It is refused.
    """
    if value not in allowed:
        raise ValueError(refusal(name, f"one of {', '.join(allowed)}", value))


def kind(name, value, of, default=None):
    """Refuses what is not of a class of `tfdist.simulation`.

    Args:
      name: See `refusal`.
      value: What was received; None for the default.
      of: The class.
      default: What None means.

    Returns:
      `value`, or the default.

    Raises:
      TypeError: It is refused.
    """
    if value is None:
        return default
    if not isinstance(value, of):
        raise TypeError(
            refusal(name, f"a tfdist.simulation.{of.__name__}", value)
        )
    return value


def several(name, values, of):
    """Refuses what is not several of a class; returns a list.

    Args:
      name: See `refusal`.
      values: What was received.
      of: The class.

    Raises:
      TypeError: It is refused.
    """
    try:
        found = list(values)
    except TypeError:
        found = [None]
    if not all(isinstance(value, of) for value in found):
        raise TypeError(
            refusal(name, f"several tfdist.simulation.{of.__name__}", values)
        )
    return found
