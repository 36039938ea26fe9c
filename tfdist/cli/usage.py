"""Flags of sub-commands: parsed, checked, and explained.

A sub-command has flags of its own, apart from the global `absl.flags.FLAGS`:
two sub-commands may use one name, and the flags after the script's name are
the script's.
"""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Sequence
import functools
import math
import pathlib
import re
import tempfile
import textwrap
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
        print(f"{text}\nFlags:\n{listing(flag_values, module_name)}")
    return flag_values.help


def listing(
    flag_values: flags.FlagValues,
    module_name: str,
    hidden: Collection[str] = (),
) -> str:
    """Returns the help of a module's flags, by name, each with its default.

    The default is that of this command, unless the help says it in words:
    "Default: measured."

    Args:
        flag_values: the sub-command's flags.
        module_name: of the module whose flags they are.
        hidden: names of flags to leave out.
    """
    shown = flag_values.flags_by_module_dict().get(module_name, [])
    texts = [
        textwrap.fill(
            f"{_names(flag)}: {_explained(flag)}",
            79,
            initial_indent="  ",
            subsequent_indent="      ",
            break_on_hyphens=False,
        )
        for flag in sorted(shown, key=lambda flag: flag.name)
        if flag.name not in hidden
    ]
    return "\n".join(texts)


def _names(flag: flags.Flag) -> str:
    name = f"--[no]{flag.name}" if flag.boolean else f"--{flag.name}"
    return f"-{flag.short_name}, {name}" if flag.short_name else name


def _explained(flag: flags.Flag) -> str:
    # absl's own ending of flags that may be repeated.
    text = re.sub(r";\s*repeat this option.*$", "", flag.help, flags=re.DOTALL)
    default = flag.default
    if re.search(r"\bdefault:", text, re.IGNORECASE):
        return text
    if default in (None, False, "", []):
        # Zero equals False.
        if default is False or default != 0:
            return text
    if isinstance(default, list):
        default = ",".join(map(str, default))
    elif isinstance(default, bool):
        default = str(default).lower()
    elif isinstance(default, float):
        default = f"{default:g}"
    return f"{text} Default: {default}."


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


def check_positive(flag_values: flags.FlagValues, *names: str) -> None:
    """Raises a `UsageError` unless these flags are finite and above 0.

    Args:
        flag_values: the sub-command's flags, parsed.
        *names: of the flags, without dashes.
    """
    for name in names:
        value = flag_values[name].value
        good = math.isfinite(value) and value > 0
        check(good, name, "be above 0", value)


def make_directory(name: str, received: str) -> pathlib.Path:
    """Makes the directory of a flag, in which files can then be made.

    Args:
        name: the flag's name, without dashes.
        received: its value.

    Returns:
        The directory.

    Raises:
        UsageError: if there cannot be such a directory.
    """
    path = pathlib.Path(received)
    try:
        path.mkdir(parents=True, exist_ok=True)
        # Else this would be found out when a run is over, and its results lost.
        with tempfile.NamedTemporaryFile(dir=path):
            pass
    except OSError as error:
        raise UsageError(
            f"Flag --{name} must be a directory that exists or can be made, "
            f"and where files can be made. Received: --{name}={received}: "
            f"{error.strerror}."
        ) from error
    return path
