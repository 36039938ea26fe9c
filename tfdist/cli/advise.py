"""`tfdist advise`: what each method would give on a cluster."""

from collections.abc import Sequence
import itertools
import math
import textwrap
from typing import Any

from absl import flags

from tfdist.cli import assumed_cluster
from tfdist.cli import json_file
from tfdist.cli import method_checks
from tfdist.cli import model_and_data
from tfdist.cli import simulation_flags
from tfdist.cli import usage
from tfdist.cli import user_function
from tfdist.cli import virtual_cluster
from tfdist.strategies import registry

USAGE = """\
Measures a training step of a model on this machine, plays each method on a
cluster that exists only as flags, and says which to take, or to stay on one
machine.

Usage: tfdist advise [FLAGS...]

Examples: tfdist advise --task=digits --bandwidth_gbps=1
          tfdist advise --model=m.py:build --data=m.py:data \\
              --num_workers=4,8 --bandwidth_gbps=10 --tail=0.05:1
          tfdist advise --task=text --num_workers=8 --epochs=3

Examples per second are predicted from the model's computing time, its bytes,
and the cluster. With --epochs, the recommended method and the two fastest
others also train on virtual workers, to say after how many epochs and seconds
each reaches a target. Without, that is not known.
"""

_UNUSED = ("failure", "worker_timeout")
"""Flags of virtual clusters that a steady state knows nothing of."""


def define_flags() -> flags.FlagValues:
    """Returns the flags of the sub-command, not parsed yet."""
    values = flags.FlagValues()
    simulation_flags.define_problem(values)
    simulation_flags.define_cluster(values, measures=True)
    simulation_flags.define_seed(values)
    simulation_flags.define_progress(values)
    define = {"flag_values": values, "module_name": __name__}
    flags.DEFINE_list(
        "num_workers",
        ["2", "4", "8", "16"],
        "Numbers of workers, separated by commas.",
        **define,
    )
    flags.DEFINE_list(
        "strategies",
        list(registry.names("synchronization")),
        "Methods, separated by commas, with settings as in softsync:n=2. "
        "backup_workers alone tries up to a quarter of the workers; "
        "corrections are taken to last no time. Without local steps.",
        **define,
    )
    simulation_flags.define_method_modules(values)
    flags.DEFINE_integer(
        "steps_measured", 20, "How often a step is measured.", **define
    )
    flags.DEFINE_float(
        "step_seconds",
        None,
        "Seconds of a training step on one machine, instead of measuring it: "
        "for a machine that is not this one.",
        **define,
    )
    flags.DEFINE_float(
        "min_speed_up",
        1.5,
        "Times the examples per second of one machine that a cluster has to "
        "give to be recommended.",
        **define,
    )
    flags.DEFINE_integer(
        "epochs",
        None,
        "Passes over the data to train for, with learning rates as `tfdist "
        "compare` chooses them. Default: nothing is trained.",
        **define,
    )
    flags.DEFINE_string(
        "json", None, "A file for all figures, as JSON.", **define
    )
    flags.DEFINE_bool("help", False, "Show this.", short_name="h", **define)
    return values


def main(argv: Sequence[str]) -> int:
    """Runs the sub-command.

    Args:
        argv: the arguments after `advise`.

    Returns:
        The exit status.

    Raises:
        UsageError: if the arguments are wrong.
    """
    values = define_flags()
    rest = usage.parse(values, argv)
    if values.help:
        print(f"{USAGE}\n{simulation_flags.listing(values, __name__, _UNUSED)}")
        return 0
    usage.refuse_arguments(rest)
    counts = _check_flags(values)
    method_checks.load_modules(values)
    if not values["strategies"].present:
        values.strategies = list(registry.names("synchronization"))
    method_checks.split(values)
    simulation = user_function.import_quietly("tfdist.simulation")
    # Before the user's code runs: what flags alone have wrong.
    arguments, undisturbed = _cluster_arguments(values, counts, simulation)
    nothing = simulation.Constant(0.0)
    tail = virtual_cluster.make(values, counts, nothing).undisturbed
    _check_strategies(values, counts, simulation)
    trained = model_and_data.make(values)
    _check_model(values, counts, trained)
    if values.epochs:
        trained.check_workers(max(counts))
    progress = simulation_flags.show_progress(values)
    model = trained.model_fn_of(trained.learning_rate, trained.momentum or 0.0)
    measurement = simulation.measure(
        model(),
        *trained.train[:2],
        batch_size=trained.batch_size,
        steps=values.steps_measured,
        step_seconds=values.step_seconds,
        progress=progress,
    )
    overhead_seconds = simulation_flags.overhead_seconds(values)
    # Of a machine that no flag makes slow.
    if values.step_seconds is not None:
        one_machine = values.step_seconds + tail.mean(0)
    elif assumed_cluster.is_given(values):
        update = assumed_cluster.update_seconds(values, measurement)
        one_machine = undisturbed.mean(0) + update
    else:
        one_machine = measurement.step_seconds + tail.mean(0)
    advice = simulation.advise(
        measurement,
        num_workers=counts,
        strategies=values.strategies,
        overhead_seconds=overhead_seconds,
        min_speed_up=values.min_speed_up,
        seed=values.seed,
        one_machine_seconds=one_machine,
        codec_cost=simulation.codec_costs.measure(measurement.num_parameters),
        progress=progress,
        **arguments,
    )
    if values.epochs and advice.recommended is not None:
        advice = advice.with_learning(
            simulation.learning.learn(
                advice,
                trained.model_fn_of,
                trained.train,
                epochs=values.epochs,
                validation_data=trained.validation,
                learning_rates=trained.learning_rates,
                momentum=trained.momentum,
                seed=values.seed,
                progress=progress,
            )
        )
    description = assumed_cluster.describe(
        values, measurement, overhead_seconds
    )
    print(f"{textwrap.fill(description, 79)}\n")
    print(advice.table())
    if values.epochs and advice.learning is None:
        print(
            "\nNothing was trained: --epochs is for methods that give enough "
            "examples/s\n(--min_speed_up)."
        )
    if values.json is not None:
        json_file.write(values.json, advice.as_dict())
    return 0


