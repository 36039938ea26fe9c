"""Time and bytes of an update of all workers: through a server, or in a ring.

    python benchmarks/topology.py [--quick] [--workers=1,2,4,8]

Workers average their weights after every step, through one parameter server and
with `communication="ring"`, on this machine. Gradients are constant: they cost
nothing. Both clusters of a size take turns; times are medians over the rounds,
bytes those of the journals (of a ring, what its algorithm sends).

What one machine can show: bytes, exactly, and what an exchange costs it. What
it cannot: that a server becomes the bottleneck. All processes share its cores
and its memory, no link is narrower than another, and both topologies move
about 2 N M bytes in all, for N workers and M bytes of parameters. On a network
the busiest link decides: so its bytes, and the time that they would take at 10
Gbit/s, stand beside. The tree is FireCaffe's (Iandola et al. 2016), computed.
"""

import contextlib
import json
import math
import statistics

from absl import app
from absl import flags
from harness import children
from harness import summing_worker

from tfdist.cli import local_cluster
from tfdist.cluster import environment

FLAGS = flags.FLAGS
flags.DEFINE_bool("quick", False, "A smaller model, fewer workers and rounds.")
flags.DEFINE_list("workers", None, "Default: 1,2,4,8, or 1,2,4 if --quick.")
flags.DEFINE_list(
    "topologies",
    list(summing_worker.TOPOLOGIES),
    f"Of {', '.join(summing_worker.TOPOLOGIES)}.",
)
flags.DEFINE_integer(
    "rounds", None, "Rounds. Default: 15, or 5 if --quick.", lower_bound=1
)
flags.DEFINE_integer(
    "steps", None, "Updates per turn. Default: 20, or 10 if --quick.", 1
)
flags.register_validator(
    "workers",
    lambda texts: (
        texts is None or all(t.isdigit() and int(t) > 0 for t in texts)
    ),
    "must be positive integers",
)
flags.register_validator(
    "topologies",
    lambda names: names and set(names) <= set(summing_worker.TOPOLOGIES),
    f"must be some of {', '.join(summing_worker.TOPOLOGIES)}",
)

VARIABLES = 20
SIZE, QUICK_SIZE = 50_000, 5_000
WARM_UP_STEPS = 5
BYTES_PER_SECOND = 10e9 / 8
_ENVIRONMENT = {
    **environment.RUNTIME_ENVIRONMENT,
    "OPENBLAS_NUM_THREADS": "1",
    # At the end all are killed, and need not say that others have gone.
    "TF_CPP_MIN_LOG_LEVEL": "3",
}


def main(argv):
    """Measures, prints a table and a line of JSON."""
    if len(argv) > 1:
        raise app.UsageError(f"This script takes flags only, got {argv[1:]}.")
    quick = FLAGS.quick
    counts = FLAGS.workers or (("1", "2", "4") if quick else "1248")
    rounds = FLAGS.rounds or (5 if quick else 15)
    steps = FLAGS.steps or (10 if quick else 20)
    size = QUICK_SIZE if quick else SIZE
    model_bytes = 4 * VARIABLES * size
    figures = {}
    for count in map(int, counts):
        turns = measure(count, size, rounds, steps)
        figures[count] = {
            topology: summarize(topology, count, values)
            for topology, values in turns.items()
        }
        figures[count]["tree"] = tree(count, model_bytes)
    show(figures, model_bytes)
    print(
        json.dumps(
            {
                "benchmark": "topology",
                "model_bytes": model_bytes,
                "workers": figures,
            }
        )
    )


def measure(num_workers, size, rounds, steps):
    """Lets the topologies take turns.

    Args:
        num_workers: of each cluster.
        size: elements of each variable.
        rounds: number of turns of each.
        steps: updates per turn.

    Returns:
        Topology -> list of turns, each a list with one (seconds, bytes sent,
        bytes received) per worker.
    """
    with contextlib.ExitStack() as stack:
        clusters = {
            topology: _start(stack, topology, num_workers, size)
            for topology in FLAGS.topologies
        }
        for workers in clusters.values():
            for worker in workers:
                worker.wait_until_built()
        for workers in clusters.values():
            _ask(workers, WARM_UP_STEPS)
        turns = {topology: [] for topology in clusters}
        for _ in range(rounds):
            for topology, workers in clusters.items():
                turns[topology].append(_ask(workers, steps))
        return turns


def _start(stack, topology, num_workers, size):
    """Starts the processes of a cluster; returns its workers."""
    servers = 1 if topology == "parameter_server" else 0
    cluster = stack.enter_context(
        local_cluster.LocalCluster({"ps": servers, "worker": num_workers})
    )
    workers = []
    for task in cluster.tasks:
        what = (summing_worker.strategy, topology)
        if task.job == "worker":
            what = (summing_worker.worker, topology, VARIABLES, size)
        child = children.Child(
            f"{topology}: {task.label}",
            *what,
            environ={**_ENVIRONMENT, "TF_CONFIG": task.tf_config},
            forked=True,
        )
        stack.callback(child.kill)
        if task.job == "worker":
            workers.append(child)
    return workers


def _ask(workers, steps):
    for worker in workers:
        worker.tell(steps)
    return [worker.answer() for worker in workers]


def summarize(topology, num_workers, turns):
    """The figures of one topology, from what `measure` returns."""
    seconds = [max(worker[0] for worker in turn) for turn in turns]
    sent = max(worker[1] for worker in turns[-1])
    received = max(worker[2] for worker in turns[-1])
    # A server gets what all workers send; one worker alone sends nothing.
    times = num_workers if topology == "parameter_server" else num_workers > 1
    return {
        "ms_per_update": round(1e3 * statistics.median(seconds), 2),
        **_link(times * sent, times * received),
    }


def tree(num_workers, model_bytes):
    """What the root of a reduction tree would send and receive."""
    rounds = math.ceil(math.log2(num_workers))
    return _link(rounds * model_bytes, rounds * model_bytes)


def _link(sent, received):
    """The busiest link. It carries both ways at the same time."""
    seconds = max(sent, received) / BYTES_PER_SECOND
    return {
        "busiest_link_bytes": sent + received,
        "ms_at_10_gbps": round(1e3 * seconds, 2),
    }


def show(figures, model_bytes):
    """Prints the table."""
    print(f"{model_bytes / 1e6:.2f} MB of parameters")
    print(
        f"{'workers':>8}{'topology':>18}{'ms per update':>15}"
        f"{'busiest link, MB':>18}{'at 10 Gbit/s, ms':>18}"
    )
    for count, rows in figures.items():
        for topology, row in rows.items():
            taken = row.get("ms_per_update")
            print(
                f"{count:>8}{topology:>18}"
                f"{'' if taken is None else f'{taken:.2f}':>15}"
                f"{row['busiest_link_bytes'] / 1e6:18.2f}"
                f"{row['ms_at_10_gbps']:18.2f}"
            )


if __name__ == "__main__":
    app.run(main)
