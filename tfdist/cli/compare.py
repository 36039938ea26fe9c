"""`tfdist compare`: which method, on how many workers?"""

from collections.abc import Callable
from collections.abc import Sequence
import math
import re
import textwrap
from typing import Any

from absl import flags

from tfdist.cli import assumed_cluster
from tfdist.cli import method_checks
from tfdist.cli import model_and_data
from tfdist.cli import pipelines
from tfdist.cli import simulation_flags
from tfdist.cli import usage
from tfdist.cli import user_function
from tfdist.cli import virtual_cluster

USAGE = """\
Trains with several methods on virtual clusters of several sizes, and says
which did best.

Usage: tfdist compare [FLAGS...]

Examples: tfdist compare --strategies=sync,async,dc_asgd \\
              --num_workers=4,16 --learning_rates=0.05,0.1,0.2 --seeds=1,2,3
          tfdist compare --pipelines=gpipe,1f1b,pipedream \\
              --stage_times=10,12,9,11

Each method on each number of workers trains with every learning rate and
seed, and is judged by the learning rate that suits it best. Where that is the
least or the greatest rate, further ones are tried. Speed-ups are over one
worker alone without a network, which trains as well. With --pipelines nothing
is trained: schedules of a pipeline are played, with given times of its stages.
"""


def define_flags() -> flags.FlagValues:
    """Returns the flags of the sub-command, not parsed yet."""
    values = flags.FlagValues()
    define = {"flag_values": values, "module_name": __name__}
    flags.DEFINE_list(
        "strategies",
        ["sync", "backup_workers", "async", "softsync", "dc_asgd", "dana"],
        "Methods, separated by commas; settings after colons, as in "
        "softsync:n=1. See --strategy of `tfdist simulate`.",
        **define,
    )
    simulation_flags.define_method_modules(values)
    flags.DEFINE_list(
        "num_workers",
        ["4", "16"],
        "Numbers of virtual workers, separated by commas.",
        **define,
    )
    flags.DEFINE_list(
        "learning_rates",
        [],
        "Learning rates, separated by commas. Default: a tenth, a third and "
        "the whole of the one that suits one worker of the task, or that is "
        "your own model's.",
        **define,
    )
    flags.DEFINE_integer(
        "extra_rates",
        3,
        "How many further learning rates to try, at most, for a method whose "
        "best one so far is the least or the greatest. 0: the given ones "
        "alone.",
        **define,
    )
    flags.DEFINE_list("seeds", ["0"], "Seeds, separated by commas.", **define)
    flags.DEFINE_bool(
        "single",
        True,
        "Train with one worker alone, too, for speed-ups.",
        **define,
    )
    flags.DEFINE_string(
        "metric",
        None,
        "What is judged by. Default: accuracy if the model has it, else its "
        "first metric, else its loss. Less of a loss or an error is better.",
        **define,
    )
    flags.DEFINE_float(
        "target",
        None,
        "Value of the metric whose time is taken. Default: 95 % of the best "
        "final one.",
        **define,
    )
    flags.DEFINE_float(
        "at_seconds",
        None,
        "Virtual time at which methods are compared. Default: when the "
        "fastest has ended.",
        **define,
    )
    flags.DEFINE_bool("help", False, "Show this.", short_name="h", **define)
    simulation_flags.define_problem(values)
    simulation_flags.define_training(values)
    simulation_flags.define_cluster(values)
    pipelines.define_flags(values, many=True)
    simulation_flags.define_output(
        values,
        "runs/compare",
        "comparison.csv, comparison.json and pictures; of pipelines "
        "pipelines.csv, pipelines.json and pictures",
    )
    return values


