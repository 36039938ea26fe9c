"""Updates per second of each method with a worker that is slow at random.

    python benchmarks/stragglers.py [--quick] [--methods=sync,async]

One server and four workers on this machine train a small model. A step sleeps
50 ms, which stands for the device's computation; the last worker is ten times
slower in 10 % of its steps, at random. Methods take turns in each round;
rates are medians over the rounds, the times between two updates are those of
all rounds. Beside them, what would be without any overhead. `mwms` is
TensorFlow's own `MultiWorkerMirroredStrategy`, with a loop of its own because
`fit` of Keras 3 does not work under it. In `alone` each worker trains a model
of its own in plain Keras: what this machine can do at all at the moment.

How often the worker is slow in a short turn is a matter of chance: `--quick`
shows that all works, and the order of magnitude.
"""

import contextlib
import math
import statistics

from absl import flags
from harness import gated_training
from harness import gated_worker
from harness import program
from harness import update_rates
import numpy as np

from tfdist import tables

METHODS = (*gated_worker.STRATEGIES, "mwms", "alone")
FLAGS = flags.FLAGS
flags.DEFINE_bool(
    "quick", False, "Short turns: under a minute on an idle machine."
)
flags.DEFINE_integer(
    "rounds", None, "Rounds. Default: 6, or 2 if --quick.", lower_bound=1
)
flags.DEFINE_float(
    "turn_seconds",
    None,
    "Time that each method gets per round. Default: 10, or 0.8 if --quick.",
    lower_bound=0.5,
)
flags.DEFINE_list("methods", list(METHODS), f"Of {', '.join(METHODS)}.")
flags.DEFINE_integer("workers", 4, "Number of workers.", lower_bound=2)
flags.DEFINE_integer(
    "slow_workers", 1, "How many of them are slow at random.", lower_bound=0
)
flags.DEFINE_float("step_seconds", 0.05, "Sleep of a step.", lower_bound=0)
flags.DEFINE_float(
    "slow_times", 10.0, "How many times as long a slow step takes."
)
flags.DEFINE_float(
    "slow_probability", 0.1, "That a slow worker's step is slow."
)
flags.DEFINE_integer("seed", 0, "Of the slow steps.", lower_bound=0)
flags.register_validator(
    "methods",
    lambda names: names and set(names) <= set(METHODS),
    f"must be some of {', '.join(METHODS)}",
)

LEAST_BACKUP_OVER_SYNC = 2.0
LEAST_ASYNC_OVER_IDEAL = 0.95
WARM_UP_STEPS = 3


def main():
    """Measures, prints a table and a line of JSON."""
    sleeps = gated_worker.Sleeps(
        FLAGS.step_seconds,
        FLAGS.slow_times,
        FLAGS.slow_probability,
        tuple(range(FLAGS.workers)[FLAGS.workers - FLAGS.slow_workers :]),
    )
    turns = measure(
        sleeps,
        FLAGS.rounds or (2 if FLAGS.quick else 6),
        FLAGS.turn_seconds or (0.8 if FLAGS.quick else 10.0),
    )
    figures = {
        method: summarize(method, turns[method], sleeps) for method in turns
    }
    ratios = compare(turns, figures)
    show(figures, ratios)
    program.report("stragglers", methods=figures, **ratios)


def measure(sleeps, rounds, seconds):
    """Lets the methods take turns.

    Args:
        sleeps: the `gated_worker.Sleeps`.
        rounds: number of turns of each.
        seconds: per turn.

    Returns:
        Method -> list of `update_rates.Turn`, one per round.
    """
    with contextlib.ExitStack() as stack:
        clusters = {
            method: stack.enter_context(
                gated_training.GatedTraining(
                    method, FLAGS.workers, sleeps, FLAGS.seed
                )
            )
            for method in FLAGS.methods
        }
        for cluster in clusters.values():
            cluster.wait_until_built()
        for cluster in clusters.values():
            cluster.open()
        for cluster in clusters.values():
            cluster.wait_for_steps(WARM_UP_STEPS)
        for cluster in clusters.values():
            cluster.hold()
        turns = {method: [] for method in clusters}
        for _ in range(rounds):
            for method, cluster in clusters.items():
                turns[method].append(
                    update_rates.of_turn(*cluster.turn(seconds))
                )
    return turns


