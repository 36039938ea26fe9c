"""What is simulated: a synchronization and a correction, under a name."""

import dataclasses
import inspect

from tfdist import correction as correction_lib
from tfdist import synchronization as synchronization_lib
from tfdist.correction import Copies
from tfdist.correction import Correction
from tfdist.synchronization import Synchronization


@dataclasses.dataclass(frozen=True)
class Method:
    """A point in the space of methods.

    Attributes:
      synchronization: A `Synchronization`; default: `Async()`.
      correction: A `Correction`, or None.
      name: For tables and pictures; default: from the two.
    """

    synchronization: Synchronization = dataclasses.field(
        default_factory=synchronization_lib.Async
    )
    correction: Correction | None = None
    name: str = ""

    def __post_init__(self):
        if not isinstance(self.synchronization, Synchronization):
            raise TypeError(
                "Method: synchronization must be one of "
                "tfdist.synchronization. Received: "
                f"{self.synchronization!r}."
            )
        if self.correction is not None and not isinstance(
            self.correction, Correction
        ):
            raise TypeError(
                "Method: correction must be one of tfdist.correction or None. "
                f"Received: {self.correction!r}."
            )
        if not self.name:
            parts = [self.synchronization, self.correction]
            name = " + ".join(repr(part) for part in parts if part is not None)
            object.__setattr__(self, "name", name)

    def resolve(self, num_workers):
        """The method with all settings known for so many workers.

        Raises:
          ValueError: The settings do not fit together.
        """
        synchronization = self.synchronization.resolve(num_workers)
        correction = self.correction
        if correction is not None:
            correction = correction.resolve(synchronization, num_workers)
        return dataclasses.replace(
            self, synchronization=synchronization, correction=correction
        )

    @property
    def remembers_workers(self):
        """Whether servers keep something of each worker."""
        correction = self.correction
        return (
            correction is not None
            and correction.remembers_workers
            and not correction.on_worker
        )

    @property
    def copies_per_push(self):
        """How many times the parameters' bytes a push is."""
        correction = self.correction
        sends = correction is not None and correction.copies is Copies.WORKER
        return 2 if sends and not correction.on_worker else 1


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
    if s is None and n is None:
        n = 1
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
}
"""Name -> what makes the `Method` from its settings."""

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
        `correction=inverse_staleness`, `gap_aware` or `fasgd`.

    Raises:
      ValueError: There is no such method, or it has no such setting.
    """
    name, *settings = str(text).split(":")
    # As `examples/strategy_flags.py` spells it.
    name = {"dcasgd": "dc_asgd"}.get(name, name)
    if name not in METHODS:
        raise ValueError(
            f"A method must be one of {', '.join(METHODS)}, with settings "
            f"after colons (softsync:n=1). Received: {text!r}."
        )
    make = METHODS[name]
    known = [] if make is Method else list(inspect.signature(make).parameters)
    allowed = known if name in ("dc_asgd", "dana") else [*known, "correction"]
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
    try:
        method = make(**values)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{text!r}: {error}") from error
    if correction is not None:
        if correction not in CORRECTIONS:
            raise ValueError(
                f"correction must be one of {', '.join(CORRECTIONS)}. "
                f"Received: {correction!r} in {text!r}."
            )
        method = dataclasses.replace(
            method, correction=CORRECTIONS[correction]()
        )
    return dataclasses.replace(method, name=str(text))


def as_method(strategy):
    """The `Method` that is meant.

    Args:
      strategy: A `Method`, a text for `parse`, a `Synchronization`, a
        `Correction`, or a strategy of tfdist (of its arguments, those two).

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
    if hasattr(strategy, "synchronization") and hasattr(strategy, "correction"):
        return Method(strategy.synchronization, strategy.correction)
    raise TypeError(
        "strategy must be a tfdist.simulation.Method, one of "
        f"{', '.join(METHODS)}, a Synchronization, a Correction or a strategy "
        f"of tfdist. Received: {strategy!r}."
    )


def _value(text):
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return None if text == "none" else text
