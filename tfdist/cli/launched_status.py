"""The state of the workers of a `tfdist launch`, from what they have told.

Each worker writes a small file now and then (`tfdist.cluster.status_file`):
the launcher asks nobody.
"""

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses
import time

from tfdist.cli import worker_rates
from tfdist.cli.task import Task
from tfdist.cli.worker_rates import Reading
from tfdist.cluster import status_file


class StatusLines:
    """One line about each cluster, every so many seconds."""

    def __init__(
        self,
        clusters: Sequence[Sequence[Task]],
        seconds: float,
        say: Callable[..., None],
    ):
        """Prepares it.

        Args:
            clusters: the tasks of each cluster.
            seconds: between two lines; 0 for none.
            say: what writes a line.
        """
        self._clusters = clusters
        self._seconds = seconds or float("inf")
        self._say = say
        self._before: list[dict[str, Reading]] = [{} for _ in clusters]
        self.due = time.monotonic() + self._seconds

    def look_at_time(self) -> None:
        """Writes the lines, if they are due."""
        now = time.monotonic()
        if now < self.due:
            return
        self.due = now + self._seconds
        for number, tasks in enumerate(self._clusters):
            found = readings(tasks)
            before = self._before[number]
            self._before[number] = {one.name: one for one in found}
            # While programs start there is nothing to tell.
            if before and _has_begun(tasks, found):
                group = f"group {number}: " if len(self._clusters) > 1 else ""
                self._say(group + worker_rates.line(before, found))


def _has_begun(tasks: Sequence[Task], found: Sequence[Reading]) -> bool:
    """Whether workers train; also where all that run are silent."""
    running = [task for task in tasks if task.is_running and task.status_path]
    return bool(running) and any(one.idle_seconds is not None for one in found)


def readings(tasks: Sequence[Task]) -> list[Reading]:
    """Returns what is known of the workers of a cluster, chief first.

    Args:
        tasks: the tasks of the cluster.
    """
    return [
        _reading(task)
        for task in tasks
        if task.status_path is not None and (task.is_wanted or task.is_running)
    ]


def _reading(task: Task) -> Reading:
    state = "runs"
    if not task.is_running:
        state = "has finished" if task.is_done else "is down"
    told = status_file.read(task.status_path)
    reading = Reading(task.label, state, task.is_running)
    if told is None:
        return reading
    figures, word, written = told
    age = max(0.0, time.time() - written)
    idle = age + figures.idle_seconds if figures.idle_seconds >= 0 else None
    is_silent = task.is_running and age > worker_rates.SILENT_SECONDS
    return dataclasses.replace(
        reading,
        state=f"silent for {age:.0f} s" if is_silent else state,
        is_alive=task.is_running and not is_silent,
        figures=figures,
        time=written,
        idle_seconds=idle,
        **worker_rates.place(word),
    )