def summarize(method, turns, sleeps):
    """The figures of one method, from what `measure` returns."""
    intervals = np.concatenate([turn.intervals for turn in turns])
    if not intervals.size:
        raise RuntimeError(f"{method}: no two updates within one turn.")
    median, late = 1e3 * np.quantile(intervals, [0.5, 0.95])
    updates, steps = ideals(method, sleeps)
    return {
        "updates_per_second": _median(turns, "updates_per_second"),
        "steps_per_second": _median(turns, "steps_per_second"),
        "dropped": _median(turns, "dropped"),
        "ms_between_updates_median": round(float(median), 2),
        "ms_between_updates_p95": round(float(late), 2),
        "ideal_updates_per_second": round(updates, 2),
        "ideal_steps_per_second": steps and round(steps, 2),
    }


def ideals(method, sleeps):
    """Updates and steps per second without overhead; None where unknown."""
    workers = FLAGS.workers
    free = update_rates.asynchronous(sleeps, workers)
    if method == "softsync":
        return free / gated_worker.GRADIENTS_PER_UPDATE, free
    if method == "bounded_staleness":
        held = update_rates.bounded(sleeps, workers, gated_worker.MAX_STALENESS)
        return held, held
    if method == "backup_workers":
        backups = gated_worker.BACKUP_WORKERS
        return update_rates.synchronous(sleeps, workers, backups), None
    if method in ("sync", "mwms"):
        updates = update_rates.synchronous(sleeps, workers, 0)
        return updates, workers * updates
    return free, free


def _median(turns, figure):
    values = [getattr(turn, figure) for turn in turns]
    return round(statistics.median(values), 3)


def compare(turns, figures):
    """The ratios that are aimed at, where their methods were measured."""
    ratios = {}
    if "sync" in turns and "backup_workers" in turns:
        for ideal in ("", "ideal_"):
            backup, sync = (
                figures[method][f"{ideal}updates_per_second"]
                for method in ("backup_workers", "sync")
            )
            ratios[f"{ideal}backup_workers_over_sync"] = round(backup / sync, 3)
        ratios["aim_backup_workers_over_sync"] = LEAST_BACKUP_OVER_SYNC
    if "async" in turns:
        ratios["async_over_ideal"] = round(
            figures["async"]["steps_per_second"]
            / figures["async"]["ideal_steps_per_second"],
            3,
        )
        ratios["aim_async_over_ideal"] = LEAST_ASYNC_OVER_IDEAL
    if "async" in turns and "alone" in turns:
        ratios["async_over_alone"] = round(
            statistics.median(
                a.steps_per_second / b.steps_per_second
                for a, b in zip(turns["async"], turns["alone"], strict=True)
            ),
            3,
        )
    return ratios


def show(figures, ratios):
    """Prints the table."""
    rows = [
        [
            method,
            f"{row['updates_per_second']:.1f}",
            tables.number(row["ideal_updates_per_second"], 1),
            f"{row['steps_per_second']:.1f}",
            tables.number(row["ideal_steps_per_second"], 1),
            tables.percent(row["dropped"]),
            f"{row['ms_between_updates_median']:.1f}",
            f"{row['ms_between_updates_p95']:.1f}",
        ]
        for method, row in figures.items()
    ]
    titles = ["method", "updates/s", "ideal", "steps/s", "ideal", "dropped"]
    titles += ["ms between: median", "95 %"]
    print(tables.aligned(titles, rows))
    for name, value in ratios.items():
        if name.startswith(("aim_", "ideal_")):
            continue
        ideal = ratios.get(f"ideal_{name}", math.nan)
        without = "" if math.isnan(ideal) else f"; no overhead: {ideal:.2f}"
        aim = ratios.get(f"aim_{name}")
        after = f" (aim: >= {aim:g}{without})" if aim else ""
        print(f"{name}: {value:.2f}{after}")


if __name__ == "__main__":
    program.run(main)
