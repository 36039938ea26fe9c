"""Flags of sub-commands: parsed, checked, and explained.

A sub-command has flags of its own, apart from the global `absl.flags.FLAGS`:
two sub-commands may use one name, and the flags after the script's name are
the script's.
"""

from collections.abc import Callable
from collections.abc import Sequence
import functools
from typing import Any

from absl import flags


class UsageError(ValueError):
    """The command line is wrong; the message says which flag, and how."""


class Definer:
    """Defines flags of a sub-command: `integer("pid", None, "...")`."""

    def __init__(self, flag_values: flags.FlagValues, module_name: str):
        """Prepares it.

        Args:
            flag_values: the sub-command's flags.
            module_name: of the module whose flags they are.
        """
        self._where = {"flag_values": flag_values, "module_name": module_name}

    def __getattr__(self, kind: str) -> Callable[..., Any]:
        return functools.partial(
            getattr(flags, f"DEFINE_{kind}"), **self._where
        )


def parse(flag_values: flags.FlagValues, argv: Sequence[str]) -> list[str]:
    """Parses the flags that stand before the first other argument.

    Args:
        flag_values: the sub-command's flags.
        argv: the arguments after the sub-command's name.

    Returns:
        The arguments from the first that is no flag.

    Raises:
        UsageError: if a flag is unknown or its value is not allowed.
    """
    flag_values.set_gnu_getopt(False)
    try:
        return flag_values(["tfdist", *argv])[1:]
    except flags.Error as error:
        raise UsageError(str(error)) from error


def shows_help(
    flag_values: flags.FlagValues, text: str, module_name: str
) -> bool:
    """Prints what a sub-command does and its flags, if that was asked for.

    Args:
        flag_values: the sub-command's flags, parsed, `help` among them.
        text: what it does.
        module_name: of the module whose flags they are.

    Returns:
        Whether it was.
    """
    if flag_values.help:
        listing = flag_values.module_help(module_name).partition(":")[2]
        print(f"{text}\nFlags:{listing}")
    return flag_values.help


def refuse_arguments(rest: Sequence[str]) -> None:
    """Refuses what stands beside the flags.

    Args:
        rest: the arguments that `parse` has left.

    Raises:
        UsageError: if there are any.
    """
    if rest:
        raise UsageError(
            f"There must be flags alone. Received: {' '.join(rest)}."
        )


def check(condition: bool, name: str, allowed: str, received: object) -> None:
    """Raises a `UsageError` that names the flag unless `condition` holds.

    Args:
        condition: whether the value is allowed.
        name: the flag's name, without dashes.
        allowed: what is allowed, as "be at least 0".
        received: the value.
    """
    if not condition:
        raise UsageError(
            f"Flag --{name} must {allowed}. Received: --{name}={received}."
        )
