"""The command `tfdist`: finds the sub-command and hands it its arguments."""

from collections.abc import Callable
from collections.abc import Sequence
import sys

from tfdist.cli import advise
from tfdist.cli import compare
from tfdist.cli import doctor
from tfdist.cli import launch
from tfdist.cli import scale
from tfdist.cli import simulate
from tfdist.cli.usage import UsageError
from tfdist.version import __version__

COMMANDS: dict[str, tuple[Callable[[Sequence[str]], int], str]] = {
    "advise": (advise.main, "predict what each method would give a cluster"),
    "launch": (launch.main, "run a cluster of processes on this machine"),
    "doctor": (doctor.main, "check a cluster before a run, or beside one"),
    "scale": (scale.main, "add workers to a launched cluster, or remove some"),
    "simulate": (simulate.main, "train on a virtual cluster, in virtual time"),
    "compare": (compare.main, "simulate several methods, and judge them"),
}
"""Name -> (function of the arguments after the name, one-line summary)."""

_HELP = ("help", "-h", "-help", "--help", "--helpfull")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one sub-command.

    Args:
        argv: the arguments after the program's name; `None` for those of
            the process.

    Returns:
        The exit status: that of the sub-command, 2 for bad usage.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    if argv and argv[0] in _HELP:
        print(_overview())
        return 0
    if argv and argv[0] == "--version":
        print(f"tfdist {__version__}")
        return 0
    if not argv or argv[0] not in COMMANDS:
        received = repr(argv[0]) if argv else "no argument"
        print(
            "tfdist: error: the first argument must be a command. Received: "
            f"{received}.\n\n{_overview()}",
            file=sys.stderr,
        )
        return 2
    name = argv[0]
    try:
        return COMMANDS[name][0](argv[1:])
    except UsageError as error:
        print(
            f"tfdist {name}: error: {error}\n"
            f"`tfdist {name} --help` lists the flags.",
            file=sys.stderr,
        )
        return 2


def _overview() -> str:
    width = max(map(len, COMMANDS))
    lines = [
        f"  {name:{width}}  {summary}"
        for name, (_, summary) in COMMANDS.items()
    ]
    return (
        "Usage: tfdist COMMAND [FLAGS...]\n\nCommands:\n"
        + "\n".join(lines)
        + "\n\n`tfdist COMMAND --help` describes one."
    )
