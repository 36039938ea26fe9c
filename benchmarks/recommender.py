"""A synthetic recommender with 55 tables, on servers.

    python benchmarks/recommender.py [--quick] [--ps=2] [--workers=2]
        [--batch_size=4096]

The model is the smallest that NVIDIA's `distributed-embeddings` is measured by:
55 tables of 4.2 GiB, looked up by 58 features with ids from a power law, and
trained with Adagrad, whose sums take as much again. Two workers train it in
`fit`, asynchronously. The figures are milliseconds per step of a worker,
samples per second of both, and per second of processor time of all processes
(`per core`), and the largest peaks of memory.

`--quick` divides the rows of all tables by 100; at least 10 are left.
"""

import statistics

from absl import flags
from harness import children
from harness import clusters
from harness import looking_up
from harness import program
from harness import synthetic_model

from tfdist import tables

FLAGS = flags.FLAGS
flags.DEFINE_bool("quick", False, "Small tables, few steps.")
flags.DEFINE_integer("ps", 2, "Servers.", lower_bound=1)
flags.DEFINE_integer("workers", 2, "Workers.", lower_bound=1)
flags.DEFINE_integer("batch_size", 4096, "Of one worker.", lower_bound=1)

STEPS, QUICK_STEPS = 30, 10
ROUNDS = 3
SHRINK = 100


def main():
    """Measures, prints a table and a line of JSON."""
    shrink = SHRINK if FLAGS.quick else 1
    steps = QUICK_STEPS if FLAGS.quick else STEPS
    with clusters.Cluster(
        (synthetic_model.worker, FLAGS.batch_size, shrink),
        (looking_up.serve,),
        ps=FLAGS.ps,
        workers=FLAGS.workers,
        forked=True,
    ) as system:
        children.answers(system.workers, 600.0)
        system.ask_all(3, timeout=600.0)
        turns = [
            turn(system, steps) for _ in range(1 if FLAGS.quick else ROUNDS)
        ]
        servers = set(system.server_pids)
        figures = {
            "milliseconds": program.milliseconds([t[0] for t in turns]),
            "samples_per_second": round(
                statistics.median(
                    FLAGS.workers * FLAGS.batch_size / t[0] for t in turns
                )
            ),
            "samples_per_core": round(
                statistics.median(
                    FLAGS.workers * FLAGS.batch_size * steps / t[1]
                    for t in turns
                )
            ),
            "worker_mb": round(children.peak_mb(set(system.pids) - servers)),
            "server_mb": round(children.peak_mb(servers)),
        }
    print(
        tables.aligned(list(figures), [[f"{v:,.0f}" for v in figures.values()]])
    )
    program.report(
        "recommender",
        ps=FLAGS.ps,
        workers=FLAGS.workers,
        batch_size=FLAGS.batch_size,
        shrink=shrink,
        **figures,
    )


def turn(system, steps):
    """Seconds per step of a worker, and processor seconds of all processes."""
    before = children.all_cpu_seconds(system.pids)
    answers = system.ask_all(steps, timeout=600.0)
    used = children.all_cpu_seconds(system.pids) - before
    return sum(answers) / len(answers), used


if __name__ == "__main__":
    program.run(main)
