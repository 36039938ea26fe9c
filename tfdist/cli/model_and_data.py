"""The model and data to train: a task of tfdist, or the user's own."""

from collections.abc import Callable
import dataclasses
from typing import Any

from absl import flags

from tfdist.cli import failure
from tfdist.cli import usage
from tfdist.cli import user_function

TASKS = ("digits", "text", "teacher")
"""The names in `tfdist.simulation.tasks`, known without TensorFlow."""

_BATCH_SIZE = 32
_HELD_OUT = 10  # One example in so many is for validation.


@dataclasses.dataclass(frozen=True)
class ModelAndData:
    """A model and its data.

    Attributes:
        name: for titles.
        model_fn_of: callable of a learning rate (`None` for its own) and a
            momentum that returns the `model_fn` of `simulate`.
        train: training examples, a tuple of arrays.
        validation: others.
        batch_size: examples of one gradient.
        learning_rate: that of `--learning_rate`, else its own; `None` if
            that is a schedule, a function, or one of several.
        momentum: that of `--momentum`, else its own; `None` if nobody says.
    """

    name: str
    model_fn_of: Callable[[float | None, float], Callable[[], Any]]
    train: tuple[Any, ...]
    validation: tuple[Any, ...]
    batch_size: int
    learning_rate: float | None
    momentum: float | None

    @property
    def num_batches(self) -> int:
        """Gradients of one epoch."""
        return -(-len(self.train[0]) // self.batch_size)

    @property
    def learning_rates(self) -> list[float | None]:
        """Rates to choose from; with many workers or momentum less is better.

        None alone where the model's own is no number.
        """
        if self.learning_rate is None:
            return [None]
        return [self.learning_rate / part for part in (10, 3, 1)]

    def check_workers(self, num_workers: int) -> None:
        """Refuses more workers than there are batches."""
        usage.check(
            num_workers <= self.num_batches,
            "num_workers",
            f"be at most {self.num_batches}, the batches of {self.batch_size} "
            "examples that there are",
            num_workers,
        )


def check(values: flags.FlagValues) -> None:
    """Refuses what can be seen to be wrong without TensorFlow."""
    for name, other in (("model", "data"), ("data", "model")):
        spec = values[name].value
        if spec is None:
            continue
        usage.check(
            values[other].value is not None,
            name,
            f"be given together with --{other}",
            spec,
        )
        usage.check(
            not values["task"].present,
            name,
            "not be given beside --task, which has both a model and data",
            spec,
        )
        user_function.check_spec(name, spec)


def make(values: flags.FlagValues) -> ModelAndData:
    """Returns the model and data to train.

    Args:
        values: flags that `check` accepts.

    Raises:
        UsageError: if a flag does not fit.
    """
    # So that neither the task nor the user's code writes what it would.
    user_function.import_quietly("tfdist.simulation")
    made = _of_task(values) if values.model is None else _own(values)
    usage.check(
        made.batch_size <= len(made.train[0]),
        "batch_size",
        f"be at most {len(made.train[0])}, the number of examples",
        made.batch_size,
    )
    return made


def _of_task(values: flags.FlagValues) -> ModelAndData:
    from tfdist.simulation import tasks

    task = tasks.load(values.task)
    return ModelAndData(
        name=task.name,
        model_fn_of=task.model_fn,
        train=task.train,
        validation=task.validation,
        batch_size=_given(values, "batch_size", task.batch_size),
        learning_rate=_given(values, "learning_rate", task.learning_rate),
        momentum=values.momentum,
    )


def _given(values: flags.FlagValues, name: str, default: Any) -> Any:
    """The value of a flag that may be undefined, or not given."""
    value = values[name].value if name in values else None
    return default if value is None else value


def _own(values: flags.FlagValues) -> ModelAndData:
    make_model = user_function.load_function("model", values.model)
    model = _checked_model(values, make_model())
    optimizer = model.optimizer
    its_rate = its_momentum = None
    if not _has_own_rate(optimizer):
        its_rate = float(optimizer.learning_rate)
    if getattr(optimizer, "momentum", 0):
        its_momentum = float(optimizer.momentum)
    for name in ("learning_rate", "momentum"):
        if _given(values, name, 0):
            _check_settable(optimizer, name, values[name].value)
    train, validation = _own_data(values)
    for arrays in (train, validation):
        _check_fits(values, model, arrays)
    return ModelAndData(
        name=values.model.rpartition(":")[2],
        model_fn_of=_setter(values, make_model, model),
        train=train,
        validation=validation,
        batch_size=_given(values, "batch_size", _BATCH_SIZE),
        learning_rate=_given(values, "learning_rate", its_rate),
        momentum=_given(values, "momentum", its_momentum),
    )


def _check_fits(
    values: flags.FlagValues, model: Any, arrays: tuple[Any, ...]
) -> None:
    """Refuses data that the model cannot be evaluated on."""
    try:
        model.evaluate(*(array[:1] for array in arrays[:2]), verbose=0)
    except Exception as error:
        if failure.own_frames(error):
            raise  # In the model's own code, which is to be seen.
        shapes = ", ".join(
            f"{name} of shape {array.shape} and type {array.dtype}"
            for name, array in zip("xy", arrays, strict=False)
        )
        raise usage.UsageError(
            f"Flag --data must return what --model={values.model} takes. "
            f"Received: --data={values.data}, with {shapes}: "
            f"{failure.message_of(error)}"
        ) from error


def _has_own_rate(optimizer: Any) -> bool:
    """Whether its rate is no number that can be set.

    A `MultiOptimizer` has several.
    """
    from tfdist import private_keras

    return (
        hasattr(optimizer, "optimizers")
        or private_keras.has_rate_function(optimizer)
        or private_keras.learning_rate_schedule(optimizer) is not None
    )


def _check_settable(optimizer: Any, name: str, value: float) -> None:
    kind = type(optimizer).__name__
    if name == "learning_rate":
        usage.check(
            not _has_own_rate(optimizer),
            name,
            f"not be given for --model: its {kind} has a schedule of its own, "
            "a function, or several optimizers",
            value,
        )
    else:
        usage.check(
            hasattr(optimizer, "momentum"),
            name,
            f"be 0 for --model: its {kind} has no momentum",
            value,
        )


def _setter(
    values: flags.FlagValues, make_model: Callable[[], Any], first: Any
) -> Callable[[float | None, float], Callable[[], Any]]:
    """Returns the `model_fn_of` of an own model."""
    last = first

    def model_fn_of(learning_rate, momentum):
        def model_fn():
            nonlocal last
            model = _checked_model(values, make_model())
            usage.check(
                model is not last,
                "model",
                "return a new model at each call, not one that has "
                "been trained",
                values.model,
            )
            last = model
            optimizer = model.optimizer
            if learning_rate is not None and not _has_own_rate(optimizer):
                optimizer.learning_rate = learning_rate
            if hasattr(optimizer, "momentum"):
                optimizer.momentum = momentum
            return model

        return model_fn

    return model_fn_of


def _checked_model(values: flags.FlagValues, model: Any) -> Any:
    from tfdist.simulation import data

    try:
        data.check_model(model)
    except (TypeError, ValueError) as error:
        reason = str(error).replace("model_fn", "the function")
        raise usage.UsageError(
            f"Flag --model={values.model}: {reason}"
        ) from error
    return model


def _own_data(
    values: flags.FlagValues,
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    import tensorflow as tf

    examples = user_function.load_function("data", values.data)()

    def holds_both(value):
        return (
            isinstance(value, (tuple, list))
            and len(value) == 2
            and all(isinstance(v, (tuple, tf.data.Dataset)) for v in value)
        )

    if holds_both(examples):
        train, validation = (_arrays(values, part) for part in examples)
        return train, validation
    arrays = _arrays(values, examples)
    number = len(arrays[0])
    usage.check(
        number >= _HELD_OUT,
        "data",
        f"return at least {_HELD_OUT} examples, or others for validation",
        values.data,
    )
    held_out = slice(_HELD_OUT - 1, None, _HELD_OUT)
    kept = [k for k in range(number) if k % _HELD_OUT != _HELD_OUT - 1]
    return (
        tuple(array[kept] for array in arrays),
        tuple(array[held_out] for array in arrays),
    )


def _arrays(values: flags.FlagValues, examples: Any) -> tuple[Any, ...]:
    """The examples as arrays, checked as the simulator does it."""
    from tfdist.simulation import data

    try:
        return data.Data(examples, 1, shuffle=False).arrays
    except (TypeError, ValueError) as error:
        raise usage.UsageError(
            "Flag --data: the function must return ((x, y), (x_validation, "
            f"y_validation)) or (x, y). Received: --data={values.data}: "
            f"{error}"
        ) from error
