"""Findings of `tfdist doctor`: as a table, in sentences, and as JSON."""

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
from typing import Any

from tfdist import tables
from tfdist.cli.connectivity import Port
from tfdist.cli.connectivity import Reach

_COLUMNS = (
    "task",
    "address",
    "IP",
    "port",
    "versions",
    "clock",
    "round trip",
    "MB/s to",
    "MB/s from",
)
_START = (
    "Start the task, or, to check the network before a run, `tfdist doctor "
    "--serve_seconds=600` on its machine with its TF_CONFIG."
)
_WHO = (
    "Is it a task of this cluster, does it run (not stopped, not hung), and "
    "is the address in TF_CONFIG right?"
)


@dataclasses.dataclass
class TaskDiagnosis:
    """Findings about one task.

    Attributes:
        job: its job.
        index: its index in the job.
        address: its `host:port`.
        is_own: whether it is the task of this process's `TF_CONFIG`.
        reach: how far one gets towards it.
        measured: what `tfdist.cluster.probe.measure` returned.
        error: why there is no measurement.
        different: versions that differ from the ones here.
        is_other_cluster: whether it was started with another cluster.
    """

    job: str
    index: int
    address: str
    is_own: bool = False
    reach: Reach = dataclasses.field(default_factory=Reach)
    measured: Any = None
    error: str = ""
    different: Sequence[str] = ()
    is_other_cluster: bool = False

    @property
    def name(self) -> str:
        """The task's name for people, such as `worker 0`."""
        return f"{self.job} {self.index}"

    def cells(self) -> tuple[str, ...]:
        """Returns the cells of its row of the table."""
        port = self.reach.port
        shown = "not yet" if port == Port.CLOSED and self.is_own else port.value
        row = (
            f"{self.name} (this one)" if self.is_own else self.name,
            self.address,
            self.reach.ip or "-",
            shown,
        )
        found = self.measured
        if found is None:
            return (*row, "-", "-", "-", "-", "-")
        versions = "differ" if self.different else "the same"
        return (
            *row,
            versions if found.versions else "not told",
            f"{1e3 * found.clock_seconds:+.1f} ms",
            f"{1e3 * found.round_trip_seconds:.2f} ms",
            f"{found.bytes_to / 1e6:.4g}",
            f"{found.bytes_from / 1e6:.4g}",
        )

    def as_dict(self) -> dict[str, Any]:
        """Returns its entry in the JSON; seconds, and bytes per second."""
        return {
            "task": {"type": self.job, "index": self.index},
            "address": self.address,
            "is_own": self.is_own,
            "ip": self.reach.ip,
            "port": self.reach.port.name.lower(),
            "measured": (
                dataclasses.asdict(self.measured) if self.measured else None
            ),
        }


def table(rows: Sequence[TaskDiagnosis]) -> str:
    """Returns the table, a line for each task."""
    cells = [row.cells() for row in rows]
    return tables.aligned(_COLUMNS, cells, left=len(_COLUMNS), ruled=False)


def findings(
    rows: Sequence[TaskDiagnosis], max_clock_seconds: float
) -> tuple[list[str], list[str]]:
    """Judges.

    Args:
        rows: what is known.
        max_clock_seconds: how far clocks may be apart.

    Returns:
        What is wrong and what to do about it, and what is merely worth
        knowing; a sentence or two each.
    """
    wrong, notes = [], []
    for row in rows:
        who = f"{row.name} at {row.address}"
        for is_wrong, text in _of_row(row, max_clock_seconds):
            (wrong if is_wrong else notes).append(f"{who}: {text}")
    return wrong, notes


def _of_row(
    row: TaskDiagnosis, max_clock_seconds: float
) -> list[tuple[bool, str]]:
    reach, found = row.reach, row.measured
    result = []
    if row.is_own and reach.ip and not reach.is_here:
        result.append(
            (
                False,
                f"{reach.ip} is not an address of this machine. That is "
                "right only where one is translated to the other.",
            )
        )
    if reach.port == Port.CLOSED:
        if row.job == "ps" and not row.is_own:
            result.append((True, f"{reach.error}. {_START}"))
        elif not row.is_own:
            result.append(
                (
                    False,
                    "nothing listens there, as is right before the training "
                    "of this task has begun. `tfdist doctor "
                    "--serve_seconds=600` on its machine lets it be measured.",
                )
            )
    elif reach.port != Port.OPEN:
        result.append((True, f"{reach.error}. {_advice(reach)}"))
    elif row.error:
        result.append((True, f"{row.error}. {_WHO}"))
    if found is None:
        return result
    if not found.versions:
        result.append(
            (
                row.job == "ps",
                "does not say which versions it runs, as a task without "
                "tfdist, or with an older one, does not.",
            )
        )
    if row.different:
        result.append(
            (
                True,
                f"runs {', '.join(row.different)}. Install the same versions "
                "for all tasks.",
            )
        )
    if row.is_other_cluster:
        result.append(
            (
                True,
                'was started with another TF_CONFIG["cluster"], or with other '
                "`initial_workers`, than those that are checked. Start all "
                "tasks with the same ones.",
            )
        )
    # An answer that took long says as much less about the clock.
    apart = abs(found.clock_seconds) - found.round_trip_seconds / 2
    if apart > max_clock_seconds:
        side = "ahead of" if found.clock_seconds > 0 else "behind"
        result.append(
            (
                True,
                f"its clock is {abs(found.clock_seconds):.3g} s {side} the "
                "one here. Logs and records cannot be compared: let NTP set "
                "both.",
            )
        )
    return result


def _advice(reach: Reach) -> str:
    if reach.ip is None:
        return "Is TF_CONFIG right, and does this machine ask the right DNS?"
    return "Is the machine up, and may this one reach that port?"


def summary(wrong: Sequence[str], notes: Sequence[str]) -> str:
    """Returns the findings, to stand below the table."""
    parts = []
    if wrong:
        parts += ["Wrong:", *(f"  {text}" for text in wrong)]
    if notes:
        parts += ["To know:", *(f"  {text}" for text in notes)]
    if not wrong:
        parts.append("Nothing is wrong.")
    return "\n".join(parts)


def as_dict(
    rows: Sequence[TaskDiagnosis],
    wrong: Sequence[str],
    notes: Sequence[str],
    here: Mapping[str, str],
) -> dict[str, Any]:
    """Returns all of it, as JSON has it."""
    return {
        "here": dict(here),
        "tasks": [row.as_dict() for row in rows],
        "wrong": list(wrong),
        "to_know": list(notes),
    }
