"""Asynchronous SGD with a server against workers without one: a comparison.

    python benchmarks/decentralized.py [--quick] [--task=digits] [--workers=16]

Virtual workers of `tfdist.simulation` train a small network with each method:
asynchronous SGD with a server, workers that send each other updates, gossip
averaging, synchronous SGD, and local steps; dense, and with codecs. Compute
times are 1 ms per gradient (Gamma, shape 100), messages take 0.05 ms and their
bytes over the bandwidth, and codecs the time per element that
docs/compression.md has for 17 million.

Each method has its own learning rate: of a grid of factor 1.5, the one with the
best validation accuracy where the network is no limit. Rates are tried beside
the best one until both of its neighbours are worse, on two seeds; the best
two are tried on all seeds. Other data than those for the choice give the
accuracy in the tables. A seed decides over the split of the data, first
weights, the order of the examples and compute times. With less bandwidth two
seeds train with the same rate; but dense peers, whose workers do not wait for
the network, so that updates are later there, have a rate of their own.

With `--real`, real processes train on digits as well, with the rates of the
virtual ones: as many epochs of the same data. What is shown is the accuracy of
the first worker's replica, and the bytes that a worker has sent.

Every run is a line of JSON in the file `--results`, which is read again: what
is in it is not run again, and the tables can be printed at any time
(`--show`). All of it takes 1,200 runs of 1 to 5 seconds.
"""

import itertools
import time

from absl import flags
from harness import decentralized_real
from harness import decentralized_runs
from harness import decentralized_tasks
from harness import program
from harness import rate_search
import numpy as np

from tfdist import tables

FLAGS = flags.FLAGS
program.define_flags_of_runs(decentralized_runs.ALL, "16, 64 and 4")
flags.adopt_module_key_flags(program)
flags.DEFINE_bool(
    "real", False, "Trains on real processes, too; default then: 4 workers."
)
flags.DEFINE_integer(
    "real_seeds", len(rate_search.SEEDS), "Of real processes.", 1
)

QUICK = ("server", "peers", "peers, threshold 1/250")
# With so many workers, more codecs and other networks are tried.
MIDDLE = 16
OTHER_GBPS = (0.1, 1.0, 10.0)
GBPS = decentralized_runs.GBPS


def main():
    """Trains, prints tables and a line of JSON."""
    few = FLAGS.quick or FLAGS.real
    names = FLAGS.task or (["digits"] if few else ["digits", "text"])
    counts = FLAGS.workers or ([4] if few else [MIDDLE, 64, 4])
    results = decentralized_runs.Results(program.path_of_runs(), FLAGS.quick)
    made = {name: decentralized_tasks.make(name) for name in names}
    if not FLAGS.show:
        for name, method, workers, gbps in plan(names, counts):
            results.train(made[name], method, workers, gbps)
            row = summarize(results, made[name], method, workers, gbps)
            print(
                f"{time.strftime('%H:%M:%S')} {name}, {method}, {workers} "
                f"workers, {gbps:g} Gb/s: {_percent(row)}",
                flush=True,
            )
    if FLAGS.real:
        train_real(results, names, counts)
    rows = list(show(results, made, counts))
    program.report("decentralized", rows=rows)


def plan(names, counts):
    """Yields (task, method, workers, gbps), the most important first."""
    methods = decentralized_runs.METHODS
    if FLAGS.real:
        methods = decentralized_real.METHODS
    methods = FLAGS.method or (QUICK if FLAGS.quick else methods)
    middle = [count for count in counts if count == MIDDLE]
    rest = [count for count in counts if count != MIDDLE]
    codecs = [] if FLAGS.method else decentralized_runs.CODECS
    for part in (
        (names, methods, middle, [GBPS]),
        (names, codecs, middle, [GBPS]),
        (names, methods, middle, OTHER_GBPS),
        *((names, methods, [count], [GBPS]) for count in rest),
    ):
        yield from itertools.product(*part)


