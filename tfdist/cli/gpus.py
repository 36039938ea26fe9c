"""Division of a machine's GPUs among the tasks that are started on it."""

from collections.abc import Mapping
from collections.abc import Sequence
import itertools
import pathlib

from tfdist.cli.local_cluster import LocalTask
from tfdist.cli.run_report import RunReport

VARIABLE = "CUDA_VISIBLE_DEVICES"
VARIABLES = (VARIABLE, "HIP_VISIBLE_DEVICES")
"""What hides GPUs from a process, by CUDA and by ROCm."""
# Jobs that compute. The first ones get GPUs of their own where there are few:
# the evaluator before workers that may start later, since it is certain to.
_JOBS = ("chief", "evaluator", "worker", "helper")


def environments(
    environ: Mapping[str, str],
    extra: Mapping[str, str],
    tasks: Sequence[LocalTask],
    num_workers: int,
    report: RunReport,
) -> dict[str, dict[str, str]]:
    """Returns, by label of a task, what its environment says of GPUs.

    Args:
        environ: of the launcher.
        extra: what the user adds to it for all tasks.
        tasks: of all clusters on this machine.
        num_workers: how many workers of each cluster start at first.
        report: who is told which tasks have which GPUs.
    """
    result: dict[str, dict[str, str]] = {}
    found = visible(environ)
    if found and VARIABLE not in extra:
        of_tasks = shares(tasks, found, num_workers)
        report.say(_described(of_tasks))
        result = {
            label: {VARIABLE: ",".join(names)}
            for label, names in of_tasks.items()
        }
    # Not left to `tfdist.cluster.gpus`: a script may use TensorFlow before it
    # makes its strategy.
    hidden = {name: "" for name in VARIABLES if name not in extra}
    return result | {task.label: hidden for task in tasks if task.job == "ps"}


def visible(
    environ: Mapping[str, str], root: pathlib.Path = pathlib.Path("/")
) -> list[str]:
    """Returns what CUDA calls the GPUs that processes started here would see.

    Asking CUDA itself would take importing TensorFlow.

    Args:
        environ: of those processes.
        root: of the file system.
    """
    # In a container only its own are in /dev; the driver makes them when the
    # first process asks for a GPU.
    in_use = len(list((root / "dev").glob("nvidia[0-9]*")))
    known = len(list((root / "proc/driver/nvidia/gpus").glob("*")))
    if VARIABLE not in environ:
        return [str(number) for number in range(in_use or known)]
    names = [name.strip() for name in environ[VARIABLE].split(",")]
    number = max(in_use, known)
    # CUDA ends at the first that it does not have.
    return list(itertools.takewhile(lambda name: _is_gpu(name, number), names))


def _is_gpu(name: str, number: int) -> bool:
    """Whether CUDA has a GPU of this name among `number`; 0: unknown."""
    if name.isdecimal():
        return not number or int(name) < number
    return name.startswith(("GPU-", "MIG-"))


def shares(
    tasks: Sequence[LocalTask], gpus: Sequence[str], num_workers: int
) -> dict[str, list[str]]:
    """Returns the GPUs of each task, by its label.

    Each task that computes has as many, since all run the same program: as
    many as there are for each of those that train at first, and one at least.
    The tasks take them in turn. Thus the evaluator, and workers who may start
    later, have what is left, or share. Parameter servers have none.

    Args:
        tasks: of all clusters on this machine.
        gpus: from `visible`.
        num_workers: how many workers of each cluster start at first.
    """

    def comes_later(task: LocalTask) -> bool:
        if task.job == "worker":
            return task.index >= num_workers
        return task.job == "evaluator"

    computing = sorted(
        (task for task in tasks if task.job in _JOBS),
        key=lambda task: (comes_later(task), _JOBS.index(task.job)),
    )
    first = sum(not comes_later(task) for task in computing)
    each = max(len(gpus) // max(first, 1), 1)
    turns = itertools.cycle(gpus)
    result: dict[str, list[str]] = {task.label: [] for task in tasks}
    for task in computing:
        result[task.label] = list(itertools.islice(turns, each))
    return result


def _described(of_tasks: Mapping[str, Sequence[str]]) -> str:
    """Returns a line that says which tasks have which GPUs."""
    parts = [
        f"{label}: {', '.join(gpus)}"
        for label, gpus in of_tasks.items()
        if gpus
    ]
    return (
        f"GPUs ({VARIABLE}) of {'; '.join(parts)}; of other tasks, none. "
        f"--env={VARIABLE}=... gives all tasks the same, servers too."
    )
