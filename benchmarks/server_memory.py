"""Memory of a parameter server over many steps and many workers' lives.

    python benchmarks/server_memory.py [--quick]

One server that writes snapshots, and one worker. First the worker trains;
then it is killed (SIGKILL) and another one takes its place, again and again.
What counts is how the server's resident memory grows, as the slope of a line
through what was measured, after a beginning in which allocators fill up.
"""

import contextlib
import json
import tempfile

from absl import app
from absl import flags
from harness import children
import numpy as np

FLAGS = flags.FLAGS
flags.DEFINE_bool("quick", False, "Fewer steps: under a minute in all.")
flags.DEFINE_integer(
    "steps", None, "Steps. Default: 20000, or 1500 if --quick.", lower_bound=100
)
flags.DEFINE_integer(
    "workers",
    None,
    "Workers that take the place of the first, one after the other. Default: "
    "30, or 3 if --quick.",
    lower_bound=1,
)
flags.DEFINE_integer("variables", 20, "Parameters.", lower_bound=1)
flags.DEFINE_integer("size", 10_000, "Elements of each.", lower_bound=1)

LOOKS = 20
# Of these the first quarter is left out.
BEGINNING = 4


def main(argv):
    """Measures, prints a table and a line of JSON."""
    if len(argv) > 1:
        raise app.UsageError(f"This script takes flags only, got {argv[1:]}.")
    steps = FLAGS.steps or (1500 if FLAGS.quick else 20000)
    workers = FLAGS.workers or (3 if FLAGS.quick else 30)
    # Here, because it takes seconds to import TensorFlow, which the processes
    # that import this file do not all need.
    from harness import clusters
    from harness import surviving
    from harness import tfdist_cluster

    from tfdist.cli import local_cluster

    models = {"model": (FLAGS.variables, FLAGS.size)}
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        ports = stack.enter_context(
            local_cluster.LocalCluster({"ps": 1, "worker": 1})
        )
        environ = {t.job: clusters.environ_of(t) for t in ports.tasks}
        server = children.Child(
            "server", surviving.serve, directory, 2.0, environ=environ["ps"]
        )
        stack.callback(server.kill)

        def start():
            made = children.Child(
                "worker",
                tfdist_cluster.exchanging_worker,
                models,
                1e-3,
                1e-3,
                environ=environ["worker"],
                forked=True,
            )
            made.wait_until_built()
            made.ask("model", 20)
            return made

        worker = start()
        print(f"{'':>8} {'steps':>8} {'MB':>8}")
        by_steps = []
        for look in range(LOOKS):
            worker.ask("model", steps // LOOKS, timeout=600.0)
            by_steps.append(resident_mb(server.pid))
            made = (look + 1) * (steps // LOOKS)
            print(f"{'':>8} {made:>8} {by_steps[-1]:>8.1f}", flush=True)
        print(f"{'workers':>8}")
        by_workers = []
        for number in range(workers):
            worker.kill()
            worker = start()
            by_workers.append(resident_mb(server.pid))
            print(f"{number + 1:>8} {'':>8} {by_workers[-1]:>8.1f}", flush=True)
        worker.kill()
    figures = {
        "steps": steps,
        "mb_first": round(by_steps[BEGINNING], 1),
        "mb_last": round(by_steps[-1], 1),
        "mb_per_1000_steps": round(
            slope(by_steps[BEGINNING:]) * LOOKS / steps * 1000, 3
        ),
        "workers": workers,
        "mb_after_workers": round(by_workers[-1], 1),
        "mb_per_worker": round(slope(by_workers), 3),
    }
    print(
        f"{figures['mb_per_1000_steps']:+.2f} MB per 1000 steps, "
        f"{figures['mb_per_worker']:+.2f} MB per worker that came and went."
    )
    print(json.dumps({"benchmark": "server_memory", **figures}))


def resident_mb(pid):
    """Resident memory of a process in megabytes."""
    with open(f"/proc/{pid}/status") as status:
        for line in status:
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
    raise RuntimeError(f"Process {pid} has ended.")


def slope(values):
    """Of the line through values at 0, 1, ..."""
    if len(values) < 2:
        return 0.0
    return float(np.polyfit(np.arange(len(values)), values, 1)[0])


if __name__ == "__main__":
    app.run(main)
