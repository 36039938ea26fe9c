"""Memory of models that are built, fitted and deleted one after the other.

    python benchmarks/model_memory.py [--quick] [--strategy=AsyncStrategy]

One server that writes snapshots, and workers of one strategy that do what
KerasTuner, cross-validation and notebooks do. How much the resident memory of
the server, and of the worker that grows most, has grown from the tenth model
to the last is the figure that counts: it should be within 5 %.
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
        cluster.wait_until_built()
        print(f"{'models':>8} {'server':>8} {'worker':>8} {'left':>8}")
        found = []
        for model in range(number):
            left = cluster.ask_all(timeout=600.0)
            processes = (*cluster.servers, *cluster.workers)
            found.append([children.resident_mb(p.pid) for p in processes])
            server_mb, *worker_mb = found[-1]
            print(
                f"{model + 1:>8} {server_mb:>8.1f} {max(worker_mb):>8.1f} "
                f"{max(left):>8}",
                flush=True,
            )
    growth = [
        round(100 * (last / tenth - 1), 2)
        for tenth, last in zip(found[BEGINNING - 1], found[-1], strict=True)
    ]
    figures = {
        "strategy": FLAGS.strategy,
        "models": number,
        "server_mb": [
            round(mb[0], 1) for mb in (found[BEGINNING - 1], found[-1])
        ],
        "server_growth_percent": growth[0],
        "worker_growth_percent": max(growth[1:]),
    }
    print(
        f"From model {BEGINNING} to {number}: server {growth[0]:+.1f} %, "
        f"worker {max(growth[1:]):+.1f} %."
    )
    program.report("model_memory", **figures)


if __name__ == "__main__":
    program.run(main)
