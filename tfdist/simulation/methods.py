"""The names of methods, and what they take."""

import dataclasses
import inspect

from tfdist import correction as correction_lib
from tfdist import synchronization as synchronization_lib
from tfdist.averaging import LocalSteps
from tfdist.correction import Correction
from tfdist.simulation import local_methods
from tfdist.simulation.method import Method
from tfdist.synchronization import Synchronization


def _delay_compensation(
    lambda_0=None, variance_decay=None, epsilon=1e-7, backups="server"
):
    return Method(
        correction=correction_lib.DelayCompensation(
            lambda_0, variance_decay, epsilon=epsilon, backups=backups
        )
    )


def _dana(variant="slim", momentum=0.9, lambda_0=None, backups=None):
    return Method(
        correction=correction_lib.DANA(
            variant, momentum, lambda_0=lambda_0, backups=backups
        )
    )


def _sync(backup_workers=0, on_drop="next"):
    return Method(synchronization_lib.Sync(backup_workers, on_drop=on_drop))


def _backup_workers(backup_workers=1, on_drop="next"):
    return _sync(backup_workers, on_drop)


def _softsync(s=None, n=None):
    return Method(synchronization_lib.SoftSync(s, n=n))


def _bounded_staleness(max_staleness=3):
    return Method(synchronization_lib.BoundedStaleness(max_staleness))


METHODS = {
    "sync": _sync,
    "backup_workers": _backup_workers,
    "async": Method,
    "softsync": _softsync,
    "bounded_staleness": _bounded_staleness,
    "dc_asgd": _delay_compensation,
    "dana": _dana,
    **local_methods.METHODS,
}
"""Name -> what makes the `Method` from its settings."""

SYNCHRONIZATIONS = {
    name: METHODS[name]
    for name in (
        "sync",
        "backup_workers",
        "async",
        "softsync",
        "bounded_staleness",
    )
}
"""What methods with local steps take as `synchronization=`, with its default
settings."""

CORRECTIONS = {
    "inverse_staleness": correction_lib.InverseStaleness,
    "gap_aware": correction_lib.GapAware,
    "fasgd": correction_lib.FASGD,
}


def parse(text):
    """The method that a flag names.

    Args:
      text: A name of `METHODS`, and settings: `softsync:n=1`,
        `dc_asgd:variance_decay=0.95`, `dana:variant=zero:momentum=0.9`. Those
        without a correction of their own take
        `correction=inverse_staleness`, `gap_aware` or `fasgd`, and those with
        local steps `synchronization=` one of `SYNCHRONIZATIONS`.

    Raises:
      ValueError: There is no such method, or it has no such setting.
    """
    name, *settings = str(text).split(":")
    if name not in METHODS:
        raise ValueError(
            f"A method must be one of {', '.join(METHODS)}, with settings "
            f"after colons (softsync:n=1). Received: {text!r}."
        )
    make = METHODS[name]
    known = [] if make is Method else list(inspect.signature(make).parameters)
    allowed = known if name in ("dc_asgd", "dana") else [*known, "correction"]
    if name in local_methods.METHODS:
        allowed = [*allowed, "synchronization"]
    values = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or key not in allowed:
            raise ValueError(
                f"{name} has the settings "
                f"{', '.join(f'{key}=' for key in allowed)}. Received: "
                f"{setting!r} in {text!r}."
            )
        values[key] = _value(value)
    correction = values.pop("correction", None)
    synchronization = values.pop("synchronization", None)
    try:
        method = make(**values)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{text!r}: {error}") from error
    if correction is not None:
        make = _one_of("correction", CORRECTIONS, correction, text)
        method = dataclasses.replace(method, correction=make())
    if synchronization is not None:
        make = _one_of(
            "synchronization", SYNCHRONIZATIONS, synchronization, text
        )
        method = dataclasses.replace(
            method, synchronization=make().synchronization
        )
    return dataclasses.replace(method, name=str(text))


def _one_of(setting, known, name, text):
    if name not in known:
        raise ValueError(
            f"{setting} must be one of {', '.join(known)}. "
            f"Received: {name!r} in {text!r}."
        )
    return known[name]


def as_method(strategy):
    """The `Method` that is meant.

    Args:
      strategy: A `Method`, a text for `parse`, a `Synchronization`, a
        `Correction`, `LocalSteps`, or a strategy of tfdist (of its arguments,
        those three).

    Raises:
      ValueError: It is a text that names none.
      TypeError: It is something else.
    """
    if isinstance(strategy, Method):
        return strategy
    if isinstance(strategy, str):
        return parse(strategy)
    if isinstance(strategy, Synchronization):
        return Method(strategy)
    if isinstance(strategy, Correction):
        return Method(correction=strategy)
    if isinstance(strategy, LocalSteps):
        return Method(local_steps=strategy)
    if hasattr(strategy, "synchronization") and hasattr(strategy, "correction"):
        return Method(
            strategy.synchronization,
            strategy.correction,
            local_steps=getattr(strategy, "local_steps", None),
        )
    raise TypeError(
        "strategy must be a tfdist.simulation.Method, one of "
        f"{', '.join(METHODS)}, a Synchronization, a Correction, LocalSteps or "
        f"a strategy of tfdist. Received: {strategy!r}."
    )


def _value(text):
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return {"none": None, "true": True, "false": False}.get(text, text)
