"""How many starts of clusters fail when all threads begin at the same moment.

    python benchmarks/startups.py [--quick] [--starts=600] [--eagerly]

A cluster has one server and two workers, all of them new processes. When both
workers are members, three threads of each begin to call functions on the server
while the main thread calls 60 others, each for the first time: more than
training ever does at once. With `--eagerly` those threads do so through
TensorFlow's eager runtime, as tfdist's heartbeats did once: the vector that a
call looks into moves when another thread's first call makes it grow.
"""

from absl import flags
from harness import children
from harness import clusters
from harness import program
from harness import starting

FLAGS = flags.FLAGS
flags.DEFINE_bool("quick", False, "A few starts: under a minute in all.")
flags.DEFINE_integer(
    "starts", None, "Clusters. Default: 100, or 5 if --quick.", lower_bound=1
)
flags.DEFINE_bool(
    "eagerly", False, "Whether threads use the eager runtime, not sessions."
)


def main():
    """Starts them, prints what failed and a line of JSON."""
    starts = FLAGS.starts or (5 if FLAGS.quick else 100)
    failed = 0
    for number in range(1, starts + 1):
        try:
            start(FLAGS.eagerly)
        except children.ChildError as error:
            failed += 1
            print(f"{number:>6} {str(error).splitlines()[-1]}", flush=True)
        if not number % 50:
            print(f"{number:>6} starts, {failed} failed", flush=True)
    figures = {"starts": starts, "failed": failed, "eagerly": FLAGS.eagerly}
    program.report("startups", **figures)


def start(eagerly):
    """Starts a cluster and ends it.

    Args:
        eagerly: see `starting.build`.

    Raises:
        ChildError: A worker has died or failed.
    """
    with clusters.Cluster(
        (starting.build, eagerly), workers=2, forked=True
    ) as cluster:
        cluster.wait_until_built()
        cluster.ask_all()


if __name__ == "__main__":
    program.run(main)
