"""Number of tasks that one launcher can hold."""

from collections.abc import Mapping
import resource

from tfdist.cli import usage

# A socket for the port, two pipes and a file.
_FILES_PER_TASK = 4
_OTHER_FILES = 50
# The system's bound of one variable of the environment (MAX_ARG_STRLEN), and
# what an address takes of it in TF_CONFIG.
_VARIABLE_BYTES = 131072
_ADDRESS_BYTES = 19


def check(counts: Mapping[str, int], num_groups: int) -> None:
    """Refuses more tasks than the system lets one process look after.

    Args:
        counts: job -> number of tasks of a cluster.
        num_groups: the number of such clusters.

    Raises:
        UsageError: with the bound.
    """
    tasks = sum(counts.values())
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files != resource.RLIM_INFINITY:
        _check(
            tasks * num_groups,
            (files - _OTHER_FILES) // _FILES_PER_TASK,
            f"each takes {_FILES_PER_TASK} of the {files} files that a process "
            "may have open here (ulimit -n)",
        )
    addresses = tasks + num_groups * counts["ps"] * (num_groups > 1)
    _check(
        addresses,
        _VARIABLE_BYTES // _ADDRESS_BYTES - _OTHER_FILES,
        "TF_CONFIG, one variable of the environment, lists them all",
    )


def _check(number: int, most: int, why: str) -> None:
    if number > most:
        raise usage.UsageError(
            f"There must be at most {most} tasks on one machine: {why}. "
            f"Received: {number}, by --num_workers, --num_ps and --num_groups."
        )