def train_real(results, names, counts):
    """Trains on real processes what is not in the results."""
    methods = FLAGS.method or decentralized_real.METHODS
    for name, workers, method in itertools.product(names, counts, methods):
        done = results.real.get((name, method, workers), {})
        seeds = rate_search.SEEDS[: FLAGS.real_seeds]
        left = [seed for seed in seeds if seed not in done]
        if FLAGS.show or not left:
            continue
        rate = results.rate((name, method, workers, GBPS))
        for run in decentralized_real.play(name, method, workers, rate, left):
            results.search.write(run)
            print(
                f"{time.strftime('%H:%M:%S')} {name}, {method}, {workers} real "
                f"workers: {100 * decentralized_runs.late(run, 'test'):.2f}",
                flush=True,
            )


def summarize(results, task, method, workers, gbps):
    """Figures of a row over all seeds with the chosen rate, or None."""
    key = (task.name, method, workers, gbps)
    tuned = key
    if method not in decentralized_runs.TUNED_BY_NETWORK:
        tuned = (*key[:3], GBPS)
    if not {key, tuned} <= results.search.runs.keys():
        return None
    exponent = results.search.best(tuned)
    runs = results.search.runs[key].get(exponent)
    if not runs:
        return None
    tests = {
        seed: 100 * decentralized_runs.late(run, "test")
        for seed, run in sorted(runs.items())
    }
    runs = [runs[seed] for seed in tests]
    times = [_seconds_to(run, task.target) for run in runs]

    def mean(name):
        return float(np.mean([run[name] for run in runs]))

    dense = 4 * mean("parameters")
    return {
        "task": task.name,
        "method": method,
        "workers": workers,
        "gbps": gbps,
        "rate": rate_search.rate_of(exponent),
        "rate_is_inside": results.search.is_inside(tuned),
        "test": float(np.mean(list(tests.values()))),
        "error": rate_search.standard_error(list(tests.values())),
        "tests": tests,
        "seconds": mean("seconds"),
        "reached": sum(value is not None for value in times),
        "seconds_to_target": None if None in times else float(np.mean(times)),
        "seconds_to_target_error": None
        if None in times
        else rate_search.standard_error(times),
        "staleness": mean("staleness"),
        "parameters": int(mean("parameters")),
        "update_bytes": mean("update_bytes"),
        "times_fewer": dense / mean("update_bytes")
        if mean("update_bytes")
        else None,
        # Kind and tau, and an entry of 32 bits for each element.
        "times_fewer_without_entropy": dense / (8 + 4 * mean("elements"))
        if "threshold" in str(decentralized_runs.ALL[method][1])
        else None,
        "step_bytes": mean("step_bytes"),
        "busiest_link_per_gradient": mean("largest_link") / mean("gradients"),
        "rms": np.mean([run["rms"] for run in runs], 0).tolist(),
        "tau": mean("tau"),
    }


def _seconds_to(run, target):
    """Virtual seconds until a test accuracy, None if it was not reached."""
    for _, seconds, _, test in run["curve"]:
        if test >= target:
            return seconds
    return None


def show(results, made, counts):
    """Prints the tables; yields the rows."""
    for name, task in made.items():
        for workers in counts:
            rows = [
                summarize(results, task, method, workers, GBPS)
                for method in decentralized_runs.ALL
            ]
            rows = [row for row in rows if row]
            if rows:
                print(f"\n{name}, {workers} workers, no limit of bandwidth")
                print(tables.aligned(*_of_accuracy(rows)))
                yield from rows
            real = [
                summarize_real(results, name, method, workers)
                for method in decentralized_real.METHODS
                if (name, method, workers) in results.real
            ]
            if real:
                print(f"\n{name}, {workers} real processes")
                print(tables.aligned(*_of_real(real, rows)))
                yield from real
        rows = [
            summarize(results, task, method, MIDDLE, gbps)
            for method in decentralized_runs.METHODS
            for gbps in (*OTHER_GBPS, GBPS)
        ]
        rows = [row for row in rows if row]
        if any(row["gbps"] != GBPS for row in rows):
            print(f"\n{name}, {MIDDLE} workers, seconds to {task.target:.0%}")
            print(tables.aligned(*_of_time(rows)))
            yield from (row for row in rows if row["gbps"] != GBPS)


