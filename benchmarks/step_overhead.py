"""What the strategy costs per step of a tiny model.

    python benchmarks/step_overhead.py [--quick]

`model.fit` of a multi-layer perceptron with a batch of 32: in plain Keras,
under `tfdist.AsyncStrategy` without servers, and with one server and one
worker on this machine. They take turns; what is shown is the median over the
rounds, and the median of what a step costs more than plain Keras's of the
same round.
"""

import contextlib
import json
import statistics

from absl import app
from absl import flags
from harness import children
from harness import keras_fit
from harness import tfdist_cluster

FLAGS = flags.FLAGS
flags.DEFINE_bool("quick", False, "Fewer rounds: under a minute in all.")
flags.DEFINE_integer(
    "rounds", None, "Rounds. Default: 15, or 5 if --quick.", lower_bound=1
)
flags.DEFINE_integer(
    "steps", None, "Steps per turn. Default: 500, or 200 if --quick."
)

OPTIMIZERS = ("sgd", "adam")
WARM_UP_STEPS = 20
MOST_MS_OVER_PLAIN = 2.0  # What issue 2 aims at.
SYSTEMS = {
    "plain": "plain Keras",
    "without_servers": "AsyncStrategy without servers",
    "with_server": "AsyncStrategy, 1 server",
}


def main(argv):
    """Measures, prints a table and a line of JSON."""
    if len(argv) > 1:
        raise app.UsageError(f"This script takes flags only, got {argv[1:]}.")
    rounds = FLAGS.rounds or (5 if FLAGS.quick else 15)
    steps = FLAGS.steps or (200 if FLAGS.quick else 500)
    with contextlib.ExitStack() as stack:
        systems = start(stack)
        figures = {
            optimizer: summarize(measure(optimizer, systems, rounds, steps))
            for optimizer in OPTIMIZERS
        }
    show(figures)
    print(
        json.dumps(
            {
                "benchmark": "step_overhead",
                "aim_ms_over_plain": MOST_MS_OVER_PLAIN,
                "optimizers": figures,
            }
        )
    )


def start(stack):
    """Starts the systems; returns name -> what can be asked."""
    # Here, because it imports TensorFlow, and so would every process that
    # imports this file.
    from harness import clusters

    systems = {
        "plain": children.Child("plain Keras", keras_fit.plain, OPTIMIZERS),
        "without_servers": children.Child(
            "tfdist without servers", keras_fit.under_async_strategy, OPTIMIZERS
        ),
        "with_server": clusters.TfdistCluster(
            tfdist_cluster.serve, keras_fit.under_async_strategy, OPTIMIZERS
        ),
    }
    for system in systems.values():
        stack.callback(system.close)
    for system in systems.values():
        system.wait_until_built()
    return systems


def measure(optimizer, systems, rounds, steps):
    """Lets the systems take turns.

    Args:
        optimizer: name of the optimizer.
        systems: from `start`.
        rounds: number of turns of each.
        steps: steps per turn.

    Returns:
        System -> list of seconds per step, one per round.
    """
    for system in systems.values():
        system.ask(optimizer, WARM_UP_STEPS)
    seconds = {name: [] for name in systems}
    for _ in range(rounds):
        for name, system in systems.items():
            seconds[name].append(system.ask(optimizer, steps))
    return seconds


def summarize(seconds):
    """Medians in milliseconds, of what `measure` returns."""
    figures = {}
    for name, values in seconds.items():
        over = [v - p for v, p in zip(values, seconds["plain"], strict=True)]
        figures[name] = {
            "ms_per_step": round(1e3 * statistics.median(values), 3),
            "ms_over_plain": round(1e3 * statistics.median(over), 3),
        }
    return figures


def show(figures):
    """Prints the table."""
    print(
        f"{'ms per step':>32}" + "".join(f"{o:>10}{'over':>8}" for o in figures)
    )
    for name, label in SYSTEMS.items():
        row = f"{label:>32}"
        for optimizer in figures.values():
            row += f"{optimizer[name]['ms_per_step']:10.2f}"
            row += f"{optimizer[name]['ms_over_plain']:8.2f}"
        print(row)
    print(f"{f'aim: at most {MOST_MS_OVER_PLAIN} over plain Keras':>32}")


if __name__ == "__main__":
    app.run(main)
