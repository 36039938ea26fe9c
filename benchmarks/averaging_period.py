"""Bytes per example and accuracy, by the number of local steps.

    python benchmarks/averaging_period.py [--quick] [--tasks=digits,text]

Real clusters of processes on this machine, one server and four workers, train
on real data to the end: the embedded handwritten digits, and the next
character of Python's own documentation. All runs of a task see the same
examples, in the same order with the same seed; only the method and its period
K differ. The workers' learning rate is not tuned for K. Bytes are the payload
that workers send and receive, from their journals. Runs take turns, seed
by seed; each has a cluster of its own.

`sync` is synchronous SGD; `averaging` with K = 1 is the same in exact
arithmetic. Sums are made in the order in which workers arrive, so accuracies
differ a little from run to run; those of `async` more. Examples per second (in
the line of JSON) depend on the machine and on what else it does.
"""

import contextlib
import dataclasses
import os
import statistics
import tempfile

from absl import flags
from absl import logging
from harness import periodic_training
from harness import program

from tfdist import tables

TASKS = {
    "digits": {
        "batch_size": 16,
        "epochs": 40,
        "learning_rate": 0.02,
        "momentum": 0.9,
    },
    "text": {
        "batch_size": 32,
        "epochs": 8,
        "learning_rate": 0.5,
        "momentum": 0.0,
    },
}
QUICK_EPOCHS = 8
PERIODS = ("1", "5", "10", "16", "20", "50", "200")
METHODS = tuple(periodic_training.STRATEGIES)
LEAST_TIMES_FEWER, AT_PERIOD = 15.0, 16

FLAGS = flags.FLAGS
flags.DEFINE_bool(
    "quick", False, "Digits, two workers, one seed: under a minute when idle."
)
flags.DEFINE_list("tasks", None, "Default: digits,text, or digits if --quick.")
flags.DEFINE_list(
    "periods", None, "Periods of averaging. Default: 1,5,10,16,20,50,200."
)
flags.DEFINE_list(
    "others",
    None,
    "Other runs, each a method or METHOD:PERIOD, with methods of "
    f"{', '.join(METHODS)}.",
)
flags.DEFINE_integer("seeds", None, "Default: 3, or 1 if --quick.", 1)
flags.DEFINE_integer("workers", None, "Default: 4, or 2 if --quick.", 1)


def _check_positive(texts):
    return texts is None or all(t.isdigit() and int(t) for t in texts)


def _check_others(texts):
    for text in texts or ():
        method, _, period = text.partition(":")
        without = method in periodic_training.WITHOUT_PERIOD
        if method not in METHODS or without != (not period):
            return False
        if period and not _check_positive([period]):
            return False
    return True


flags.register_validator(
    "tasks",
    lambda names: names is None or set(names) <= set(TASKS),
    f"must be some of {', '.join(TASKS)}",
)
flags.register_validator(
    "periods", _check_positive, "must be positive integers"
)
flags.register_validator(
    "others",
    _check_others,
    "must be like sync (without a period: "
    f"{', '.join(periodic_training.WITHOUT_PERIOD)}) or diloco:16",
)


@dataclasses.dataclass(frozen=True)
class Row:
    """One row of the table: a method and its period."""

    method: str
    period: int | None

    def __str__(self):
        return (
            f"{self.method}, K = {self.period}"
            if self.period
            else (self.method)
        )


def main():
    """Trains, prints a table per task and a line of JSON."""
    quick = FLAGS.quick
    tasks = FLAGS.tasks or (["digits"] if quick else list(TASKS))
    periods = FLAGS.periods or (("1", "16") if quick else PERIODS)
    others = FLAGS.others
    if others is None:
        others = ["sync"]
        if not quick:
            others += ["async", "bmuf:50", "diloco:16", "diloco:200"]
    rows = [_row(f"parameter_averaging:{k}") for k in periods] + [
        _row(text) for text in others
    ]
    seeds = range(1, 1 + (FLAGS.seeds or (1 if quick else 3)))
    workers = FLAGS.workers or (2 if quick else 4)
    figures = {}
    with tempfile.TemporaryDirectory() as data_dir:
        _prepare_digits(data_dir)
        for task in tasks:
            training = periodic_training.Training(
                task, workers=workers, data_dir=data_dir, **TASKS[task]
            )
            if quick:
                training = dataclasses.replace(training, epochs=QUICK_EPOCHS)
            figures[task] = summarize(measure(training, rows, seeds))
            show(training, figures[task], len(seeds))
    program.report(
        "averaging_period",
        workers=workers,
        seeds=len(seeds),
        aim_times_fewer_bytes=LEAST_TIMES_FEWER,
        tasks={
            task: {str(row): values for row, values in rows.items()}
            for task, rows in figures.items()
        },
    )


