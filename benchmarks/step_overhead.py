"""What the strategy costs per step of a tiny model.

    python benchmarks/step_overhead.py [--quick]

`model.fit` of a multi-layer perceptron with a batch of 32: in plain Keras,
under `tfdist.AsyncStrategy` without servers, and with one server and one
worker on this machine. They take turns; what is shown is the median over the
rounds, and the median of what a step costs more than plain Keras's of the
same round.
"""

import contextlib
import functools

from absl import flags
from harness import children
from harness import clusters
from harness import keras_fit
from harness import program

from tfdist import tables

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


def main():
    """Measures, prints a table and a line of JSON."""
    rounds = FLAGS.rounds or (5 if FLAGS.quick else 15)
    steps = FLAGS.steps or (200 if FLAGS.quick else 500)
    with contextlib.ExitStack() as stack:
        systems = start(stack)
        figures = {
            optimizer: summarize(measure(optimizer, systems, rounds, steps))
            for optimizer in OPTIMIZERS
        }
    show(figures)
    program.report(
        "step_overhead",
        aim_ms_over_plain=MOST_MS_OVER_PLAIN,
        optimizers=figures,
    )


def start(stack):
    """Starts the systems; returns name -> what can be asked."""
    systems = {
        "plain": children.Child("plain Keras", keras_fit.plain, OPTIMIZERS),
        "without_servers": children.Child(
            "tfdist without servers", keras_fit.under_async_strategy, OPTIMIZERS
        ),
        "with_server": clusters.Cluster(
            (keras_fit.under_async_strategy, OPTIMIZERS)
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
    turns = {
        name: functools.partial(system.ask, optimizer, steps)
        for name, system in systems.items()
    }
    return program.take_turns(turns, rounds)


def summarize(seconds):
    """Medians in milliseconds, of what `measure` returns."""
    figures = {}
    for name, values in seconds.items():
        over = [v - p for v, p in zip(values, seconds["plain"], strict=True)]
        figures[name] = {
            "ms_per_step": program.milliseconds(values),
            "ms_over_plain": program.milliseconds(over),
        }
    return figures


def show(figures):
    """Prints the table."""
    titles = ["ms per step"]
    rows = [[label] for label in SYSTEMS.values()]
    for optimizer, systems in figures.items():
        titles += [optimizer, "over"]
        for row, name in zip(rows, SYSTEMS, strict=True):
            row.append(f"{systems[name]['ms_per_step']:.2f}")
            row.append(f"{systems[name]['ms_over_plain']:.2f}")
    print(tables.aligned(titles, rows))
    print(f"Aim: at most {MOST_MS_OVER_PLAIN} over plain Keras.")


if __name__ == "__main__":
    program.run(main)
