"""`learn`: trains what was advised, and says how soon a target is reached."""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import keras

from tfdist import tables
from tfdist.simulation.comparison import compare
from tfdist.simulation.compute import Constant
from tfdist.simulation.results import ONE_MACHINE
from tfdist.simulation.results import Comparison

MOST_METHODS = 3
"""Methods that are trained at most: the recommended one and the fastest."""

UNKNOWN = (
    "That is speed alone. How many epochs a target takes is not known, as "
    "nothing was trained: late gradients, and updates that average several, "
    "often take more. `tfdist advise --epochs=5` trains on these virtual "
    "workers and says how many, and so does `tfdist compare`."
)
"""What is said of learning where nothing was trained."""


def candidates(advice: Any) -> list[Any]:
    """Returns the `Prediction`s of an `Advice` that are worth training.

    They have the recommended number of workers: the recommended method, and
    the fastest others. None where one machine is recommended.
    """
    chosen = advice.recommended
    if chosen is None:
        return []
    others = [
        p
        for p in advice.predictions
        if p.num_workers == chosen.num_workers and p is not chosen
    ]
    others.sort(key=lambda p: p.speed_up, reverse=True)
    return [chosen, *others[: MOST_METHODS - 1]]


def learn(
    advice: Any,
    model_fn_of: Callable[[Any, float], Callable[[], keras.Model]],
    dataset: Any,
    *,
    epochs: int,
    validation_data: Any = None,
    learning_rates: Sequence[Any] = (None,),
    momentum: float | None = None,
    seed: int = 0,
    progress: bool = False,
) -> Comparison:
    """Trains the methods that were advised on the virtual cluster of `advise`.

    Args:
      advice: An `Advice` that recommends a cluster.
      model_fn_of: As for `compare`.
      dataset: As for `simulate`.
      epochs: Passes over the data.
      validation_data: As for `simulate`.
      learning_rates: As for `compare`, which may try further ones.
      momentum: As for `compare`.
      seed: Of weights, the order of examples and compute times.
      progress: Whether to show a bar.

    Returns:
      The `Comparison`, with one machine.
    """
    measurement, cluster = advice.measurement, advice.cluster
    trained = candidates(advice)
    return compare(
        model_fn_of,
        dataset,
        [advice.methods[p.method] for p in trained],
        [trained[0].num_workers],
        learning_rates=learning_rates,
        momentum=momentum,
        seeds=[seed],
        single_compute=Constant(measurement.step_seconds),
        batch_size=measurement.batch_size,
        epochs=epochs,
        validation_data=validation_data,
        compute=cluster.compute_time(measurement),
        network=cluster.full_network(measurement),
        num_servers=cluster.num_servers,
        progress=progress,
    )


def sentence(comparison: Comparison, min_speed_up: float) -> str:
    """Returns the verdict on what was trained.

    Args:
      comparison: Of one number of workers, with one machine.
      min_speed_up: Times as soon as one machine that a cluster has to reach
        the target.
    """
    rows = {row["method"]: row for row in comparison.rows()}
    alone = rows.pop(ONE_MACHINE)
    target = f"{comparison.metric} {tables.number(comparison.target)}"
    reached = [
        row for row in rows.values() if row["seconds_to_target"] is not None
    ]
    if not reached:
        return (
            f"No method reached {target} in these epochs: how soon they do is "
            "not known. Train for more (--epochs)."
        )
    best = min(reached, key=lambda row: row["seconds_to_target"])
    if not best["seconds_to_target"]:
        return (
            f"The initial model reaches {target}, which is within 5 % of the "
            "best final value: no method is sooner. `tfdist compare --target` "
            "takes the time of another value."
        )
    verb = "Use"
    speed_up = best["speed_up_to_target"]
    if speed_up is not None and speed_up < min_speed_up:
        verb = "Stay on one machine. The soonest is"
    return (
        f"{verb} {best['method']} with {best['num_workers']} workers: it "
        f"reaches {target} after {_course(best)}, at "
        f"{best['examples_per_second']:,.0f} examples/s. One machine "
        f"{_of_one_machine(alone, speed_up)} The target is within 5 % of the "
        "best final value; each method has its best learning rate. This is one "
        "seed: before you trust a small difference, run `tfdist compare "
        "--seeds=1,2,3`."
    )


def _course(row):
    return (
        f"{tables.number(row['epochs_to_target'], 2)} epochs "
        f"({tables.amount(row['updates_to_target'])} updates, "
        f"{tables.amount(row['seconds_to_target'])} s)"
    )


def _of_one_machine(alone, speed_up):
    if speed_up is None:
        return "did not reach it."
    return f"takes {_course(alone)}, {speed_up:.1f} times as long."