def _row(text):
    method, _, period = text.partition(":")
    return Row(method, int(period) if period else None)


def _prepare_digits(data_dir):
    """Writes them once, before workers look for them at the same time."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    from tfdist import datasets

    logging.set_verbosity(logging.ERROR)
    # It says much about what takes a moment.
    with (
        open(os.devnull, "w") as nowhere,
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(nowhere),
    ):
        datasets.load("digits", data_dir=data_dir)


def measure(training, rows, seeds):
    """Lets the methods take turns.

    Args:
        training: the `periodic_training.Training`.
        rows: list of `Row`.
        seeds: of the runs of each.

    Returns:
        Row -> list of `periodic_training.Outcome`, one per seed.
    """
    outcomes = {row: [] for row in rows}
    for seed in seeds:
        for row in rows:
            outcomes[row].append(
                periodic_training.play(training, row.method, row.period, seed)
            )
    return outcomes


def summarize(outcomes):
    """The figures of each row; accuracies in percent.

    What is lost is the mean over seeds of the differences to averaging after
    every step, of the same seed.
    """
    base = outcomes.get(Row("parameter_averaging", 1))
    figures = {}
    for row, values in outcomes.items():
        accuracies = [100 * value.accuracy for value in values]
        per_example = [value.bytes / value.examples for value in values]
        figures[row] = {
            "examples": values[0].examples,
            "exchanges": round(statistics.median(v.exchanges for v in values)),
            "bytes_per_example": round(statistics.median(per_example), 1),
            "accuracy": round(statistics.mean(accuracies), 2),
            "accuracy_deviation": _deviation(accuracies),
            "loss": round(statistics.mean(value.loss for value in values), 4),
            "examples_per_second": round(
                statistics.median(v.examples / v.seconds for v in values)
            ),
        }
        if base is None:
            continue
        lost = [
            100 * (b.accuracy - v.accuracy)
            for b, v in zip(base, values, strict=True)
        ]
        fewer = [
            b.bytes / b.examples * v.examples / v.bytes
            for b, v in zip(base, values, strict=True)
        ]
        figures[row]["times_fewer_bytes"] = round(statistics.median(fewer), 2)
        figures[row]["accuracy_lost"] = round(statistics.mean(lost), 2)
        figures[row]["accuracy_lost_deviation"] = _deviation(lost)
    return figures


def _deviation(values):
    return round(statistics.stdev(values), 2) if len(values) > 1 else None


def show(training, figures, seeds):
    """Prints the table of one task, and whether the aim is reached."""
    examples = next(iter(figures.values()))["examples"]
    print(
        f"{training.task}: {training.workers} workers, batches of "
        f"{training.batch_size}, {examples} examples, {seeds} seeds"
    )
    rows = [
        [
            str(row),
            str(values["exchanges"]),
            f"{values['bytes_per_example']:.1f}",
            tables.number(values.get("times_fewer_bytes"), 1),
            f"{values['accuracy']:.2f}",
            tables.number(values["accuracy_deviation"], 2),
            tables.number(values.get("accuracy_lost"), 2),
            f"{values['loss']:.3f}",
        ]
        for row, values in figures.items()
    ]
    titles = ["method", "exchanges", "bytes/example", "times fewer"]
    titles += ["accuracy %", "+-", "points lost", "loss"]
    print(tables.aligned(titles, rows))
    aimed_at = figures.get(Row("parameter_averaging", AT_PERIOD), {})
    if "times_fewer_bytes" in aimed_at:
        print(
            f"K = {AT_PERIOD}: {aimed_at['times_fewer_bytes']:.1f} times fewer "
            f"bytes (aim: >= {LEAST_TIMES_FEWER:g}), "
            f"{aimed_at['accuracy_lost']:.2f} points of accuracy lost"
        )


if __name__ == "__main__":
    program.run(main)
