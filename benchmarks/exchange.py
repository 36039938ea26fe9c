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
import functools
import math

from absl import flags
from harness import children
from harness import clusters
from harness import exchanging
from harness import program
from harness import raw_tcp

from tfdist import tables

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


def main():
    """Measures, prints a table and a line of JSON."""
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
    program.report("exchange", models=figures)


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
    arguments = (models, LEARNING_RATE, GRADIENT)
    started = {
        "tfdist": clusters.Cluster((exchanging.build_models, *arguments))
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
    turns = {
        name: functools.partial(system, model, steps[name])
        for name, system in systems.items()
    }
    return program.take_turns(turns, rounds)


def summarize(model, seconds):
    """The figures of one model, from what `measure` returns."""
    figures = {
        f"{name}_ms": program.milliseconds(values)
        for name, values in seconds.items()
    }
    figures["times_raw"] = program.median_ratio(
        seconds["tfdist"], seconds["raw"]
    )
    figures["aim_times_raw"] = MOST_TIMES_RAW[model]
    if "tensorflow" in seconds:
        figures["times_tensorflow_steps_per_second"] = program.median_ratio(
            seconds["tensorflow"], seconds["tfdist"]
        )
        aim = LEAST_TIMES_TENSORFLOW.get(model)
        figures["aim_times_tensorflow_steps_per_second"] = aim
    return figures


def show(figures):
    """Prints the table."""
    titles = ["ms", "raw TCP", "tfdist", "TF PSS"]
    titles += ["tfdist/raw", "aim", "PSS/tfdist", "aim"]
    rows = []
    for model, row in figures.items():
        aim = row.get("aim_times_tensorflow_steps_per_second")
        numbers = ("raw_ms", "tfdist_ms", "tensorflow_ms", "times_raw")
        rows.append(
            [
                model,
                *(tables.number(row.get(name), 2) for name in numbers),
                f"<= {row['aim_times_raw']:.1f}",
                tables.number(row.get("times_tensorflow_steps_per_second"), 2),
                f">= {aim:.1f}" if aim else "",
            ]
        )
    print(tables.aligned(titles, rows))


if __name__ == "__main__":
    program.run(main)
