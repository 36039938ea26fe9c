"""What corrections of late gradients cost.

    python benchmarks/corrections.py [--quick]

A worker exchanges gradients with one server on this machine, with
`tfdist.AsyncStrategy` and with each correction. They take turns; what is shown
is the median over the rounds, and the median of the ratios to `AsyncStrategy`
of the same round. One worker alone has no late gradients; what is computed is
the same.
"""

import json
import statistics

from absl import app
from absl import flags
from harness import corrected_exchange
from harness import tfdist_cluster

FLAGS = flags.FLAGS
flags.DEFINE_bool("quick", False, "A smaller model, fewer rounds.")
flags.DEFINE_integer(
    "rounds", None, "Rounds. Default: 15, or 5 if --quick.", lower_bound=1
)
flags.DEFINE_integer(
    "steps", None, "Steps per turn. Default: 40, or 10 if --quick."
)

VARIABLES = 20
SIZE, QUICK_SIZE = 50_000, 5_000
WARM_UP_STEPS = 5


def main(argv):
    """Measures, prints a table and a line of JSON."""
    if len(argv) > 1:
        raise app.UsageError(f"This script takes flags only, got {argv[1:]}.")
    # Here, because it imports TensorFlow, and so would every process that
    # imports this file.
    from harness import clusters

    rounds = FLAGS.rounds or (5 if FLAGS.quick else 15)
    steps = FLAGS.steps or (10 if FLAGS.quick else 40)
    size = QUICK_SIZE if FLAGS.quick else SIZE
    with clusters.TfdistCluster(
        tfdist_cluster.serve, corrected_exchange.worker, VARIABLES, size
    ) as cluster:
        cluster.wait_until_built()
        turns = measure(cluster, rounds, steps)
    figures = summarize(turns)
    show(figures)
    print(
        json.dumps(
            {
                "benchmark": "corrections",
                "variables": VARIABLES,
                "floats_each": size,
                "corrections": figures,
            }
        )
    )


def measure(cluster, rounds, steps):
    """Lets the corrections take turns.

    Args:
        cluster: the `Cluster`.
        rounds: number of turns of each.
        steps: steps per turn.

    Returns:
        Name -> list of (seconds per step, bytes sent, bytes received).
    """
    names = corrected_exchange.CORRECTIONS
    for name in names:
        cluster.ask(name, WARM_UP_STEPS)
    turns = {name: [] for name in names}
    for _ in range(rounds):
        for name in names:
            turns[name].append(cluster.ask(name, steps))
    return turns


def summarize(turns):
    """Medians of what `measure` returns."""
    plain = [seconds for seconds, _, _ in turns["none"]]
    figures = {}
    for name, values in turns.items():
        seconds = [value[0] for value in values]
        ratios = [s / p for s, p in zip(seconds, plain, strict=True)]
        figures[name] = {
            "ms_per_step": round(1e3 * statistics.median(seconds), 2),
            "times_async": round(statistics.median(ratios), 2),
            "bytes_sent": values[-1][1],
            "bytes_received": values[-1][2],
        }
    return figures


def show(figures):
    """Prints the table."""
    print(
        f"{'correction':>40}{'ms/step':>9}{'x async':>9}"
        f"{'kB sent':>9}{'received':>10}"
    )
    for name, row in figures.items():
        print(
            f"{name:>40}{row['ms_per_step']:9.2f}{row['times_async']:9.2f}"
            f"{row['bytes_sent'] / 1e3:9.1f}{row['bytes_received'] / 1e3:10.1f}"
        )


if __name__ == "__main__":
    app.run(main)
