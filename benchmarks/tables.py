"""A table on servers, read by rows, beside replicas and TensorFlow's own.

    python benchmarks/tables.py [--quick] [--rows=1000000] [--ps=1]
        [--workers=2] [--system=table --system=sync_table ...]

The workers train `Embedding(rows, 64)` with a head of two dense layers on
batches of 256 times 20 Zipf ids: some 2,900 different ones. With
`table_bytes` the table lives on the servers alone, also if it is dynamic;
without, each worker has a replica, and the servers send the rows that have
changed. With `loop`, steps are taken in a bare loop instead of `fit`, as with
TensorFlow's own strategy, which runs without Keras. For each rule milliseconds
per step of a worker, the largest peak of the memory of a worker (or
coordinator) and of a server, and the processor time of all servers per step.

All take turns within one run. With `--system=sync_table` and `sync`, `Sync()`
trains with tables and without.
"""

import contextlib
import functools

from absl import flags
from harness import children
from harness import clusters
from harness import looking_up
from harness import program

from tfdist import tables

FLAGS = flags.FLAGS
flags.DEFINE_bool("quick", False, "SGD alone, fewer steps.")
flags.DEFINE_integer("rows", 1_000_000, "Of the table.", lower_bound=1)
flags.DEFINE_integer("ps", 1, "Servers.", lower_bound=1)
flags.DEFINE_multi_enum(
    "optimizer", None, list(looking_up.RATES), "Default: all."
)
flags.DEFINE_multi_enum(
    "system",
    None,
    [
        "table",
        "loop",
        "dynamic",
        "replicas",
        "tensorflow",
        "sync_table",
        "sync",
    ],
    "Default: the first five.",
)
flags.DEFINE_integer("workers", 2, "Of each system.", lower_bound=1)

# Arguments of `looking_up.worker`.
OURS = {
    "table": {"table_bytes": 1},
    "loop": {"table_bytes": 1, "in_loop": True},
    "dynamic": {"table_bytes": 1, "dynamic": True},
    "replicas": {"table_bytes": None},
    "sync_table": {"table_bytes": 1, "method": "sync"},
    "sync": {"table_bytes": None, "method": "sync"},
}
DEFAULT = ("table", "loop", "dynamic", "replicas", "tensorflow")
STEPS, QUICK_STEPS = 100, 20
ROUNDS = 3


def main():
    """Measures, prints a table and a line of JSON."""
    default = ["sgd"] if FLAGS.quick else list(looking_up.RATES)
    found = {name: measure(name) for name in FLAGS.optimizer or default}
    rows = [
        [
            f"{rule}, {system}",
            f"{cell['ms']:.1f}",
            f"{cell['worker_mb']:.0f}",
            f"{cell['server_mb']:.0f}",
            f"{cell['server_cpu_ms']:.1f}",
        ]
        for rule, cells in found.items()
        for system, cell in cells.items()
    ]
    titles = ["rule, system", "ms / step", "worker MB", "server MB"]
    print(tables.aligned([*titles, "server CPU ms"], rows))
    program.report(
        "tables",
        rows=FLAGS.rows,
        ps=FLAGS.ps,
        workers=FLAGS.workers,
        step=found,
    )


def measure(optimizer):
    """What one rule takes in each system, a dict.

    Args:
        optimizer: a key of `looking_up.RATES`.
    """
    steps = QUICK_STEPS if FLAGS.quick else STEPS
    chosen = FLAGS.system or DEFAULT
    with contextlib.ExitStack() as stack:
        systems = {}
        for name, settings in OURS.items():
            if name not in chosen:
                continue
            systems[name] = stack.enter_context(
                clusters.Cluster(
                    (
                        functools.partial(looking_up.worker, **settings),
                        optimizer,
                        FLAGS.rows,
                    ),
                    (looking_up.serve,),
                    ps=FLAGS.ps,
                    workers=FLAGS.workers,
                    forked=True,
                )
            )
        if "tensorflow" in chosen:
            systems["tensorflow"] = stack.enter_context(
                clusters.TensorFlowCluster(
                    optimizer,
                    FLAGS.rows,
                    FLAGS.ps,
                    FLAGS.workers,
                    coordinator=looking_up.coordinator,
                    ps=FLAGS.ps,
                    workers=FLAGS.workers,
                    forked=True,
                )
            )
        for system in systems.values():
            system.wait_until_built()
            system.ask_all(3, timeout=300.0)
        turns = {
            name: lambda system=system: turn(system, steps)
            for name, system in systems.items()
        }
        taken = program.take_turns(turns, 1 if FLAGS.quick else ROUNDS)
    return {
        name: {
            "ms": program.milliseconds([t["seconds"] for t in some]),
            "worker_mb": round(max(t["worker_mb"] for t in some)),
            "server_mb": round(max(t["server_mb"] for t in some)),
            "server_cpu_ms": program.milliseconds([t["cpu"] for t in some]),
        }
        for name, some in taken.items()
    }


def turn(system, steps):
    """Takes steps in one system; what they cost, a dict."""
    pids = system.server_pids
    before = children.all_cpu_seconds(pids)
    answers = system.ask_all(steps, timeout=600.0)
    cpu = children.all_cpu_seconds(pids) - before
    others = set(system.pids) - set(pids)
    return {
        "seconds": sum(answers) / len(answers),
        "worker_mb": children.peak_mb(others),
        "server_mb": children.peak_mb(pids),
        # Of as many steps as workers have taken together.
        "cpu": cpu / (FLAGS.workers * steps),
    }


if __name__ == "__main__":
    program.run(main)
