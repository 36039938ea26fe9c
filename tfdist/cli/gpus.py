"""Division of a machine's GPUs among the tasks that are started on it."""

from collections.abc import Mapping
from collections.abc import Sequence
import pathlib

from tfdist.cli.local_cluster import LocalTask

VARIABLE = "CUDA_VISIBLE_DEVICES"
# Jobs that compute. The first ones get GPUs of their own where there are few.
_JOBS = ("chief", "worker", "helper", "evaluator")


def visible(
    environ: Mapping[str, str], root: pathlib.Path = pathlib.Path("/")
) -> list[str]:
    """Returns what CUDA calls the GPUs that processes started here would see.

    Asking CUDA itself would take importing TensorFlow.

    Args:
        environ: of those processes.
        root: of the file system.
    """
    if VARIABLE in environ:
        names = [name.strip() for name in environ[VARIABLE].split(",")]
        # CUDA ends at the first that it does not have.
        end = names.index("-1") if "-1" in names else len(names)
        return [name for name in names[:end] if name]
    # In a container only its own are there; the driver makes them when the
    # first process asks for a GPU.
    found = list((root / "dev").glob("nvidia[0-9]*"))
    found = found or list((root / "proc/driver/nvidia/gpus").glob("*"))
    return [str(number) for number in range(len(found))]


def shares(
    tasks: Sequence[LocalTask], gpus: Sequence[str]
) -> dict[str, list[str]]:
    """Returns the GPUs of each task, by its label.

    Of more GPUs than tasks that compute, each of these has as many; of fewer,
    they have one each, in turn. Parameter servers have none.

    Args:
        tasks: of all clusters on this machine.
        gpus: from `visible`.
    """
    computing = sorted(
        (task for task in tasks if task.job in _JOBS),
        key=lambda task: _JOBS.index(task.job),
    )
    result: dict[str, list[str]] = {task.label: [] for task in tasks}
    if gpus and computing:
        each = max(len(gpus) // len(computing), 1)
        for number, task in enumerate(computing):
            first = number * each % len(gpus)
            result[task.label] = list(gpus[first : first + each])
    return result


def described(of_tasks: Mapping[str, Sequence[str]]) -> str:
    """Returns a line that says which tasks have which GPUs."""
    parts = [
        f"{label}: {', '.join(gpus)}"
        for label, gpus in of_tasks.items()
        if gpus
    ]
    return (
        f"GPUs ({VARIABLE}) of {'; '.join(parts)}; of other tasks, none. "
        f"--env={VARIABLE}=... gives all tasks the same."
    )
