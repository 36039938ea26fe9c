"""Memory of a parameter server over many steps and many workers' lives.

    python benchmarks/server_memory.py [--quick]

One server that writes snapshots, and one worker. First the worker trains: how
the server's resident memory grows with the steps is the slope of a line through
what was measured, after a beginning in which allocators fill up.

Then the worker is killed (SIGKILL) and another one takes its place, again and
again. A server keeps what is of a client for a minute after its last sign of
life; so that is done in rounds with a pause between them, and what counts is
how much the server holds at the end of the last pause beyond that of the first.
"""

import contextlib
import tempfile
import time

from absl import flags
from harness import children
from harness import clusters
from harness import exchanging
from harness import program
from harness import surviving
import numpy as np

FLAGS = flags.FLAGS
flags.DEFINE_bool("quick", False, "Fewer steps: under a minute in all.")
flags.DEFINE_integer(
    "steps", None, "Steps. Default: 20000, or 1500 if --quick.", lower_bound=100
)
flags.DEFINE_integer(
    "workers",
    None,
    "Workers of each round, one after the other. Default: 30, or 3 if --quick.",
    lower_bound=1,
)
flags.DEFINE_integer("variables", 20, "Parameters.", lower_bound=1)
flags.DEFINE_integer("size", 10_000, "Elements of each.", lower_bound=1)

flags.DEFINE_integer(
    "rounds", None, "Default: 3, or 1 if --quick.", lower_bound=1
)

LOOKS = 20
# Seconds after which a server has forgotten who was killed, and some more.
PAUSE = 90.0
# Of these the first quarter is left out.
BEGINNING = 4


def main():
    """Measures, prints a table and a line of JSON."""
    steps = FLAGS.steps or (1500 if FLAGS.quick else 20000)
    workers = FLAGS.workers or (3 if FLAGS.quick else 30)
    rounds = FLAGS.rounds or (1 if FLAGS.quick else 3)
    models = {"model": (FLAGS.variables, FLAGS.size)}
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        cluster = stack.enter_context(
            clusters.Cluster(
                (exchanging.build_models, models, 1e-3, 1e-3),
                (surviving.serve, directory, 2.0),
                forked=True,
            )
        )
        (server,) = cluster.servers

        def warm_up():
            cluster.wait_until_built()
            cluster.ask("model", 20)

        warm_up()
        print(f"{'':>8} {'steps':>8} {'MB':>8}")
        by_steps = []
        for look in range(LOOKS):
            cluster.ask("model", steps // LOOKS, timeout=600.0)
            by_steps.append(children.resident_mb(server.pid))
            made = (look + 1) * (steps // LOOKS)
            print(f"{'':>8} {made:>8} {by_steps[-1]:>8.1f}", flush=True)
        print(f"{'workers':>8}")
        at_once, later, come = [], [], 0
        for _ in range(rounds):
            before = children.resident_mb(server.pid)
            for _ in range(workers):
                cluster.restart("worker")
                warm_up()
                come += 1
                mb = children.resident_mb(server.pid)
                print(f"{come:>8} {'':>8} {mb:>8.1f}", flush=True)
            at_once.append((mb - before) / workers)
            if rounds > 1:
                time.sleep(PAUSE)
                later.append(children.resident_mb(server.pid))
                print(f"{'a pause':>8} {'':>8} {later[-1]:>8.1f}", flush=True)
    lasting = None
    if rounds > 1:
        lasting = (later[-1] - later[0]) / (workers * (rounds - 1))
    figures = {
        "steps": steps,
        "mb_first": round(by_steps[BEGINNING], 1),
        "mb_last": round(by_steps[-1], 1),
        "mb_per_1000_steps": round(
            slope(by_steps[BEGINNING:]) * LOOKS / steps * 1000, 3
        ),
        "workers": workers * rounds,
        "mb_after_rounds": [round(mb, 1) for mb in later],
        "mb_per_worker_at_once": round(at_once[0], 3),
        "mb_per_worker_lasting": lasting and round(lasting, 3),
    }
    print(
        f"{figures['mb_per_1000_steps']:+.2f} MB per 1000 steps. "
        f"{at_once[0]:+.2f} MB for a minute per worker that came and went"
        + (f", {lasting:+.2f} MB for ever." if rounds > 1 else ".")
    )
    program.report("server_memory", **figures)


def slope(values):
    """Of the line through values at 0, 1, ..."""
    if len(values) < 2:
        return 0.0
    return float(np.polyfit(np.arange(len(values)), values, 1)[0])


if __name__ == "__main__":
    program.run(main)
