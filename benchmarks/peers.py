"""Steps per second of tfdist, and of its peers at the same work.

    python benchmarks/peers.py [--quick] [--model=small] [--system=tfdist_async]

Two workers train a multi-layer perceptron on this machine, with Adam, a batch
of 32 and one server where there is one. They have batches of random numbers
that were made before, each worker the same ones again and again. PyTorch is
there with `pip install -e '.[peers]'`, or in any other way; a peer that is not
installed has a row that says so, and one that fails has its error's last line.

What is counted: each worker takes the same number of steps, about as many as
`--seconds` take, after it has warmed up. Steps count from when the last worker
has ended its first until the first has ended its last, and are divided by the
time between. So all workers are active all the time, also where nobody waits
for anybody, and nothing that happens once (connecting, tracing, the beginning
and the end of `fit`) counts. CPU time is that of all processes, over all the
steps of the turn.

What is alike: the shapes, the data, float32, TCP over loopback, TensorFlow's
and the C library's settings (those of `tfdist launch`). Each system has
processes of its own for each turn, alone; the systems take turns. Ratios are
those within a round; what is shown is the median over the rounds. What is not
alike: `fit` keeps the mean of the loss, the loops do not. Under TensorFlow's
`ParameterServerStrategy` Keras's optimizers do not run, so it has TensorFlow's
fused Adam. PyTorch has the number of threads that `torchrun` gives each
process, or its share of the processors, if that is more; its RPC does not use
the memory that processes of one machine share.
"""

import os

from absl import flags
from harness import peer_figures
from harness import peer_models
from harness import peer_systems
from harness import program

from tfdist import tables

FLAGS = flags.FLAGS
flags.DEFINE_bool("quick", False, "The small model, one round, short turns.")
flags.DEFINE_integer(
    "rounds", None, "Rounds. Default: 3, or 1 if --quick.", lower_bound=1
)
flags.DEFINE_float(
    "seconds",
    None,
    "Of the steps that count, about. Default: 5, or 0.5 if --quick.",
    lower_bound=0.01,
)
flags.DEFINE_multi_enum(
    "model",
    None,
    list(peer_models.MODELS),
    "Models. Default: all, or small if --quick.",
)
flags.DEFINE_multi_enum(
    "system", None, list(peer_systems.SYSTEMS), "Systems. Default: all."
)


def main():
    """Measures, prints tables and a line of JSON."""
    quick = FLAGS.quick
    names = FLAGS.model or (["small"] if quick else peer_models.MODELS)
    systems = {n: peer_systems.SYSTEMS[n] for n in chosen(FLAGS.system)}
    rounds = FLAGS.rounds or (1 if quick else 3)
    seconds = FLAGS.seconds or (0.5 if quick else 5.0)
    load = [os.getloadavg()[0]]
    figures = {}
    aims = []
    for name in names:
        rows = peer_systems.measure(
            peer_models.MODELS[name], systems, rounds, seconds
        )
        show(name, rows, systems)
        figures[name] = {key: summarize(row) for key, row in rows.items()}
        aims += peer_figures.outcomes(name, rows)
    load.append(os.getloadavg()[0])
    show_aims(aims)
    print(
        f"{os.cpu_count()} processors, load {load[0]:.1f} at the beginning "
        f"and {load[1]:.1f} at the end."
    )
    program.report(
        "peers",
        rounds=rounds,
        seconds=seconds,
        load=load,
        models=figures,
        aims=aims,
    )


def chosen(names):
    """Names of systems, in the order of the table; all for None."""
    return [n for n in peer_systems.SYSTEMS if names is None or n in names]


def summarize(row):
    """The figures of a `peer_figures.Row`, for the line of JSON."""
    if row.error is not None:
        return {"error": row.error}
    return {
        "steps_per_second": round(row.steps_per_second, 2),
        "cpu_ms_per_step": round(row.cpu_ms_per_step, 3),
        "steps_per_second_by_round": [
            round(turn.steps_per_second, 2) for turn in row.turns
        ],
    }


def show(model, rows, systems):
    """Prints the table of one model."""
    shape = peer_models.MODELS[model]
    aims = peer_figures.outcomes(model, rows)
    lines = []
    for name, row in rows.items():
        ratios = [
            f"{a['ratio']:.2f} x {systems[a['peer']].short}"
            for a in aims
            if a["system"] == name and a["ratio"] is not None
        ]
        lines.append(
            [
                systems[name].title,
                tables.number(row.steps_per_second, 1),
                tables.number(row.cpu_ms_per_step, 2),
                row.error or ", ".join(ratios),
            ]
        )
    print(
        f"\n{model}: {shape.num_parameters:,} parameters in "
        f"{shape.num_variables} variables"
    )
    titles = ["system", "steps/s", "CPU ms per step", "ratio"]
    print(tables.aligned(titles, lines), flush=True)


def show_aims(aims):
    """Prints what was aimed at, and what was reached."""
    shorts = {n: s.short for n, s in peer_systems.SYSTEMS.items()}
    lines = [
        [
            f"{shorts[aim['system']]} / {shorts[aim['peer']]}",
            aim["model"],
            tables.number(aim["ratio"], 2),
            f">= {aim['aim']}",
            "" if aim["ratio"] is None else "no yes".split()[aim["reached"]],
        ]
        for aim in sorted(aims, key=lambda aim: list(shorts).index(aim["peer"]))
    ]
    titles = ["steps/s", "model", "ratio", "aim", "reached"]
    print(f"\n{tables.aligned(titles, lines, left=2)}")


if __name__ == "__main__":
    program.run(main)
