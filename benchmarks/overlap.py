"""What it would give to exchange beside the next batch's computation.

A step that sends the gradients of the batch before need not wait for its own:
the exchange runs while it computes. Every gradient is then one update staler.
`tfdist` does not do so yet; this measures what it could gain on this machine,
with matrix products for a model, over one server process on loopback.
"""

import functools

from absl import flags
from harness import clusters
from harness import exchanging
from harness import program

from tfdist import tables

FLAGS = flags.FLAGS
flags.DEFINE_bool("quick", False, "Fewer rounds: under a minute in all.")
flags.DEFINE_integer("variables", 100, "Number of variables.", lower_bound=1)
flags.DEFINE_integer("size", 10_000, "Floats in each.", lower_bound=1)
flags.DEFINE_integer("matrix", 512, "Rows of a matrix.", lower_bound=1)
flags.DEFINE_integer("products", 8, "Products per step.", lower_bound=1)

KINDS = ("compute", "exchange", "after", "beside")


def main():
    """Measures, prints a table and a line of JSON."""
    rounds, count = (5, 20) if FLAGS.quick else (15, 50)
    shape = FLAGS.variables, FLAGS.size, FLAGS.matrix, FLAGS.products
    with clusters.Cluster((exchanging.build_overlapping, *shape)) as cluster:
        cluster.wait_until_built()
        for kind in KINDS:
            cluster.ask(kind, 4)
        turns = {k: functools.partial(cluster.ask, k, count) for k in KINDS}
        seconds = program.take_turns(turns, rounds)
    figures = {f"{k}_ms": program.milliseconds(s) for k, s in seconds.items()}
    figures["beside_over_after"] = program.median_ratio(
        seconds["beside"], seconds["after"]
    )
    rows = [[name, f"{value:.3f}"] for name, value in figures.items()]
    print(tables.aligned(["figure", ""], rows))
    program.report("overlap", **figures)


if __name__ == "__main__":
    program.run(main)
