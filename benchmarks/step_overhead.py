"""What the strategy costs per step of a tiny model.

    python benchmarks/step_overhead.py [--quick]

`model.fit` of a multi-layer perceptron with a batch of 32: in plain Keras,
under `tfdist.AsyncStrategy` without servers, and with one server and one
worker on this machine, and under `tfdist.PeerToPeerStrategy` with two workers;
and in two processes of plain Keras at a time, which share the machine as those
two workers do. They take turns; what is shown is the median over the rounds,
and the median of what a step costs more than plain Keras's of the same round.
CPU is that of a worker's process, with all of its threads: where other programs
run on the machine, it is what compares. The beginning and the end of `fit` do
not count.
"""

import contextlib
import functools
import statistics

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
MOST_MS_OVER_PLAIN = 2.0
MOST_MS_OF_PEERS = 1.5
SYSTEMS = {
    "plain": "plain Keras",
    "without_servers": "AsyncStrategy without servers",
    "with_server": "AsyncStrategy, 1 server",
    "two_plain": "plain Keras, 2 processes at a time",
    "peers": "PeerToPeerStrategy, 2 workers, threshold",
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
        aim_ms_of_peers=MOST_MS_OF_PEERS,
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
        "two_plain": clusters.Cluster(
            (keras_fit.plain, OPTIMIZERS), ps=0, workers=2
        ),
        "peers": clusters.Cluster(
            (keras_fit.under_peer_to_peer, OPTIMIZERS), ps=0, workers=2
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
        System -> list of seconds and of CPU seconds per step, one pair per
        round.
    """
    turns = {
        name: functools.partial(_turn, system, optimizer)
        for name, system in systems.items()
    }
    for turn in turns.values():
        turn(WARM_UP_STEPS)
    turns = {
        name: functools.partial(turn, steps) for name, turn in turns.items()
    }
    return program.take_turns(turns, rounds)


def _turn(system, optimizer, steps):
    """Has all workers train; returns the means of their figures, a pair."""
    if isinstance(system, clusters.Cluster):
        found = system.ask_all(optimizer, steps)
    else:
        found = [system.ask(optimizer, steps)]
    return [statistics.mean(column) for column in zip(*found, strict=True)]


def summarize(seconds):
    """Medians in milliseconds, of what `measure` returns."""
    figures = {}
    for name, pairs in seconds.items():
        figures[name] = {}
        for place, what in enumerate(("ms", "cpu_ms")):
            values = [pair[place] for pair in pairs]
            plain = [pair[place] for pair in seconds["plain"]]
            over = [v - p for v, p in zip(values, plain, strict=True)]
            figures[name][f"{what}_per_step"] = program.milliseconds(values)
            figures[name][f"{what}_over_plain"] = program.milliseconds(over)
    return figures


def show(figures):
    """Prints the table."""
    titles = ["ms per step"]
    rows = [[label] for label in SYSTEMS.values()]
    columns = {"ms_per_step": "", "ms_over_plain": "over"}
    columns |= {"cpu_ms_per_step": "CPU", "cpu_ms_over_plain": "CPU over"}
    for optimizer, systems in figures.items():
        for column, title in columns.items():
            titles.append(title or optimizer)
            for row, name in zip(rows, SYSTEMS, strict=True):
                row.append(f"{systems[name][column]:.2f}")
    print(tables.aligned(titles, rows))
    print(
        f"Aim: at most {MOST_MS_OVER_PLAIN} over plain Keras, and "
        f"{MOST_MS_OF_PEERS} of peers."
    )


if __name__ == "__main__":
    program.run(main)
