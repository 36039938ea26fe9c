"""What corrections of late gradients cost.

    python benchmarks/corrections.py [--quick]

A worker exchanges gradients with one server on this machine, with
`tfdist.AsyncStrategy` and with each correction. They take turns; what is shown
is the median over the rounds, and the median of the ratios to `AsyncStrategy`
of the same round. One worker alone has no late gradients; what is computed is
the same.
"""

import functools

from absl import flags
from harness import clusters
from harness import exchanging
from harness import program

from tfdist import tables

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


def main():
    """Measures, prints a table and a line of JSON."""
    rounds = FLAGS.rounds or (5 if FLAGS.quick else 15)
    steps = FLAGS.steps or (10 if FLAGS.quick else 40)
    size = QUICK_SIZE if FLAGS.quick else SIZE
    worker = (exchanging.build_corrections, VARIABLES, size)
    with clusters.Cluster(worker) as cluster:
        cluster.wait_until_built()
        turns = measure(cluster, rounds, steps)
    figures = summarize(turns)
    show(figures)
    program.report(
        "corrections",
        variables=VARIABLES,
        floats_each=size,
        corrections=figures,
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
    names = exchanging.CORRECTIONS
    for name in names:
        cluster.ask(name, WARM_UP_STEPS)
    turns = {
        name: functools.partial(cluster.ask, name, steps) for name in names
    }
    return program.take_turns(turns, rounds)


def summarize(turns):
    """Medians of what `measure` returns."""
    plain = [seconds for seconds, _, _ in turns["none"]]
    figures = {}
    for name, values in turns.items():
        seconds = [value[0] for value in values]
        figures[name] = {
            "ms_per_step": program.milliseconds(seconds),
            "times_async": program.median_ratio(seconds, plain),
            "bytes_sent": values[-1][1],
            "bytes_received": values[-1][2],
        }
    return figures


def show(figures):
    """Prints the table."""
    rows = [
        [
            name,
            f"{row['ms_per_step']:.2f}",
            f"{row['times_async']:.2f}",
            f"{row['bytes_sent'] / 1e3:.1f}",
            f"{row['bytes_received'] / 1e3:.1f}",
        ]
        for name, row in figures.items()
    ]
    titles = ["correction", "ms/step", "x async", "kB sent", "received"]
    print(tables.aligned(titles, rows))


if __name__ == "__main__":
    program.run(main)
