"""`tfdist simulate`: one run on a virtual cluster."""

from collections.abc import Sequence
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
from tfdist.strategies import registry

USAGE = """\
Trains a model on a virtual cluster, in virtual time, and shows what happened.

Usage: tfdist simulate [FLAGS...]

Examples: tfdist simulate --strategy=dc_asgd --num_workers=16 --slow=0:3
          tfdist simulate --pipeline=1f1b --stage_times=10,12,9,11

The gradients are real, and so are the methods, those of real servers; only
time is drawn from the models that the flags of the cluster describe. With
--pipeline nothing is trained: a schedule of a pipeline is played, with given
times of its stages.
"""


_SANDBLASTER = """\
  sandblaster, with portions_per_worker=8 and backup_after=2.0 (inf: never):
    L-BFGS over all data; an epoch is an iteration (Dean et al. 2012)"""
_NOT_OF_SANDBLASTER = (
    "learning_rate",
    "momentum",
    "work",
    "portions_per_worker",
)


def define_flags() -> flags.FlagValues:
    """Returns the flags of the sub-command, not parsed yet."""
    values = flags.FlagValues()
    define = {"flag_values": values, "module_name": __name__}
    flags.DEFINE_string(
        "strategy",
        "async",
        "The method, one of those below, with settings after colons, as in "
        "softsync:s=2. Each takes synchronization=, correction= and "
        "local_steps=, where it is not one itself: "
        "async:correction=dc_asgd(lambda_0=1).",
        **define,
    )
    simulation_flags.define_method_modules(values)
    flags.DEFINE_integer("num_workers", 4, "Virtual workers.", **define)
    flags.DEFINE_bool("help", False, "Show this.", short_name="h", **define)
    simulation_flags.define_problem(values)
    simulation_flags.define_learning_rate(values)
    simulation_flags.define_training(values)
    simulation_flags.define_seed(values)
    simulation_flags.define_cluster(values)
    pipelines.define_flags(values, many=False)
    simulation_flags.define_output(
        values,
        "runs/simulate",
        "history.json, evaluations.csv and pictures; of a pipeline "
        "pipeline.json and a picture",
    )
    return values


def main(argv: Sequence[str]) -> int:
    """Runs the sub-command.

    Args:
        argv: the arguments after `simulate`.

    Returns:
        The exit status: 0, or 1 if the training diverged.

    Raises:
        UsageError: if the arguments are wrong.
    """
    values = define_flags()
    rest = usage.parse(values, argv)
    if values.help:
        print(f"{USAGE}\n{simulation_flags.listing(values, __name__)}")
        print(f"\nMethods:\n{registry.describe()}\n{_SANDBLASTER}")
        print(f"\n{pipelines.listing(values)}")
        return 0
    usage.refuse_arguments(rest)
    if pipelines.is_asked_for(values):
        pipelines.show(values)
        return 0
    count = values.num_workers
    usage.check(count >= 1, "num_workers", "be at least 1", count)
    simulation_flags.check(values)
    method_checks.load_modules(values)
    output_dir = simulation_flags.make_output_dir(values)
    # Before the user's code runs: what flags alone have wrong.
    virtual_cluster.make(values, values.num_workers)
    trained = model_and_data.make(values)
    sandblaster = _sandblaster(values)
    if sandblaster is None:
        method_checks.check(
            "strategy", [values.strategy], [values.num_workers], trained
        )
        method_checks.check_cluster(values, [values.strategy])
    else:
        trained.check_workers(values.num_workers)
    cluster = assumed_cluster.make(values, trained, values.num_workers)

    simulation = user_function.import_quietly("tfdist.simulation")
    from tfdist.simulation import comparison
    from tfdist.simulation import gantt
    from tfdist.simulation import plots
    from tfdist.simulation import tables

    method, momentum, compute = sandblaster, 0.0, cluster.arguments["compute"]
    if sandblaster is None:
        method, momentum = comparison.with_momentum(
            values.strategy, trained.momentum
        )
        if method.steps_on_workers:
            compute = cluster.local_compute
    history = simulation.simulate(
        trained.model_fn_of(trained.learning_rate, momentum),
        trained.train,
        method,
        num_workers=values.num_workers,
        batch_size=trained.batch_size,
        epochs=values.epochs,
        validation_data=trained.validation,
        evaluate_every=values.evaluate_every,
        work=values.work,
        portions_per_worker=values.portions_per_worker,
        seed=values.seed,
        progress=simulation_flags.show_progress(values),
        **{**cluster.arguments, "compute": compute},
    )
    print(f"{textwrap.fill(cluster.description, 79)}\n")
    print(tables.of_history(history))
    history.write_json(output_dir / "history.json")
    history.write_csv(output_dir / "evaluations.csv")
    plots.accuracy_over_epochs(history, output_dir / "accuracy_over_epochs.png")
    plots.accuracy_over_time(history, output_dir / "accuracy_over_time.png")
    if sandblaster is None:
        plots.staleness_histogram(history, output_dir / "staleness.png")
    gantt.gantt(history, output_dir / "gantt.png")
    print(f"\nResults: {output_dir}")
    return int(history.diverged)


def _sandblaster(values: flags.FlagValues) -> Any:
    """Returns the `Sandblaster` that is asked for, or None.

    Raises:
        UsageError: a setting or another flag does not go with it.
    """
    user_function.import_quietly("tfdist.simulation")
    from tfdist.simulation import sandblaster

    try:
        found = sandblaster.of(values.strategy)
    except ValueError as error:
        raise usage.UsageError(f"Flag --strategy: {error}") from error
    if found is None:
        return None
    for name in _NOT_OF_SANDBLASTER:
        usage.check(
            not values[name].present,
            name,
            "not be given with sandblaster, which has neither a learning rate "
            "nor shares (its portions are a setting of --strategy)",
            values[name].value,
        )
    for text in values.failure:
        usage.check(
            int(text.split(":")[0]) != 0,
            "failure",
            "not name worker 0 with sandblaster, where it coordinates",
            text,
        )
    return found
