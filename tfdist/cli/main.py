"""The command `tfdist`: finds the sub-command and hands it its arguments.

It imports a sub-command only to run it, so that hardly anything happens
before Ctrl-C ends the program as it should.
"""

from collections.abc import Sequence
import importlib
import os
import select
import signal
import sys

from tfdist.version import __version__

COMMANDS: dict[str, str] = {
    "advise": "predict what each method would give a cluster",
    "launch": "run a cluster of processes on this machine",
    "doctor": "check a cluster before a run, or beside one",
    "top": "show the workers of a running cluster",
    "scale": "add workers to a launched cluster, or remove some",
    "simulate": "train on a virtual cluster, in virtual time",
    "compare": "simulate several methods, and judge them",
}
"""Name -> one-line summary. `main` of `tfdist.cli.NAME` runs it."""

_STREAMS = {"stdin": "r", "stdout": "w", "stderr": "w"}
_HELP = ("help", "-h", "-help", "--help", "--helpfull")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one sub-command.

    Args:
        argv: the arguments after the program's name; `None` for those of
            the process.

    Returns:
        The exit status: that of the sub-command, 2 for bad usage, 130 after
        Ctrl-C, 141 where nobody reads the output.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    _open_missing_streams()
    try:
        status = _run(argv)
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("tfdist: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT
    except BrokenPipeError:
        if not _nobody_reads():
            raise
        # What is left to be written would fail once more at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 128 + signal.SIGPIPE
    return status


def _open_missing_streams() -> None:
    """Opens the null device for streams that are closed, as after `>&-`.

    The next file or socket would get the stream's number, and its lines.
    """
    for number, (name, mode) in enumerate(_STREAMS.items()):
        try:
            os.fstat(number)
        except OSError:
            # It gets the lowest free number, which is this one.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, closefd=False))


def _run(argv: Sequence[str]) -> int:
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
    usage = importlib.import_module("tfdist.cli.usage")
    command = importlib.import_module(f"tfdist.cli.{name}")
    try:
        return command.main(argv[1:])
    except usage.UsageError as error:
        print(
            f"tfdist {name}: error: {error}\n"
            f"`tfdist {name} --help` lists the flags.",
            file=sys.stderr,
        )
        return 2


def _nobody_reads() -> bool:
    """Whether standard output is a pipe that nobody reads any more."""
    poll = select.poll()
    poll.register(1, select.POLLOUT)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _overview() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:{width}}  {text}" for name, text in COMMANDS.items()]
    return (
        "Usage: tfdist COMMAND [FLAGS...]\n\nCommands:\n"
        + "\n".join(lines)
        + "\n\n`tfdist COMMAND --help` describes one."
    )
