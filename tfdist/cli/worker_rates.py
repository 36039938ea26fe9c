"""Rates of a cluster's workers between two readings, as text."""

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import statistics
from typing import Any

from tfdist import tables
from tfdist.cluster.fit_progress import Word
from tfdist.cluster.step_figures import StepFigures

# A worker that makes less than this part of the median's steps is slow. These
# two are in docs/monitoring.md.
_SLOW = 0.6
# A worker that waits for more of its time than this is said to wait.
_WAITS = 0.3
# Figures that never fall, unless another process counts from 0.
_TOTALS = (
    "steps",
    "exchange_seconds",
    "wait_seconds",
    "bytes_sent",
    "bytes_received",
)
SILENT_SECONDS = 5.0
"""A worker that should run, and says nothing for longer, is silent."""

_TITLES = (
    "worker",
    "state",
    "epoch",
    "batch",
    "steps",
    "steps/s",
    "staleness p95",
    "communication",
    "waiting",
    "sent",
    "received",
)


@dataclasses.dataclass(frozen=True)
class Reading:
    """The state of one worker at one moment.

    Attributes:
        name: its name for people, as `worker 1`.
        state: what it does, in a word or two.
        is_alive: whether its process runs, and is not silent.
        figures: its figures, or `None` before the first.
        time: when they were told, in seconds.
        idle_seconds: how long ago its last step ended; `None` before it.
        epoch: the epoch that it is in, from 1; `None` where nobody knows.
        batch: its batches in that epoch, and how many there are, as text.
    """

    name: str
    state: str
    is_alive: bool
    figures: StepFigures | None = None
    time: float = 0.0
    idle_seconds: float | None = None
    epoch: int | None = None
    batch: str = ""


@dataclasses.dataclass(frozen=True)
class Rates:
    """Rates of one worker between two readings.

    Attributes:
        steps_per_second: optimizer steps.
        exchange_share: share of its time in exchanges, 0 to 1.
        wait_share: share in which it waited, 0 to 1.
        sent: bytes per second.
        received: bytes per second.
    """

    steps_per_second: float = 0.0
    exchange_share: float = 0.0
    wait_share: float = 0.0
    sent: float = 0.0
    received: float = 0.0


def rates(before: Reading | None, now: Reading) -> Rates | None:
    """Returns the rates between two readings of one worker.

    Args:
        before: the earlier one; `None` for none.
        now: the later one.

    Returns:
        The rates; `None` where they are not known: the worker has told
        nothing new, or has been started again in between.
    """
    if before is None or before.figures is None or now.figures is None:
        return None
    old, new = before.figures, now.figures
    seconds = now.time - before.time
    has_restarted = any(
        getattr(new, name) < getattr(old, name) for name in _TOTALS
    )
    if seconds <= 0 or has_restarted:
        return None
    return Rates(
        (new.steps - old.steps) / seconds,
        min(1.0, (new.exchange_seconds - old.exchange_seconds) / seconds),
        min(1.0, (new.wait_seconds - old.wait_seconds) / seconds),
        (new.bytes_sent - old.bytes_sent) / seconds,
        (new.bytes_received - old.bytes_received) / seconds,
    )


def place(word: Word) -> dict[str, Any]:
    """Returns `epoch` and `batch` of a `Reading`.

    Args:
        word: what the worker tells of its training.
    """
    if not word.reached:
        return {"epoch": None, "batch": ""}
    size = f"/{word.size}" if word.size else ""
    return {"epoch": word.epoch + 1, "batch": f"{word.batch}{size}"}


def line(before: Mapping[str, Reading], now: Sequence[Reading]) -> str:
    """Returns the state of a cluster in one line.

    Args:
        before: the earlier readings, by name.
        now: the later ones.
    """
    found = {one.name: rates(before.get(one.name), one) for one in now}
    known = {name: rate for name, rate in found.items() if rate is not None}
    alive = sum(one.is_alive for one in now)
    parts = [f"{alive} of {len(now)} workers run"]
    total = sum(rate.steps_per_second for rate in known.values())
    if total:
        late = max(one.figures.staleness for one in now if one.name in known)
        sent = sum(rate.sent for rate in known.values())
        received = sum(rate.received for rate in known.values())
        parts += [
            f"{tables.amount(total)} steps/s",
            f"staleness p95 {late}",
            f"sent {_speed(sent)}, received {_speed(received)}",
        ]
    else:
        ends = [o.idle_seconds for o in now if o.idle_seconds is not None]
        parts.append(
            f"no step for {min(ends):.0f} s" if ends else "no step yet"
        )
    parts += [f"{one.name} {one.state}" for one in now if not one.is_alive]
    if total:
        parts += [
            f"{one.name} makes no step"
            for one in now
            if one.is_alive and not _speed_of(known.get(one.name))
        ]
    return "; ".join([*parts, *_remarks(known)])


def _speed_of(rate: Rates | None) -> float:
    return rate.steps_per_second if rate else 0.0


def _remarks(known: Mapping[str, Rates]) -> list[str]:
    """Returns who is slow and who waits."""
    speeds = {
        name: rate.steps_per_second
        for name, rate in known.items()
        if rate.steps_per_second
    }
    # Of two, the median would lie between them.
    middle = statistics.median_high(speeds.values()) if speeds else 0.0
    remarks = [
        f"{name} is slow ({tables.amount(speed)} steps/s)"
        for name, speed in speeds.items()
        if speed < _SLOW * middle
    ]
    waiting = [n for n, rate in known.items() if rate.wait_share > _WAITS]
    if waiting:
        share = statistics.mean(known[name].wait_share for name in waiting)
        verb = "wait" if len(waiting) > 1 else "waits"
        remarks.append(
            f"{', '.join(waiting)} {verb} {tables.percent(share, 0)} of the "
            "time"
        )
    return remarks


def table(before: Mapping[str, Reading], now: Sequence[Reading]) -> str:
    """Returns a table with a row for each worker.

    Args:
        before: the earlier readings, by name.
        now: the later ones.
    """
    rows = [_row(one, rates(before.get(one.name), one)) for one in now]
    return tables.aligned(_TITLES, rows, left=2, ruled=False)


def _row(one: Reading, rate: Rates | None) -> list[str]:
    figures = one.figures
    place = ["-" if one.epoch is None else str(one.epoch), one.batch or "-"]
    counted = ["-", "-"]
    if figures is not None:
        counted = [str(figures.steps), str(figures.staleness)]
    steps, staleness = counted
    if rate is None:
        return [one.name, one.state, *place, steps, "-", staleness, *"----"]
    return [
        one.name,
        one.state,
        *place,
        steps,
        f"{rate.steps_per_second:.1f}",
        staleness,
        f"{rate.exchange_share:.1%}",
        f"{rate.wait_share:.1%}",
        _speed(rate.sent),
        _speed(rate.received),
    ]


def _speed(number: float) -> str:
    """Returns bytes per second as text."""
    if number < 1e6:
        return f"{tables.amount(number / 1e3)} kB/s"
    return f"{tables.amount(number / 1e6)} MB/s"
