"""What it costs to look at updates before they count.

    python benchmarks/nonfinite.py [--quick]

One exchange is a push of gradients, SGD on the server, and a pull of fresh
parameters, over loopback, with one server and one worker. The gradients are
constant, so that a step is all exchange. The choices of `nonfinite` take turns
in each round; ratios are taken within a round, and what is shown is the median
over the rounds.
"""

import contextlib
import json
import statistics

from absl import app
from absl import flags
from harness import checked_exchange
from harness import tfdist_cluster

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


def main(argv):
    """Measures, prints a table and a line of JSON."""
    if len(argv) > 1:
        raise app.UsageError(f"This script takes flags only, got {argv[1:]}.")
    # Here, because it takes seconds to import TensorFlow, which the processes
    # that import this file do not all need.
    from harness import clusters

    models = {name: MODELS[name] for name in FLAGS.model or MODELS}
    rounds = 5 if FLAGS.quick else 25
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(
            clusters.TfdistCluster(
                tfdist_cluster.serve, checked_exchange.worker, models
            )
        )
        cluster.wait_until_built()
        figures = {name: measure(cluster, name, rounds) for name in models}
    print(f"{'':>9}" + "".join(f"{c:>10}" for c in checked_exchange.CHOICES))
    for name, row in figures.items():
        times = "".join(f"{row[f'{c}_ms']:7.2f} ms" for c in row["choices"])
        print(f"{name:>9}{times}   drop / ignore: {row['drop_over_ignore']}")
    print(json.dumps({"benchmark": "nonfinite", "models": figures}))


def measure(cluster, model, rounds):
    """The figures of one model, a dict.

    Args:
        cluster: a `TfdistCluster` of `checked_exchange.worker`.
        model: its name.
        rounds: number of turns of each choice.
    """
    choices = checked_exchange.CHOICES
    for choice in choices:
        cluster.ask(model, choice, 4)
    steps = max(3, round(0.3 / cluster.ask(model, "ignore", 4)))
    seconds = {choice: [] for choice in choices}
    for _ in range(rounds):
        for choice in choices:
            seconds[choice].append(cluster.ask(model, choice, steps))
    pairs = zip(seconds["drop"], seconds["ignore"], strict=True)
    figures = {
        f"{choice}_ms": round(1e3 * statistics.median(values), 3)
        for choice, values in seconds.items()
    }
    ratio = round(statistics.median(d / i for d, i in pairs), 3)
    return {"choices": choices, **figures, "drop_over_ignore": ratio}


if __name__ == "__main__":
    app.run(main)
