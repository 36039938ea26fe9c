"""The arguments that all strategies with servers have in common, as a type."""

from collections.abc import Callable
import inspect
import typing
from typing import Any
from typing import Literal
from typing import TypedDict

import tensorflow as tf

from tfdist.averaging import LocalSteps
from tfdist.correction import Correction
from tfdist.strategies.fault_tolerance import FaultTolerance
from tfdist.synchronization import Synchronization


class Unknown(TypedDict):
    """No argument: what a strategy refuses itself, with a hint."""


class WithoutServers(TypedDict, total=False):
    """Arguments of a strategy whose cluster has no parameter servers."""

    cluster_resolver: tf.distribute.cluster_resolver.ClusterResolver | None
    nonfinite: Literal["drop", "fail", "ignore"]
    fault_tolerance: FaultTolerance | None
    seed: int | None


class Options(WithoutServers, total=False):
    """Arguments that presets share with `ParameterServerStrategy`."""

    communication: Literal["parameter_server", "ring"]
    variable_partitioner: Callable[..., Any] | None
    table_bytes: int | None
    table_rule: Literal["lazy", "dense"]
    warmup_worker_steps: int
    worker_start: Literal["together", "staggered", "independent"]
    decisions: Literal["chief", "each"]
    work: Literal["shares", "queue"]
    portions_per_worker: int


class AnyCorrection(Options, total=False):
    """Options beside a synchronization that is given."""

    correction: Correction | None
    local_steps: LocalSteps | int | None


class AnySynchronization(Options, total=False):
    """Options beside a correction that is given."""

    synchronization: Synchronization | None
    local_steps: LocalSteps | int | None


class AnyExchange(Options, total=False):
    """Options beside local steps that are given."""

    synchronization: Synchronization | None
    correction: Correction | None


def write_out(preset, strategy):
    """Makes `inspect.signature`, `help` and notebooks show all arguments.

    Args:
      preset: A class whose `**kwargs` are an `Unpack` of one of these.
      strategy: The class that documents them.
    """
    own = dict(inspect.signature(preset.__init__).parameters)
    del own["self"]
    *_, last = own.values()
    if last.kind == last.VAR_KEYWORD and typing.get_args(last.annotation):
        (options,) = typing.get_args(last.annotation)
        del own[last.name]
        known = inspect.signature(strategy.__init__).parameters
        for name, parameter in known.items():
            if name in options.__annotations__:
                own[name] = parameter.replace(
                    kind=inspect.Parameter.KEYWORD_ONLY
                )
    preset.__signature__ = inspect.Signature(list(own.values()))
