"""Downpour SGD and Sandblaster: the comparison of Dean et al. (2012).

    python benchmarks/downpour.py [--quick] [--task=digits] [--workers=16]

Virtual workers of `tfdist.simulation` train a small network with Downpour SGD
(plain SGD or Adagrad on the servers, with or without a warm start) and with
Sandblaster L-BFGS, with 4, 16 and 64 workers. A gradient of one batch takes
1 ms (Gamma, shape 100), a message 0.05 ms. Sandblaster computes the same
batches in portions; it makes 5 times as many passes over the data. A warm start
is a twentieth of the gradients, by one worker with plain SGD; its time counts.

Each method has its own learning rate with each number of workers: of a grid of
factor 1.5, the one with the best validation accuracy late in training. After a
scan with factor 3.4, rates are tried beside the best one until both of its
neighbours are worse, on two seeds; the best two are tried on all seeds. Higher
rates are tried until one loses more than 5 percent points. The tables have the
accuracy on other data, the test data. A seed decides over the split of the
data, first weights, the order of the examples and compute times.

With 16 workers, other values of `n_fetch` and `n_push` are tried as well, each
with its own rate. With plain SGD on the server, the steps that a worker takes
by itself have the same rate; with Adagrad, the best one of plain SGD.

Every run is a line of JSON in the file `--results`, which is read again: what
is in it is not run again, and the tables can be printed at any time (`--show`).
"""

import itertools
import time

from absl import flags
from harness import decentralized_tasks
from harness import downpour_runs
from harness import program
from harness import rate_search
import numpy as np

from tfdist import tables

FLAGS = flags.FLAGS
program.define_flags_of_runs(downpour_runs.ALL, "16, 64 and 4")
flags.adopt_module_key_flags(program)

QUICK = ("Downpour, SGD", "Downpour, Adagrad", "Sandblaster")
# With so many workers, `n_fetch` and `n_push` are varied.
MIDDLE = 16


def main():
    """Trains, prints tables and a line of JSON."""
    names = FLAGS.task or (["digits"] if FLAGS.quick else ["digits", "text"])
    counts = FLAGS.workers or ([4] if FLAGS.quick else [MIDDLE, 64, 4])
    results = downpour_runs.Results(program.path_of_runs(), FLAGS.quick)
    made = {name: decentralized_tasks.make(name) for name in names}
    if not FLAGS.show:
        for name, workers, method in plan(names, counts):
            results.train(made[name], method, workers)
            row = summarize(results, made[name], method, workers)
            print(
                f"{time.strftime('%H:%M:%S')} {name}, {workers} workers, "
                f"{method}: {_percent(row)}",
                flush=True,
            )
    rows = list(show(results, made, counts))
    program.report("downpour", rows=rows)


def plan(names, counts):
    """Yields (task, workers, method), the most important first."""
    methods = FLAGS.method or (QUICK if FLAGS.quick else downpour_runs.METHODS)
    yield from itertools.product(names, counts, methods)
    if MIDDLE in counts and not FLAGS.method and not FLAGS.quick:
        yield from itertools.product(names, [MIDDLE], downpour_runs.SWEEPS)


def summarize(results, task, method, workers):
    """Figures of a row over all seeds with the chosen rate, or None."""
    search = results.search
    key = task.name, method, workers
    if key not in search.runs:
        return None
    exponent = search.best(key)
    runs = search.runs[key][exponent]
    runs = [runs[seed] for seed in sorted(runs)]
    tests = [100 * downpour_runs.late(run, "test") for run in runs]
    times = [downpour_runs.seconds_to(run, task.target) for run in runs]
    reached = [value for value in times if value is not None]
    has_rate = downpour_runs.ALL[method].optimizer is not None

    def mean(name):
        return float(np.mean([run[name] for run in runs]))

    return {
        "task": task.name,
        "method": method,
        "workers": workers,
        "rate": rate_search.rate_of(exponent) if has_rate else None,
        "rate_is_inside": not has_rate or search.is_inside(key),
        "highest": results.highest(key)
        if has_rate and len(search.runs[key]) > 1
        else None,
        "test": float(np.mean(tests)),
        "error": rate_search.standard_error(tests),
        "seeds": len(runs),
        "reached": len(reached),
        "seconds_to_target": float(np.mean(reached)) if reached else None,
        "seconds_to_target_error": rate_search.standard_error(reached),
        "seconds": mean("seconds"),
        "staleness": mean("staleness"),
        "bytes": mean("bytes"),
    }


def show(results, made, counts):
    """Prints the tables; yields the rows."""
    for name, task in made.items():
        for workers in sorted(counts):
            rows = [
                summarize(results, task, method, workers)
                for method in downpour_runs.ALL
            ]
            rows = [row for row in rows if row]
            if rows:
                print(
                    f"\n{name}, {workers} workers; the target is "
                    f"{task.target:.0%}"
                )
                print(tables.aligned(*_of_rows(rows)))
                yield from rows


def _of_rows(rows):
    titles = [
        "method", "rate", "works up to", "staleness", "accuracy, %",
        "seconds to target", "all, s", "MB",
    ]  # fmt: skip
    return titles, [
        [
            row["method"],
            _rate(row),
            "" if row["highest"] is None else f"{row['highest']:.1f} times",
            f"{row['staleness']:.1f}",
            _percent(row),
            _seconds(row),
            f"{row['seconds']:.3f}",
            f"{row['bytes'] / 1e6:,.0f}",
        ]
        for row in rows
    ]


def _rate(row):
    if row["rate"] is None:
        return ""
    return f"{row['rate']:.3g}" + ("" if row["rate_is_inside"] else "*")


def _seconds(row):
    if row["seconds_to_target"] is None:
        return "never"
    text = (
        f"{row['seconds_to_target']:.4f} +- "
        f"{row['seconds_to_target_error']:.4f}"
    )
    if row["reached"] < row["seeds"]:
        text += f" ({row['reached']} of {row['seeds']})"
    return text


def _percent(row):
    return f"{row['test']:.2f} +- {row['error']:.2f}"


if __name__ == "__main__":
    program.run(main)
