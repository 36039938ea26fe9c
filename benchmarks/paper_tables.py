"""What the papers claim, in the simulator, on embedded real data.

    python benchmarks/paper_tables.py [--quick] [--tables=a,b,c,d]

The task of tables a, b and c is the next character of Python's own
documentation (`tfdist.simulation.tasks.text`): 12,000 examples, a network of
14,000 parameters, SGD whose rate falls to a tenth after half of the training
and again after three quarters. Accuracies are of the end of the training, in
percent, mean and standard deviation over the seeds. Table d is of time alone.
Under each table stands what it shows of the claim.
"""

import statistics

from absl import flags
from harness import paper_runs
from harness import program

from tfdist import tables as text_tables

FLAGS = flags.FLAGS
flags.DEFINE_bool("quick", False, "One seed, shorter runs: no evidence.")
flags.DEFINE_list("tables", ["a", "b", "c", "d"], "Which of a, b, c and d.")
flags.DEFINE_integer("seeds", 5, "Seeds, without --quick.", lower_bound=1)
flags.register_validator(
    "tables",
    lambda names: names and set(names) <= set("abcd"),
    message="must be some of a, b, c, d.",
)

SINGLE = "one worker"
_SOFTSYNC = {
    "n-softsync, n = M": "async",
    "the same, rate / staleness": "async:correction=inverse_staleness",
}
_DELAYED = {
    "ASGD": "async",
    "SSGD, the same rate": "sync",
    "SSGD, M times the rate": "sync",
    "DC-ASGD-c, lambda_0 = 0.04": "dc_asgd:lambda_0=0.04:variance_decay=none",
    "DC-ASGD-c, lambda_0 = 10": "dc_asgd:lambda_0=10:variance_decay=none",
    "DC-ASGD-a, lambda_0 = 2": "dc_asgd:lambda_0=2:variance_decay=0.95",
}
_MOMENTUM = {
    "NAG-ASGD": "async",
    "DANA-Slim": "dana:variant=slim",
    "DANA-Zero": "dana:variant=zero",
    "DANA-DC": "dana:variant=dc",
}
WORKERS = {"a": (4, 16, 30), "b": (4, 8, 16), "c": (8, 16, 32)}
TITLES = {
    "a": "(a) Zhang et al. 2016: n-softsync with n = M, batches of 128 / M",
    "b": "(b) Zheng et al. 2017: delay compensation",
    "c": "(c) Hakimi et al. 2019: momentum 0.9 and many workers",
}
# Table d: workers, updates, and how many of all are backups.
TAIL_WORKERS, TAIL_UPDATES = 100, 40
BACKUPS = (0, 1, 2, 3, 4, 6, 8, 12, 20, 40)
QUICK_WORKERS, QUICK_UPDATES, QUICK_BACKUPS = 30, 20, (0, 2, 10)


def main():
    """Plays all runs, prints tables and a line of JSON."""
    seeds = [1] if FLAGS.quick else list(range(1, FLAGS.seeds + 1))
    figures = {"quick": FLAGS.quick, "seeds": len(seeds)}
    accuracy_tables = [name for name in FLAGS.tables if name != "d"]
    runs = [run for name in accuracy_tables for run in table_runs(name, seeds)]
    results = paper_runs.play(runs) if runs else []
    for name in accuracy_tables:
        cells = collect(name, runs, results)
        verdict = VERDICTS[name](cells)
        show(name, cells, verdict)
        figures[name] = {
            "accuracy": {f"{r}, M={m}": c for (r, m), c in cells.items()},
            "verdict": verdict,
        }
    if "d" in FLAGS.tables:
        figures["d"] = backup_workers(seeds)
    program.report("paper_tables", **figures)


