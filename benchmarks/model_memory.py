"""Memory of models that are built, fitted and deleted one after the other.

    python benchmarks/model_memory.py [--quick] [--strategy=AsyncStrategy]

One server that writes snapshots, and workers of one strategy that do what
KerasTuner, cross-validation and notebooks do; beside them a process in which
plain Keras does the same. How much the resident memory of the server, of the
worker that grows most, and of plain Keras has grown from the tenth model to the
last is the figure that counts: 5 % is the aim, and what plain Keras comes to is
what it is to be compared with (docs/developers/development.md).
"""

import contextlib
import tempfile

from absl import flags
from harness import children
from harness import clusters
from harness import many_models
from harness import program
from harness import surviving

FLAGS = flags.FLAGS
flags.DEFINE_bool("quick", False, "14 models: under a minute.")
flags.DEFINE_integer(
    "models", None, "Default: 60, or 14 if --quick.", lower_bound=11
)
flags.DEFINE_string("strategy", "AsyncStrategy", "Name of the strategy.")
flags.DEFINE_integer("workers", 2, "Workers.", lower_bound=1)
flags.DEFINE_integer(
    "units", 930, "Of each of two hidden layers; 930: 1.1 M parameters in all."
)

BEGINNING = 10


def main():
    """Measures, prints a table and a line of JSON."""
    number = FLAGS.models or (14 if FLAGS.quick else 60)
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        cluster = stack.enter_context(
            clusters.Cluster(
                (many_models.worker, FLAGS.strategy, FLAGS.units),
                (surviving.serve, directory, 5.0),
                workers=FLAGS.workers,
                forked=True,
            )
        )
        plain = children.Child(
            "plain Keras",
            many_models.plain,
            FLAGS.units,
            environ=clusters.ENVIRONMENT,
            forked=True,
        )
        stack.callback(plain.kill)
        plain.wait_until_built()
        cluster.wait_until_built()
        processes = (*cluster.servers, *cluster.workers, plain)
        print(f"{'models':>8} {'server':>8} {'worker':>8} {'Keras':>8}")
        found = []
        for model in range(number):
            plain.tell()
            left = cluster.ask_all(timeout=600.0)
            plain.answer(timeout=600.0)
            found.append([children.resident_mb(p.pid) for p in processes])
            server_mb, *worker_mb, plain_mb = found[-1]
            print(
                f"{model + 1:>8} {server_mb:>8.1f} {max(worker_mb):>8.1f} "
                f"{plain_mb:>8.1f}",
                flush=True,
            )
    tenth, last = found[BEGINNING - 1], found[-1]
    grows_most = max(
        range(1, FLAGS.workers + 1), key=lambda k: last[k] / tenth[k]
    )
    figures = {
        "strategy": FLAGS.strategy,
        "models": number,
        "variables_left": max(left),
    }
    print(f"From model {BEGINNING} to {number}:")
    for name, k in (("server", 0), ("worker", grows_most), ("keras", -1)):
        percent = 100 * (last[k] / tenth[k] - 1)
        kb = 1024 * (last[k] - tenth[k]) / (number - BEGINNING)
        print(f"{name:>8} {percent:+.1f} %, {kb:,.0f} kB for each model")
        figures[f"{name}_mb"] = [round(tenth[k], 1), round(last[k], 1)]
        figures[f"{name}_growth_percent"] = round(percent, 2)
        figures[f"{name}_kb_per_model"] = round(kb)
    program.report("model_memory", **figures)


if __name__ == "__main__":
    program.run(main)
