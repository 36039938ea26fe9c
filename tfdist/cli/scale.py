"""`tfdist scale`: more or fewer workers for a `tfdist launch` that runs."""

from collections.abc import Sequence

from absl import flags

from tfdist.cli import control_socket
from tfdist.cli import usage

USAGE = """\
Starts workers of a running `tfdist launch`, or tells some to leave.

Usage: tfdist scale --workers=N [--pid=PID]

Example: tfdist launch --num_workers=2 --max_workers=4 train.py &
         tfdist scale --workers=4

Workers leave from the highest number on. Each gets SIGTERM, finishes its
step and exits; after --leave_seconds of the launcher it is killed. The
training goes on, and ends when those that are there have finished. A launcher
without parameter servers refuses it.

The exit status is 0 when the launcher has been told, 2 for bad usage.
"""


def define_flags() -> flags.FlagValues:
    """Returns the flags of the sub-command, not parsed yet."""
    values = flags.FlagValues()
    define = usage.Definer(values, __name__)
    define.integer(
        "workers",
        None,
        "Workers that are to run, not counting the chief, as in "
        "`tfdist launch --num_workers`.",
    )
    define.integer(
        "pid",
        None,
        "The launcher's process id; not needed where one launcher runs.",
    )
    define.bool("help", False, "Show this.", short_name="h")
    return values


def main(argv: Sequence[str]) -> int:
    """Runs the sub-command.

    Args:
        argv: the arguments after `scale`.

    Returns:
        The exit status.

    Raises:
        UsageError: if the arguments are wrong, or the launcher refuses.
    """
    values = define_flags()
    rest = usage.parse(values, argv)
    if usage.shows_help(values, USAGE, __name__):
        return 0
    usage.refuse_arguments(rest)
    usage.check(
        values.workers is not None and values.workers >= 0,
        "workers",
        "be given, and at least 0",
        values.workers,
    )
    pid = control_socket.only_launcher(values.pid)
    try:
        print(control_socket.ask(pid, {"workers": values.workers}))
    except control_socket.RefusedError as error:
        raise usage.UsageError(str(error)) from error
    return 0