def table_runs(name, seeds):
    """The `Run`s of a table, a list."""
    few = {"num_examples": 3_000, "epochs": 2} if FLAGS.quick else {}
    workers = WORKERS[name][-1:] if FLAGS.quick else WORKERS[name]
    rows = {"a": _SOFTSYNC, "b": _DELAYED, "c": _MOMENTUM}[name]
    runs = []

    def add(row, strategy, number, **settings):
        settings = {**settings, **few}
        for seed in seeds:
            runs.append(
                paper_runs.Run(name, row, strategy, number, seed, **settings)
            )

    if name == "a":
        rate = {"learning_rate": 0.5, "epochs": 4}
        add(SINGLE, "async", 1, batch_size=128, **rate)
        for number in workers:
            for row, strategy in rows.items():
                add(row, strategy, number, batch_size=128 // number, **rate)
    elif name == "b":
        add(SINGLE, "async", 1, learning_rate=0.4)
        for number in workers:
            for row, strategy in rows.items():
                times = number if row.endswith("M times the rate") else 1
                add(row, strategy, number, learning_rate=0.4 * times)
    else:
        rate = {"learning_rate": 0.02, "warm_up": 0.1}
        add(SINGLE, "async", 1, momentum=0.9, **rate)
        for number in workers:
            for row, strategy in rows.items():
                momentum = 0.9 if strategy == "async" else 0.0
                add(row, strategy, number, momentum=momentum, **rate)
    return runs


def collect(name, runs, results):
    """(row, workers) -> mean, deviation, staleness, diverged runs."""
    found = {}
    for run, result in zip(runs, results, strict=True):
        if run.table == name:
            found.setdefault((run.row, run.num_workers), []).append(result)
    cells = {}
    for key, summaries in found.items():
        values = [100 * s["final_accuracy"] for s in summaries]
        cells[key] = {
            "mean": round(statistics.mean(values), 2),
            "std": round(statistics.stdev(values), 2) if values[1:] else 0.0,
            "staleness": round(
                statistics.mean(s["staleness_mean"] for s in summaries), 1
            ),
            "diverged": sum(s["diverged"] for s in summaries),
            "runs": len(summaries),
        }
    return cells


def show(name, cells, verdict):
    """Prints a table and what it shows."""
    print(f"\n{TITLES[name]}")
    workers = sorted({number for _, number in cells if number > 1})
    rows = []
    for row in dict.fromkeys(row for row, _ in cells):
        texts = [row]
        for number in (1, *workers):
            cell = cells.get((row, number))
            text = ""
            if cell is not None:
                text = f"{cell['mean']:.1f} +- {cell['std']:.1f}"
                if cell["diverged"]:
                    text += f" ({cell['diverged']}!)"
            texts.append(text)
        rows.append(texts)
    titles = ["", "one worker", *(f"M = {number}" for number in workers)]
    print(text_tables.aligned(titles, rows))
    for number in workers:
        late = [c["staleness"] for (_, m), c in cells.items() if m == number]
        print(f"Mean staleness at M = {number}: {max(late)}.")
    for line in verdict:
        print(f"- {line}")


def _won_back(cells, row, bad, number):
    """Which share of the loss against one worker a row wins back.

    None where there is no loss of two standard errors.
    """
    single, worse = cells[SINGLE, 1], cells[bad, number]
    lost = single["mean"] - worse["mean"]
    error = ((single["std"] ** 2 + worse["std"] ** 2) / single["runs"]) ** 0.5
    if lost <= 2 * error:
        return None
    return (cells[row, number]["mean"] - worse["mean"]) / lost


def _compare(cells, rows, bad, claim):
    """What each row wins back of what `bad` loses, in words."""
    lines = []
    for number in sorted({m for _, m in cells if m > 1}):
        loss = cells[SINGLE, 1]["mean"] - cells[bad, number]["mean"]
        parts = []
        for row in rows:
            share = _won_back(cells, row, bad, number)
            if share is not None:
                parts.append(f"{row} wins {share:.0%} of it back")
        what = "; ".join(parts) or "less than two standard errors"
        lines.append(f"M = {number}: {bad} loses {loss:.1f} points; {what}.")
    return [f"Claim: {claim}", *lines]


def _verdict_softsync(cells):
    bad, good = _SOFTSYNC
    return _compare(
        cells,
        [good],
        bad,
        "with a constant rate training fails at 16 to 30 workers; divided by "
        "the staleness, it is as good as one worker's.",
    )


def _verdict_delayed(cells):
    rows = [row for row in _DELAYED if row.startswith("DC")]
    return _compare(
        cells,
        rows,
        "ASGD",
        "ASGD loses accuracy as M grows; compensation wins it back.",
    )


def _verdict_momentum(cells):
    return _compare(
        cells,
        [row for row in _MOMENTUM if row != "NAG-ASGD"],
        "NAG-ASGD",
        "with momentum ASGD fails at 16 workers and more; DANA does not.",
    )


VERDICTS = {
    "a": _verdict_softsync,
    "b": _verdict_delayed,
    "c": _verdict_momentum,
}


def backup_workers(seeds):
    """Tables d: prints them; returns their figures."""
    total = QUICK_WORKERS if FLAGS.quick else TAIL_WORKERS
    all_backups = QUICK_BACKUPS if FLAGS.quick else BACKUPS
    fixed_total = _measure_backups(
        [(total, b) for b in all_backups], seeds, None
    )
    print(f"\n(d) Chen et al. 2016: backup workers, N + b = {total}")
    _show_backups(fixed_total)
    fastest = _least(fixed_total, "seconds_per_update")
    best = _least(fixed_total, "ms_per_gradient")
    # A server's link takes as long for N pushes as a step takes to compute.
    first = total // 2
    fixed_first = _measure_backups(
        [(first + b, b) for b in all_backups], seeds, 1.0 / first
    )
    print(
        f"\n(d) the same with N = {first} and b more, and a server whose link "
        f"takes\n1 / {first} s for each push and each pull (after Abadi et al. "
        "2016, figure 8)"
    )
    _show_backups(fixed_first)
    added = _least(fixed_first, "seconds_per_update")
    verdict = [
        "Claim: the time per update falls and then rises with b.",
        f"With N + b = {total} it is least at b = {fastest}"
        + (
            ", the most that was tried: the fewer are waited for, the sooner "
            "they are there. The claim does not hold for it."
            if fastest == max(all_backups)
            else "."
        ),
        "The time per gradient that counts, so of an epoch of those, is least "
        f"at b = {best}.",
        f"With N = {first} and b workers more, which the server serves, too, "
        f"the time per update is least at b = {added}.",
    ]
    for line in verdict:
        print(f"- {line}")
    return {"rows": fixed_total, "added": fixed_first, "verdict": verdict}


def _measure_backups(pairs, seeds, transfer_seconds):
    """A row for each pair of (all workers, backups among them)."""
    from tfdist import simulation
    from tfdist import synchronization

    updates = QUICK_UPDATES if FLAGS.quick else TAIL_UPDATES
    # Most steps take a second; one in fifty three more, with a long tail.
    compute = simulation.Gamma(1.0) + simulation.Sometimes(
        simulation.Pareto(3.0, shape=1.5), 0.02
    )
    network, size = simulation.Network(), 0
    if transfer_seconds:
        network = simulation.Network(server_bandwidth_gbps=1.0)
        size = int(transfer_seconds * 1e9 / 8)
    rows = []
    for workers, backups in pairs:
        found = [
            _time_of_update(
                simulation.timing(
                    synchronization.Sync(backups),
                    num_workers=workers,
                    steps=workers * updates,
                    compute=compute,
                    network=network,
                    push_bytes=size,
                    seed=seed,
                )
            )
            for seed in seeds
        ]
        seconds = statistics.mean(found)
        rows.append(
            {
                "backup_workers": backups,
                "seconds_per_update": round(seconds, 3),
                "std": round(statistics.stdev(found), 3) if found[1:] else 0.0,
                "ms_per_gradient": round(
                    1e3 * seconds / (workers - backups), 2
                ),
            }
        )
    return rows


def _time_of_update(history):
    times = history.update_seconds
    # Only while all take part: at the end those that were dropped less often
    # have no data left.
    half = times[: max(2, len(times) // 2)]
    return float((half[-1] - half[0]) / (len(half) - 1))


def _show_backups(rows):
    titles = ["b", "s/update", "std", "ms/gradient that counts"]
    texts = [[str(value) for value in row.values()] for row in rows]
    print(text_tables.aligned(titles, texts))


def _least(rows, name):
    """The number of backup workers with the least of a figure."""
    return min(rows, key=lambda row: row[name])["backup_workers"]


if __name__ == "__main__":
    program.run(main)
