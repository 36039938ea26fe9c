"""What it costs to look at updates before they count.

    python benchmarks/nonfinite.py [--quick]

One exchange is a push of gradients, SGD on the server, and a pull of fresh
parameters, over loopback, with one server and one worker. The gradients are
constant, so that a step is all exchange. The choices of `nonfinite` take turns
in each round; ratios are taken within a round, and what is shown is the median
over the rounds.
"""

import functools

from absl import flags
from harness import clusters
from harness import exchanging
from harness import program

from tfdist import tables

FLAGS = flags.FLAGS
flags.DEFINE_bool("quick", False, "Fewer rounds: under a minute in all.")
flags.DEFINE_multi_enum(
    "model", None, ["10x100", "100x10k", "100x250k"], "Models. Default: all."
)

MODELS = {
    "10x100": (10, 100),
    "100x10k": (100, 10_000),
    "100x250k": (100, 250_000),
}


def main():
    """Measures, prints a table and a line of JSON."""
    models = {name: MODELS[name] for name in FLAGS.model or MODELS}
    rounds = 5 if FLAGS.quick else 25
    with clusters.Cluster((exchanging.build_nonfinite, models)) as cluster:
        cluster.wait_until_built()
        figures = {name: measure(cluster, name, rounds) for name in models}
    titles = ["ms", *exchanging.NONFINITE, "drop / ignore"]
    rows = [
        [name, *(str(row[f"{c}_ms"]) for c in row["choices"])]
        + [str(row["drop_over_ignore"])]
        for name, row in figures.items()
    ]
    print(tables.aligned(titles, rows))
    program.report("nonfinite", models=figures)


def measure(cluster, model, rounds):
    """The figures of one model, a dict.

    Args:
        cluster: a `Cluster` of `exchanging.build_nonfinite`.
        model: its name.
        rounds: number of turns of each choice.
    """
    choices = exchanging.NONFINITE
    for choice in choices:
        cluster.ask(model, choice, 4)
    steps = max(3, round(0.3 / cluster.ask(model, "ignore", 4)))
    seconds = program.take_turns(
        {c: functools.partial(cluster.ask, model, c, steps) for c in choices},
        rounds,
    )
    return {
        "choices": choices,
        **{f"{c}_ms": program.milliseconds(seconds[c]) for c in choices},
        "drop_over_ignore": program.median_ratio(
            seconds["drop"], seconds["ignore"]
        ),
    }


if __name__ == "__main__":
    program.run(main)