def main(argv: Sequence[str]) -> int:
    """Runs the sub-command.

    Args:
        argv: the arguments after `compare`.

    Returns:
        The exit status.

    Raises:
        UsageError: if the arguments are wrong.
    """
    values = define_flags()
    rest = usage.parse(values, argv)
    if values.help:
        print(f"{USAGE}\n{simulation_flags.listing(values, __name__)}")
        print(f"\n{pipelines.listing(values)}")
        return 0
    usage.refuse_arguments(rest)
    if pipelines.is_asked_for(values):
        pipelines.compare(values)
        return 0
    method_checks.split(values)
    _different("strategies", values.strategies)
    num_workers = _numbers(values, "num_workers", int, 1)
    seeds = _numbers(values, "seeds", int, 0)
    learning_rates = []
    if values.learning_rates:
        learning_rates = _numbers(values, "learning_rates", float, 0)
    usage.check(
        values.extra_rates >= 0,
        "extra_rates",
        "be at least 0",
        values.extra_rates,
    )
    for name in ("target", "at_seconds"):
        value = values[name].value
        finite = value is None or math.isfinite(value)
        usage.check(finite, name, "be a finite number", value)
    simulation_flags.check(values)
    method_checks.load_modules(values)
    output_dir = simulation_flags.make_output_dir(values)
    # Before the user's code runs: what flags alone have wrong.
    virtual_cluster.make(values, num_workers)
    trained = model_and_data.make(values)
    usage.check(
        not learning_rates or trained.learning_rate is not None,
        "learning_rates",
        "not be given for --model: its optimizer has a schedule of its own, a "
        "function, or several optimizers",
        ",".join(values.learning_rates),
    )
    method_checks.check("strategies", values.strategies, num_workers, trained)
    method_checks.check_cluster(values, values.strategies)
    if values.metric is not None:
        _check_metric(values.metric, trained)
    cluster = assumed_cluster.make(values, trained, num_workers)

    simulation = user_function.import_quietly("tfdist.simulation")
    comparison = simulation.compare(
        trained.model_fn_of,
        trained.train,
        values.strategies,
        num_workers,
        learning_rates=learning_rates or trained.learning_rates,
        extra_rates=values.extra_rates,
        momentum=trained.momentum,
        seeds=seeds,
        single=values.single,
        single_compute=cluster.single_compute,
        local_compute=cluster.local_compute,
        metric=values.metric,
        target=values.target,
        at_seconds=values.at_seconds,
        batch_size=trained.batch_size,
        epochs=values.epochs,
        validation_data=trained.validation,
        evaluate_every=values.evaluate_every,
        work=values.work,
        portions_per_worker=values.portions_per_worker,
        progress=simulation_flags.show_progress(values),
        **cluster.arguments,
    )
    print(f"{textwrap.fill(cluster.description, 79)}\n")
    print(comparison.table())
    comparison.write_csv(output_dir / "comparison.csv")
    comparison.write_json(output_dir / "comparison.json")
    _draw(comparison, output_dir)
    print(f"\nResults: {output_dir}")
    return 0


def _draw(comparison: Any, output_dir: Any) -> None:
    """Draws all pictures."""
    from tfdist.simulation import gantt
    from tfdist.simulation import plots

    for draw in (
        plots.accuracy_over_epochs,
        plots.accuracy_over_time,
        plots.speed_up,
    ):
        draw(comparison, output_dir / f"{draw.__name__}.png")
    plots.staleness_histogram(comparison, output_dir / "staleness.png")
    # The largest cluster whose workers all have room.
    counts = comparison.num_workers
    fitting = [n for n in counts if n <= gantt.MOST_WORKERS]
    count = max(fitting) if fitting else min(counts)
    for method in comparison.methods:
        # The first seed stands for all.
        history = comparison.histories(method, count)[0]
        name = re.sub(r"[^\w=.,-]+", "_", method)
        gantt.gantt(history, output_dir / f"gantt_{name}.png")


def _check_metric(metric: str, trained: Any) -> None:
    """Refuses a metric that the model does not have, before any training."""
    from tfdist.simulation import comparison

    model = trained.model_fn_of(trained.learning_rate, 0.0)()
    try:
        comparison.check_metric(metric, model, trained.validation)
    except ValueError as error:
        raise usage.UsageError(f"Flag --metric={metric}: {error}") from error


def _numbers(
    values: flags.FlagValues, name: str, kind: Callable[[str], Any], least: int
) -> list[Any]:
    """The numbers of a flag that is a list.

    Args:
        values: parsed flags.
        name: of the flag.
        kind: `int` or `float`.
        least: integers are at least this, others above it.
    """
    texts = values[name].value
    what = f"integers of at least {least}"
    if kind is float:
        what = f"numbers above {least}"
    allowed = f"be {what}, separated by commas"
    numbers = []
    for text in texts:
        try:
            number = kind(text)
        except ValueError:
            number = -1
        good = math.isfinite(number) and (
            number > least if kind is float else number >= least
        )
        usage.check(good, name, allowed, ",".join(texts))
        numbers.append(number)
    _different(name, numbers)
    return numbers


def _different(name: str, values: Sequence[Any]) -> None:
    usage.check(
        0 < len(values) == len(set(values)) and "" not in values,
        name,
        "have at least one value, and each once",
        ",".join(map(str, values)),
    )
