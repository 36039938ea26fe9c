"""What it would give to exchange beside the next batch's computation.

A step that sends the gradients of the batch before need not wait for its own:
the exchange runs while it computes. Every gradient is then one update staler.
`tfdist` does not do so yet; this measures what it could gain on this machine,
with matrix products for a model, over one server process on loopback.
"""

import contextlib
import json
import statistics

from absl import app
from absl import flags
from harness import overlapping_worker
from harness import tfdist_cluster

FLAGS = flags.FLAGS
flags.DEFINE_bool("quick", False, "Fewer rounds: under a minute in all.")
flags.DEFINE_integer("variables", 100, "Number of variables.", lower_bound=1)
flags.DEFINE_integer("size", 10_000, "Floats in each.", lower_bound=1)
flags.DEFINE_integer("matrix", 512, "Rows of a matrix.", lower_bound=1)
flags.DEFINE_integer("products", 8, "Products per step.", lower_bound=1)

KINDS = ("compute", "exchange", "after", "beside")


def main(argv):
    """Measures, prints a table and a line of JSON."""
    if len(argv) > 1:
        raise app.UsageError(f"This script takes flags only, got {argv[1:]}.")
    # Here, because it takes seconds to import TensorFlow, which the processes
    # that import this file do not all need.
    from harness import clusters

    rounds, count = (5, 20) if FLAGS.quick else (15, 50)
    seconds = {kind: [] for kind in KINDS}
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(
            clusters.TfdistCluster(
                tfdist_cluster.serve,
                overlapping_worker.build,
                FLAGS.variables,
                FLAGS.size,
                FLAGS.matrix,
                FLAGS.products,
            )
        )
        cluster.wait_until_built()
        for kind in KINDS:
            cluster.ask(kind, 4)
        for _ in range(rounds):
            for kind in KINDS:
                seconds[kind].append(cluster.ask(kind, count))
    figures = {
        f"{kind}_ms": round(1e3 * statistics.median(values), 3)
        for kind, values in seconds.items()
    }
    figures["beside_over_after"] = round(
        statistics.median(
            b / a
            for a, b in zip(seconds["after"], seconds["beside"], strict=True)
        ),
        3,
    )
    for name, value in figures.items():
        print(f"{name:>18} {value:9.3f}")
    print(json.dumps({"benchmark": "overlap", **figures}))


if __name__ == "__main__":
    app.run(main)
