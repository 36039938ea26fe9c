"""Methods that flags name: loads their modules, and checks that they fit."""

from collections.abc import Sequence
from typing import Any

from absl import flags

from tfdist.cli import model_and_data
from tfdist.cli import usage
from tfdist.cli import user_function
from tfdist.strategies import registry


def split(values: flags.FlagValues) -> None:
    """Has the commas within parentheses not split `--strategies`.

    Raises:
        UsageError: parentheses do not match.
    """
    try:
        values.strategies = registry.split(values.strategies)
    except ValueError as error:
        raise usage.UsageError(f"Flag --strategies: {error}") from error


def load_modules(values: flags.FlagValues) -> None:
    """Imports the modules that `--method_module` names.

    Raises:
        UsageError: there is no such module.
    """
    for place in values.method_module:
        user_function.import_quietly("tfdist.simulation")
        try:
            registry.load(place)
        except ModuleNotFoundError as error:
            raise usage.UsageError(
                "Flag --method_module must be FILE.py or package.module, and "
                f"be there. Received: --method_module={place}: {error}."
            ) from error


def check(
    flag: str,
    texts: Sequence[str],
    num_workers: Sequence[int],
    trained: model_and_data.ModelAndData,
) -> None:
    """Refuses methods that do not exist or do not fit, before any training.

    Args:
        flag: name of the flag that they come from.
        texts: the methods.
        num_workers: every number of workers.
        trained: what they are to train.

    Raises:
        UsageError: with the method, and the reason.
    """
    user_function.import_quietly("tfdist.simulation")
    from tfdist.simulation import comparison

    trained.check_workers(max(num_workers))
    models = {}
    for text in texts:
        try:
            method, _ = comparison.with_momentum(text, trained.momentum)
        except (TypeError, ValueError) as error:
            raise usage.UsageError(f"Flag --{flag}: {error}") from error
        try:
            for number in num_workers:
                comparison.check_fits(method, number)
        except ValueError as error:
            raise usage.UsageError(
                f"Flag --{flag} must fit --num_workers: {error}"
            ) from error
        try:
            check_model(text, max(num_workers), trained, models)
        except ValueError as error:
            raise usage.UsageError(f"Flag --{flag}: {error}") from error


def check_model(
    text: str,
    num_workers: int,
    trained: model_and_data.ModelAndData,
    models: dict[float, Any],
) -> None:
    """Refuses a method that cannot train the model.

    Args:
        text: the method.
        num_workers: the most workers that it is to have.
        trained: what it is to train.
        models: those that were made so far, by the momentum of their
            optimizers.

    Raises:
        ValueError: with the method, and the reason.
    """
    from tfdist.simulation import comparison

    method, momentum = comparison.with_momentum(text, trained.momentum)
    if momentum not in models:
        make = trained.model_fn_of(trained.learning_rate, momentum)
        models[momentum] = make()
    comparison.check_fits(method, num_workers, models[momentum])


def check_cluster(values: flags.FlagValues, texts: Sequence[str]) -> None:
    """Refuses flags that methods are not simulated with.

    Args:
        values: parsed flags.
        texts: methods that `check` accepts.

    Raises:
        UsageError: with the method, and the reason.
    """
    usage.check(
        values.work == "queue" or not values["portions_per_worker"].present,
        "portions_per_worker",
        "be given together with --work=queue",
        values.portions_per_worker,
    )
    from tfdist.simulation import comparison

    for text in texts:
        try:
            comparison.check_arguments(
                registry.method(text),
                num_servers=values.num_servers,
                failures=values.failure,
                work=values.work,
                portions_per_worker=values.portions_per_worker,
            )
        except ValueError as error:
            raise usage.UsageError(
                "Flags --num_servers, --failure and --work must fit "
                f"{text}: {error}"
            ) from error
