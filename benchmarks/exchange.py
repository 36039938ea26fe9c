"""Milliseconds per exchange, beside raw TCP and TensorFlow's own strategy.

    python benchmarks/exchange.py [--quick]

One exchange is a push of gradients, SGD on the server, and a pull of fresh
parameters, over loopback, with one server and one worker. The gradients are
constant, so that a step is all exchange. Three systems take turns in each
round: a TCP connection that carries the same bytes there and back, `tfdist`,
and the step of the same model under `tf.distribute.ParameterServerStrategy`
with `ClusterCoordinator`. Ratios are taken within a round; what is shown is
the median over the rounds.
"""

import contextlib
import json
import math
import statistics

from absl import app
from absl import flags
from harness import children
from harness import raw_tcp
from harness import tfdist_cluster

FLAGS = flags.FLAGS
flags.DEFINE_bool("quick", False, "Fewer rounds: under a minute in all.")
flags.DEFINE_integer(
    "rounds", None, "Rounds. Default: 15, or 3 if --quick.", lower_bound=1
)
flags.DEFINE_float(
    "burst_seconds",
    None,
    "Time that each system gets per model and round. Default: 1.0, or 0.2 if "
    "--quick.",
    lower_bound=0.01,
)
flags.DEFINE_multi_enum(
    "model", None, ["100x10k", "100x250k", "10x2.5M"], "Models. Default: all."
)
flags.DEFINE_bool("tensorflow", True, "Whether to measure TensorFlow's own.")

MODELS = {
    "100x10k": (100, 10_000),
    "100x250k": (100, 250_000),
    "10x2.5M": (10, 2_500_000),
}
# What issue 2 aims at: times raw TCP, and times TensorFlow's steps per second.
MOST_TIMES_RAW = {"100x10k": 4.0, "100x250k": 1.6, "10x2.5M": 1.6}
LEAST_TIMES_TENSORFLOW = {"100x10k": 2.0}
LEARNING_RATE = 0.5
GRADIENT = 2.0**-10  # Sums of it are exact in float32.
WARM_UP_STEPS = 4


def main(argv):
    """Measures, prints a table and a line of JSON."""
    if len(argv) > 1:
        raise app.UsageError(f"This script takes flags only, got {argv[1:]}.")
    models = {name: MODELS[name] for name in FLAGS.model or MODELS}
    rounds = FLAGS.rounds or (3 if FLAGS.quick else 15)
    burst = FLAGS.burst_seconds or (0.2 if FLAGS.quick else 1.0)
    with contextlib.ExitStack() as stack:
        systems = start(stack, models)
        seconds = {
            name: measure(name, systems, rounds, burst) for name in models
        }
    figures = {name: summarize(name, seconds[name]) for name in models}
    show(figures)
    print(json.dumps({"benchmark": "exchange", "models": figures}))


def num_bytes(model):
    """Bytes of the model's float32 parameters."""
    return math.prod(MODELS[model]) * 4


def start(stack, models):
    """Starts the systems.

    Args:
        stack: a `contextlib.ExitStack` that ends them.
        models: name -> (number of variables, elements of each).

    Returns:
        A dict, system -> callable (model, steps) -> seconds per step.
    """
    largest = max(num_bytes(model) for model in models)
    echo = children.Child("TCP server", raw_tcp.echo_server, largest)
    stack.callback(echo.kill)
    # Here, because it takes seconds to import TensorFlow, which the processes
    # that import this file do not all need.
    from harness import clusters

    arguments = (models, LEARNING_RATE, GRADIENT)
    started = {
        "tfdist": clusters.TfdistCluster(
            tfdist_cluster.serve, tfdist_cluster.exchanging_worker, *arguments
        )
    }
    if FLAGS.tensorflow:
        started["tensorflow"] = clusters.TensorFlowCluster(*arguments)
    for cluster in started.values():
        stack.enter_context(cluster)
    echo.wait_until_built()
    sender = children.Child(
        "TCP client", raw_tcp.client, echo.ask("port"), largest
    )
    stack.callback(sender.kill)
    sender.wait_until_built()

    def raw(model, steps):
        echo.tell("serve", num_bytes(model))
        seconds = sender.ask(num_bytes(model), steps)
        echo.answer()
        return seconds

    systems = {"raw": raw}
    for name, cluster in started.items():
        cluster.wait_until_built()
        systems[name] = Checked(cluster)
    return systems


class Checked:
    """A system whose parameters have to be right after all its steps."""

    def __init__(self, cluster):
        self._cluster = cluster
        self._steps = {}

    def __call__(self, model, steps):
        """Takes steps; returns seconds per step."""
        seconds, value = self._cluster.ask(model, steps)
        self._steps[model] = self._steps.get(model, 0) + steps
        expected = -LEARNING_RATE * GRADIENT * self._steps[model]
        if value != expected:
            raise AssertionError(
                f"{model}: {value} after {self._steps[model]} steps instead "
                f"of {expected}."
            )
        return seconds


def measure(model, systems, rounds, burst):
    """Lets the systems take turns.

    Args:
        model: name of the model.
        systems: from `start`.
        rounds: number of turns of each.
        burst: seconds per turn.

    Returns:
        System -> list of seconds per step, one per round.
    """
    steps = {}
    for name, system in systems.items():
        system(model, WARM_UP_STEPS)
        steps[name] = max(3, round(burst / system(model, WARM_UP_STEPS)))
    seconds = {name: [] for name in systems}
    for _ in range(rounds):
        for name, system in systems.items():
            seconds[name].append(system(model, steps[name]))
    return seconds


def summarize(model, seconds):
    """The figures of one model, from what `measure` returns."""
    figures = {
        f"{name}_ms": round(1e3 * statistics.median(values), 3)
        for name, values in seconds.items()
    }
    figures["times_raw"] = _median_ratio(seconds["tfdist"], seconds["raw"])
    figures["aim_times_raw"] = MOST_TIMES_RAW[model]
    if "tensorflow" in seconds:
        figures["times_tensorflow_steps_per_second"] = _median_ratio(
            seconds["tensorflow"], seconds["tfdist"]
        )
        aim = LEAST_TIMES_TENSORFLOW.get(model)
        figures["aim_times_tensorflow_steps_per_second"] = aim
    return figures


def _median_ratio(numerators, denominators):
    ratios = [n / d for n, d in zip(numerators, denominators, strict=True)]
    return round(statistics.median(ratios), 3)


def show(figures):
    """Prints the table."""
    print(
        f"{'':>9} {'raw TCP':>9} {'tfdist':>9} {'TF PSS':>9}"
        f" {'tfdist/raw':>11} {'aim':>7} {'PSS/tfdist':>11} {'aim':>7}"
    )
    print(f"{'':>9} {'ms':>9} {'ms':>9} {'ms':>9}")
    for model, row in figures.items():
        tensorflow = row.get("tensorflow_ms", math.nan)
        faster = row.get("times_tensorflow_steps_per_second", math.nan)
        aim = row.get("aim_times_tensorflow_steps_per_second")
        print(
            f"{model:>9} {row['raw_ms']:9.2f} {row['tfdist_ms']:9.2f}"
            f" {tensorflow:9.2f} {row['times_raw']:11.2f}"
            f" {'<= ' + format(row['aim_times_raw'], '.1f'):>7}"
            f" {faster:11.2f} {f'>= {aim:.1f}' if aim else '':>7}"
        )


if __name__ == "__main__":
    app.run(main)
