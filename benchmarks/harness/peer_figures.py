"""The figures of `benchmarks/peers.py`: rates, medians, ratios, aims."""

import dataclasses
import statistics

# What gradients are averaged with, between workers without a server.
ALL_REDUCE = "tfdist_all_reduce"
# (system, peer) -> the least ratio of their steps per second that is aimed at,
# by model.
AIMS = {
    ("tfdist_async", "tf_ps"): {"small": 1.8, "medium": 4.0, "large": 1.35},
    ("tfdist_async", "torch_rpc"): {"small": 0.5, "medium": 2.0, "large": 2.0},
    (ALL_REDUCE, "tf_mirrored"): {"small": 1.2, "medium": 1.5, "large": 1.3},
    (ALL_REDUCE, "torch_ddp"): {"small": 0.6, "medium": 1.0, "large": 1.0},
    ("tfdist_sync", "tfdist_async"): {
        "small": 0.7,
        "medium": 0.8,
        "large": 0.85,
    },
}


@dataclasses.dataclass(frozen=True)
class Turn:
    """What the workers of a system did in one turn.

    Attributes:
        steps_per_second: of all workers, while all were active.
        cpu_seconds_per_step: user and system time of all processes.
    """

    steps_per_second: float
    cpu_seconds_per_step: float

    @classmethod
    def of(cls, ends, cpu_seconds):
        """Sums up a turn.

        Args:
            ends: when the steps of each worker ended, a list of lists, seconds
                of one clock.
            cpu_seconds: of all processes, over all these steps.
        """
        steps = sum(map(len, ends))
        return cls(rate(ends), cpu_seconds / steps)


def rate(ends):
    """Steps per second of all workers together, while all are active.

    They are from when the last of them has ended its first step until the
    first of them ends its last.

    Args:
        ends: see `Turn.of`.

    Raises:
        ValueError: if they never are.
    """
    begin = max(times[0] for times in ends)
    end = min(times[-1] for times in ends)
    if end <= begin:
        raise ValueError("No time in which all workers were active.")
    steps = sum(begin < time <= end for times in ends for time in times)
    return steps / (end - begin)


def pace(times):
    """Steps per second of one worker, whatever the others do."""
    return (len(times) - 1) / (times[-1] - times[0])


@dataclasses.dataclass(frozen=True)
class Row:
    """One system's figures on one model.

    Attributes:
        turns: list of `Turn`, one per round; no matter what, with an error.
        error: one line that says why there are no figures, or None.
    """

    turns: list[Turn]
    error: str | None = None

    @property
    def steps_per_second(self):
        """The median over the rounds; None with an error."""
        return self._median("steps_per_second")

    @property
    def cpu_ms_per_step(self):
        """The median over the rounds, milliseconds; None with an error."""
        seconds = self._median("cpu_seconds_per_step")
        return None if seconds is None else 1e3 * seconds

    def _median(self, name):
        if self.error is not None:
            return None
        return statistics.median(getattr(turn, name) for turn in self.turns)


def ratio(row, peer):
    """The median of the ratios of steps per second within each round.

    Args:
        row: a `Row`.
        peer: the `Row` that it is compared with.

    Returns:
        A float; None if one of them has no figures.
    """
    if row.error is not None or peer.error is not None:
        return None
    return statistics.median(
        mine.steps_per_second / theirs.steps_per_second
        for mine, theirs in zip(row.turns, peer.turns, strict=True)
    )


def outcomes(model, rows):
    """What became of the aims for one model.

    Args:
        model: name of the model.
        rows: system -> `Row`; aims for others are left out.

    Returns:
        A list of dicts with `system`, `peer`, `model`, `aim`, `ratio` (None if
        there is none) and `reached`.
    """
    found = []
    for (system, peer), aims in AIMS.items():
        if system in rows and peer in rows and model in aims:
            reached = ratio(rows[system], rows[peer])
            found.append(
                {
                    "system": system,
                    "peer": peer,
                    "model": model,
                    "aim": aims[model],
                    "ratio": None if reached is None else round(reached, 3),
                    "reached": reached is not None and reached >= aims[model],
                }
            )
    return found
