"""Seconds of an epoch when a worker is slow, with shares and with portions.

    python benchmarks/work_queue.py [--quick]

One server and four workers on this machine train in `fit` under
`AsyncStrategy`. A batch sleeps, which stands for the device's computation, and
on the last worker five times as long. The ideal is what the sum of all workers'
speeds allows; with shares an epoch takes as long as the slowest worker.
"""

import statistics

from absl import flags
from harness import clusters
from harness import program
from harness import queueing

from tfdist import tables

FLAGS = flags.FLAGS
flags.DEFINE_bool("quick", False, "Fewer epochs.")
flags.DEFINE_integer("workers", 4, "Number of workers.", lower_bound=2)
flags.DEFINE_integer("batches", 128, "Batches of the data.", lower_bound=1)
flags.DEFINE_float("batch_seconds", 0.05, "Of a batch.", lower_bound=0)
flags.DEFINE_float("slow_times", 5.0, "How many times as long the last takes.")

_SECONDS = 300.0


def seconds_of(work, epochs):
    """Seconds of each epoch, a list, and the batches by worker."""
    seconds = [FLAGS.batch_seconds] * FLAGS.workers
    seconds[-1] *= FLAGS.slow_times
    with clusters.Cluster(
        (queueing.worker, work, FLAGS.batches, seconds),
        (queueing.serve,),
        ps=1,
        workers=FLAGS.workers,
        forked=True,
    ) as cluster:
        cluster.wait_until_built()
        # The first epoch traces the graphs.
        answers = cluster.ask_all(epochs + 1, timeout=_SECONDS)
    took = []
    for times in zip(*(times for times, _ in answers), strict=True):
        begins, ends = zip(*times, strict=True)
        took.append(max(ends) - min(begins))
    return took[1:], [pushed for _, pushed in answers]


def main():
    """Measures, prints a table and a line of JSON."""
    epochs = 1 if FLAGS.quick else 5
    speed = (FLAGS.workers - 1 + 1 / FLAGS.slow_times) / FLAGS.batch_seconds
    ideal = FLAGS.batches / speed
    rows, figures = [], {"ideal_seconds": round(ideal, 3)}
    for work in ("shares", "queue"):
        seconds, pushed = seconds_of(work, epochs)
        median = statistics.median(seconds)
        rows.append(
            [
                work,
                f"{median:.2f}",
                f"{median / ideal:.2f}",
                " ".join(map(str, pushed)),
            ]
        )
        figures[work] = round(median, 3)
    print(
        tables.aligned(
            ["work", "seconds", "of ideal", "batches by worker"], rows
        )
    )
    print(f"Ideal: {ideal:.2f} s for an epoch.")
    figures["shares_over_queue"] = round(
        figures["shares"] / figures["queue"], 2
    )
    program.report("work_queue", **figures)


if __name__ == "__main__":
    program.run(main)
