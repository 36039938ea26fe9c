"""How many starts of clusters fail when all threads begin at the same moment.

    python benchmarks/startups.py [--quick] [--starts=600] [--eagerly]

A cluster has one server and two workers, all of them new processes. When both
workers are members, three threads of each begin to call functions on the server
while the main thread calls 60 others, each for the first time: more than a
training ever does at once. With `--eagerly` those threads do so through
TensorFlow's eager runtime, as tfdist's heartbeats did once: the vector that a
call looks into moves when another thread's first call makes it grow.
"""

import json

from absl import app
from absl import flags
from harness import children

FLAGS = flags.FLAGS
flags.DEFINE_bool("quick", False, "A few starts: under a minute in all.")
flags.DEFINE_integer(
    "starts", None, "Clusters. Default: 100, or 5 if --quick.", lower_bound=1
)
flags.DEFINE_bool(
    "eagerly", False, "Whether threads use the eager runtime, not sessions."
)


def main(argv):
    """Starts them, prints what failed and a line of JSON."""
    if len(argv) > 1:
        raise app.UsageError(f"This script takes flags only, got {argv[1:]}.")
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
    print(json.dumps({"benchmark": "startups", **figures}))


def start(eagerly):
    """Starts a cluster and ends it.

    Args:
        eagerly: see `starting.worker`.

    Raises:
        ChildError: A worker has died or failed.
    """
    # Here, because it takes seconds to import TensorFlow, which the processes
    # that import this file do not all need.
    from harness import clusters
    from harness import starting

    from tfdist.cli import local_cluster

    made = []

    def child(name, environ, *build):
        one = children.Child(name, *build, environ=environ, forked=True)
        made.append(one)
        return one

    with local_cluster.LocalCluster({"ps": 1, "worker": 2}) as cluster:
        try:
            server, *tasks = [clusters.environ_of(t) for t in cluster.tasks]
            child("server", server, starting.serve)
            workers = [
                child(f"worker {k}", environ, starting.worker, eagerly)
                for k, environ in enumerate(tasks)
            ]
            for one in workers:
                one.wait_until_built()
            for one in workers:
                one.tell()
            for one in workers:
                one.answer()
        finally:
            for one in made:
                one.kill()


if __name__ == "__main__":
    app.run(main)