def _of_accuracy(rows):
    titles = [
        "method", "rate", "accuracy, %", "against the first", "staleness",
        "bytes per update", "times fewer", "without entropy coding",
        "sent per step", "busiest link per gradient",
    ]  # fmt: skip
    return titles, [
        [
            row["method"],
            f"{row['rate']:.3g}" + ("" if row["rate_is_inside"] else "*"),
            _percent(row),
            _paired(row, rows[0]),
            f"{row['staleness']:.1f}",
            f"{row['update_bytes']:,.0f}",
            tables.number(row["times_fewer"], 0),
            tables.number(row["times_fewer_without_entropy"], 0),
            f"{row['step_bytes']:,.0f}",
            f"{row['busiest_link_per_gradient']:,.0f}",
        ]
        for row in rows
    ]


def summarize_real(results, name, method, workers):
    """Figures of real processes over all seeds."""
    runs = results.real[name, method, workers]
    tests = {
        seed: 100 * decentralized_runs.late(run, "test")
        for seed, run in sorted(runs.items())
    }

    def mean(key):
        return float(np.mean([run[key] for run in runs.values()]))

    accuracies = [[row[3] for row in run["curve"]] for run in runs.values()]
    finals = [100 * run["final"] for run in runs.values()]
    return {
        "task": name,
        "method": method,
        "workers": workers,
        "real": True,
        "rate": mean("rate"),
        "test": float(np.mean(list(tests.values()))),
        "error": rate_search.standard_error(list(tests.values())),
        "tests": tests,
        "by_epoch": (100 * np.mean(accuracies, 0)).tolist(),
        "final": float(np.mean(finals)),
        "final_error": rate_search.standard_error(finals),
        "staleness": mean("staleness"),
        "sent": mean("sent"),
        "received": mean("received"),
    }


def _of_real(rows, virtual):
    epochs = 1, 2, 5, 10, 20
    titles = [
        "method", "rate", "accuracy, %", "against virtual", "staleness",
        "sent by a worker", *(f"epoch {epoch}" for epoch in epochs),
        "after fit",
    ]  # fmt: skip
    of_method = {row["method"]: row for row in virtual}
    return titles, [
        [
            row["method"],
            f"{row['rate']:.3g}",
            _percent(row),
            _paired(row, of_method[row["method"]]),
            f"{row['staleness']:.1f}",
            f"{row['sent']:,.0f}",
            *(
                f"{row['by_epoch'][epoch]:.1f}"
                for epoch in epochs
                if epoch < len(row["by_epoch"])
            ),
            f"{row['final']:.1f} +- {row['final_error']:.1f}",
        ]
        for row in rows
    ]


def _of_time(rows):
    titles = ["method", "Gb/s", "accuracy, %", "staleness", "seconds", "all, s"]
    return titles, [
        [
            row["method"],
            "no limit" if row["gbps"] == GBPS else f"{row['gbps']:g}",
            _percent(row),
            f"{row['staleness']:.1f}",
            f"{row['reached']} of {len(row['tests'])} runs"
            if row["seconds_to_target"] is None
            else f"{row['seconds_to_target']:.3f} +- "
            f"{row['seconds_to_target_error']:.3f}",
            f"{row['seconds']:.3f}",
        ]
        for row in rows
    ]


def _percent(row):
    return f"{row['test']:.2f} +- {row['error']:.2f}"


def _paired(row, base):
    """Mean difference over seeds, and its standard error."""
    common = sorted(row["tests"].keys() & base["tests"].keys())
    if row is base or len(common) < 2:
        return ""
    values = [row["tests"][seed] - base["tests"][seed] for seed in common]
    return f"{np.mean(values):+.2f} +- {rate_search.standard_error(values):.2f}"


if __name__ == "__main__":
    program.run(main)
