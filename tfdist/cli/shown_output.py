"""The output that `tfdist launch` shows: `--show` and `--verbose`.

The log files get every line. On the launcher's own output a task that
`--show` names has all of its lines but chatter; of all other tasks there are:

- tracebacks and fatal errors, whole;
- of standard error what is not marked as INFO or DEBUG, and no progress bars;
- of standard output what is marked as a warning or an error.

Once the launcher has told a task to end, its warnings are not shown either.
"""

from collections.abc import Mapping
from collections.abc import Sequence

from tfdist.cli import line_assembler
from tfdist.cli import log_levels
from tfdist.cli import usage
from tfdist.cli.local_cluster import LocalTask
from tfdist.cli.log_levels import Level


class LineFilter:
    """Filter of the lines of one task.

    Attributes:
        is_ending: whether the launcher has told the task to end.
    """

    def __init__(self, shows_all: bool, is_verbose: bool):
        """Prepares the filter.

        Args:
            shows_all: whether all lines of the task are shown, but chatter.
            is_verbose: whether chatter is shown as well.
        """
        self.is_ending = False
        self._shows_all = shows_all
        self._is_verbose = is_verbose

    def shows(self, line: bytes, *, is_error: bool, in_traceback: bool) -> bool:
        """Whether a line is shown.

        Args:
            line: the line.
            is_error: whether it comes from standard error.
            in_traceback: whether it is part of a traceback.
        """
        plain = line_assembler.without_escapes(line)
        if not self._is_verbose and log_levels.is_chatter(plain):
            return False
        if self._shows_all or in_traceback:
            return True
        level = log_levels.level_of(plain)
        if self.is_ending:
            return level == Level.ERROR
        if level is None:
            return is_error and not isinstance(line, line_assembler.Redrawn)
        return level >= Level.WARNING


def check(show: Sequence[str], counts: Mapping[str, int]) -> None:
    """Refuses what `--show` does not know.

    Args:
        show: its values.
        counts: job -> number of tasks.

    Raises:
        UsageError: if one of them is no task, `chief` or `all`.
    """
    tasks = {
        f"{job}:{k}" for job, number in counts.items() for k in range(number)
    }
    usage.check(
        tasks.issuperset(set(show) - {"all", "chief"}),
        "show",
        "be all, chief, or tasks of the cluster, as worker:1 or chief,ps:0",
        ",".join(show),
    )


def includes(show: Sequence[str], task: LocalTask, has_chief: bool) -> bool:
    """Whether `--show` means a task, in whatever group.

    Args:
        show: its values.
        task: the task.
        has_chief: whether there is a task `chief`; else worker 0 is the chief.
    """
    name = f"{task.job}:{task.index}"
    names = {"all", name}
    if name == ("chief:0" if has_chief else "worker:0"):
        names.add("chief")
    return not names.isdisjoint(show)
