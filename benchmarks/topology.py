"""Time and bytes of an update of all workers: through servers, ring or tree.

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

The second table plays one sum message by message on the simulator's network,
for 8 to 512 workers: one, two, eight and as many servers as workers, ring,
tree, and halving and doubling (`tfdist.simulation.reductions`).
"""

import contextlib
import functools
import itertools
import math
import statistics

from absl import flags
from harness import clusters
from harness import exchanging
from harness import program

from tfdist import tables
from tfdist.simulation import Network
from tfdist.simulation import reductions

FLAGS = flags.FLAGS
flags.DEFINE_bool("quick", False, "A smaller model, fewer workers and rounds.")
flags.DEFINE_list("workers", None, "Default: 1,2,4,8, or 1,2,4 if --quick.")
flags.DEFINE_list(
    "topologies",
    list(exchanging.TOPOLOGIES),
    f"Of {', '.join(exchanging.TOPOLOGIES)}.",
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
    lambda names: names and set(names) <= set(exchanging.TOPOLOGIES),
    f"must be some of {', '.join(exchanging.TOPOLOGIES)}",
)

VARIABLES = 20
SIZE, QUICK_SIZE = 50_000, 5_000
WARM_UP_STEPS = 5
BYTES_PER_SECOND = 10e9 / 8
# Gigabits per second -> seconds of latency.
NETWORKS = {10: 5e-5, 100: 1e-5}
# Of each server's share, which overlap.
PIECES = 8
MEGABYTES = (0.04, 1.0, 100.0)
SIMULATED_WORKERS = (8, 32, 128, 512)


def main():
    """Measures, prints a table and a line of JSON."""
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
    simulated = list(simulate(SIMULATED_WORKERS[:2] if quick else None))
    show_simulated(simulated)
    program.report(
        "topology",
        model_bytes=model_bytes,
        workers=figures,
        simulated=simulated,
    )


def simulate(workers=None):
    """Yields a dict for each network, size and number of workers, in ms."""
    ways = {
        "1 server": functools.partial(reductions.servers, pieces=PIECES),
        "2 servers": functools.partial(
            reductions.servers, num_servers=2, pieces=PIECES
        ),
        "8 servers": functools.partial(
            reductions.servers, num_servers=8, pieces=PIECES
        ),
        "N servers": lambda network, count, size: reductions.servers(
            network, count, size, num_servers=count, pieces=PIECES
        ),
        "ring": reductions.ring,
        "tree": reductions.tree,
        "halving": reductions.halving_and_doubling,
    }
    for (gbps, latency), megabytes, count in itertools.product(
        NETWORKS.items(), MEGABYTES, workers or SIMULATED_WORKERS
    ):
        network = Network(latency_seconds=latency, bandwidth_gbps=gbps)
        yield {
            "gbps": gbps,
            "megabytes": megabytes,
            "workers": count,
            **{
                name: round(1e3 * way(network, count, 1e6 * megabytes), 3)
                for name, way in ways.items()
            },
        }


def show_simulated(rows):
    """Prints the second table."""
    titles = list(rows[0])
    print("\nOne sum on the simulator's network, ms")
    print(
        tables.aligned(
            titles,
            [[tables.amount(row[name]) for name in titles] for row in rows],
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
        started = {
            topology: stack.enter_context(
                clusters.Cluster(
                    (exchanging.build_averaging, topology, VARIABLES, size),
                    (exchanging.averaging, topology),
                    ps=int(topology == "parameter_server"),
                    workers=num_workers,
                    forked=True,
                    name=topology,
                )
            )
            for topology in FLAGS.topologies
        }
        for cluster in started.values():
            cluster.wait_until_built()
        for cluster in started.values():
            cluster.ask_all(WARM_UP_STEPS)
        turns = {
            topology: functools.partial(cluster.ask_all, steps)
            for topology, cluster in started.items()
        }
        return program.take_turns(turns, rounds)


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
    rows = [
        [
            str(count),
            topology,
            tables.number(row.get("ms_per_update"), 2),
            f"{row['busiest_link_bytes'] / 1e6:.2f}",
            f"{row['ms_at_10_gbps']:.2f}",
        ]
        for count, of_count in figures.items()
        for topology, row in of_count.items()
    ]
    titles = ["workers", "topology", "ms per update"]
    titles += ["busiest link, MB", "at 10 Gbit/s, ms"]
    print(tables.aligned(titles, rows, left=2))


if __name__ == "__main__":
    program.run(main)
