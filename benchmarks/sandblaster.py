"""Seconds of an evaluation over all data when a worker is slow.

    python benchmarks/sandblaster.py [--quick]

Two servers and four workers on this machine minimize with L-BFGS. A batch
sleeps, which stands for the device's computation, and on the last worker five
times as long. The data is handed out in many portions with backup tasks, in
many portions without, and in one portion for each worker. The ideal is what the
sum of all workers' speeds allows; with fixed shares an evaluation takes as long
as the slowest worker.
"""

import statistics

from absl import flags
from harness import clusters
from harness import minimizing
from harness import program

from tfdist import tables

FLAGS = flags.FLAGS
flags.DEFINE_bool("quick", False, "Fewer iterations.")
flags.DEFINE_integer("workers", 4, "Number of workers.", lower_bound=2)
flags.DEFINE_integer("batches", 64, "Batches of the data.", lower_bound=1)
flags.DEFINE_float("batch_seconds", 0.1, "Of a batch.", lower_bound=0)
flags.DEFINE_float("slow_times", 5.0, "How many times as long the last takes.")
flags.DEFINE_integer("size", 100, "Number of parameters.", lower_bound=1)

# The aim, times the ideal.
MOST_OVER_IDEAL = 1.3
_NO_BACKUP = 1e9
_SECONDS = 300.0
# portions_per_worker and backup_after.
WAYS = {
    "portions and backup tasks": (8, 2.0),
    "portions": (8, _NO_BACKUP),
    "fixed shares": (1, _NO_BACKUP),
}


def seconds_of(way, iterations):
    """Seconds of each evaluation, a list, and the portions by worker."""
    seconds = [FLAGS.batch_seconds] * FLAGS.workers
    seconds[-1] *= FLAGS.slow_times
    with clusters.Cluster(
        (minimizing.worker, *WAYS[way], FLAGS.batches, seconds, FLAGS.size),
        (minimizing.serve,),
        ps=2,
        workers=FLAGS.workers,
        forked=True,
    ) as cluster:
        cluster.wait_until_built()
        answers = cluster.ask_all(iterations + 1, timeout=_SECONDS)
    # The first iteration traces the graphs.
    made, counts = answers[0]
    return [took / evaluations for took, evaluations in made[1:]], counts


def main():
    """Measures, prints a table and a line of JSON."""
    iterations = 2 if FLAGS.quick else 6
    speed = (FLAGS.workers - 1 + 1 / FLAGS.slow_times) / FLAGS.batch_seconds
    ideal = FLAGS.batches / speed
    rows, figures = [], {"ideal_seconds": round(ideal, 3)}
    for way in WAYS:
        seconds, counts = seconds_of(way, iterations)
        median = statistics.median(seconds)
        counted = [one["counted"] for one in counts.values()]
        late = sum(one["late"] for one in counts.values())
        rows.append(
            [
                way,
                f"{median:.2f}",
                f"{median / ideal:.2f}",
                " ".join(map(str, counted)),
                str(late),
            ]
        )
        figures[way.replace(" ", "_")] = round(median, 3)
    names = ["way", "seconds", "of ideal", "portions by worker", "late"]
    print(tables.aligned(names, rows))
    print(f"Ideal: {ideal:.2f} s for an evaluation.")
    figures["over_ideal"] = round(
        figures["portions_and_backup_tasks"] / ideal, 3
    )
    figures["aim_over_ideal"] = MOST_OVER_IDEAL
    program.report("sandblaster", **figures)


if __name__ == "__main__":
    program.run(main)