def _check_flags(values: flags.FlagValues) -> list[int]:
    """Refuses what can be seen to be wrong without TensorFlow.

    Returns:
        The numbers of workers.
    """
    simulation_flags.check(values)
    for name, is_good, allowed in (
        ("steps_measured", lambda value: value >= 1, "at least 1"),
        ("step_seconds", lambda value: value > 0, "above 0"),
        ("min_speed_up", lambda value: value > 0, "above 0"),
    ):
        value = values[name].value
        good = value is None or (math.isfinite(value) and is_good(value))
        usage.check(good, name, f"be {allowed}", value)
    for name in _UNUSED:
        usage.check(
            not values[name].present,
            name,
            "not be given here, where nobody dies: use `tfdist simulate`",
            values[name].value,
        )
    given = ",".join(values.num_workers)
    good = all(text.isdecimal() and int(text) >= 1 for text in given.split(","))
    usage.check(
        good, "num_workers", "be numbers of at least 1, such as 2,4,8", given
    )
    usage.check(
        any(values.strategies), "strategies", "name a method", values.strategies
    )
    json_file.check(values.json)
    return sorted(map(int, set(values.num_workers)))


def _cluster_arguments(
    values: flags.FlagValues, counts: Sequence[int], simulation: Any
) -> tuple[dict[str, Any], Any]:
    """Returns the cluster, as arguments of `advise`, and a usual worker.

    That is the `ComputeTime` that flags give to one that none of them names.
    """
    cluster = virtual_cluster.make(values, counts)
    compute, undisturbed = cluster.compute, cluster.undisturbed
    if not assumed_cluster.is_given(values):

        def compute(measured: Any) -> Any:
            return virtual_cluster.make(values, counts, measured).compute

    else:
        usage.check(
            min(map(compute.mean, range(max(counts)))) > 0,
            "compute",
            "be above 0 on average, for each worker",
            values.compute,
        )
    return {
        "num_servers": cluster.num_servers,
        "network": cluster.network,
        "compute": compute,
    }, undisturbed


def _check_strategies(
    values: flags.FlagValues, counts: Sequence[int], simulation: Any
) -> None:
    """Refuses, before anything is measured, what would fail after it."""
    tried = [
        option
        for text in values.strategies
        for option in registry.variants(text, max(counts))
    ]
    usage.check(
        len(tried) == len(set(tried)),
        "strategies",
        "have each method once",
        ",".join(values.strategies),
    )
    for text in values.strategies:
        if not registry.variants(text, max(counts)):
            least = itertools.count(max(counts))
            least = next(n for n in least if registry.variants(text, n))
            usage.check(
                len(values.strategies) > 1,
                "strategies",
                f"have a method beside {text} for less than {least} workers",
                text,
            )
        try:
            for count in counts:
                for option in registry.variants(text, count):
                    method = simulation.methods.as_method(option)
                    simulation.prediction.check_is_predicted(method)
                    method.resolve(count)
        except ValueError as error:
            raise usage.UsageError(
                "Flag --strategies must be methods that fit --num_workers. "
                f"Received: {text}: {error}"
            ) from error


def _check_model(
    values: flags.FlagValues,
    counts: Sequence[int],
    trained: model_and_data.ModelAndData,
) -> None:
    """Refuses methods that cannot train the model; leaves out default ones."""
    models, fitting = {}, []
    for text in values.strategies:
        try:
            for option in registry.variants(text, max(counts)):
                method_checks.check_model(option, max(counts), trained, models)
        except ValueError as error:
            if values["strategies"].present:
                raise usage.UsageError(f"Flag --strategies: {error}") from error
            print(textwrap.fill(f"Left out: {error}", 79))
        else:
            fitting.append(text)
    usage.check(
        bool(fitting), "model", "be one that a method fits", values.model
    )
    values.strategies = fitting
