"""Fault tolerance: timeouts, preemption, and the servers' snapshots."""

from collections.abc import Iterable
from collections.abc import Mapping
import dataclasses
import difflib
import inspect
import os
from typing import Any
from typing import Literal

from tfdist import checks
from tfdist.cluster import environment
from tfdist.cluster import groups
from tfdist.cluster import member_table

_ON_PREEMPTION = ("exit", "note")
ON_STALL = ("drop", "fail", "wait")


@dataclasses.dataclass(frozen=True)
class FaultTolerance:
    """Settings for tasks that die, hang or come back.

    ```python
    strategy = tfdist.AsyncStrategy(
        fault_tolerance=tfdist.FaultTolerance(worker_timeout=30.0)
    )
    ```

    Args:
      start_timeout: Seconds to wait for servers, for the chief's variables,
        and for workers that have not begun to train: where updates take the
        gradients of several workers, and in `strategy.barrier`.
      worker_timeout: Seconds without a heartbeat before a worker is considered
        lost, and nobody waits for it; when it comes back, it takes part again.
      server_timeout: Seconds to wait for a server that has died, hangs or
        cannot be reached. When it is back, started again at the same address,
        training goes on.
      stall_timeout: Seconds without progress in a call to servers after which
        the log says what this worker waits for, with the stack; again each
        time that this time has doubled.
      on_stall: What else is done then. "drop": nobody waits any more for a
        worker that is there and sends no gradients. "fail": the process ends
        with status 70 (a call that waits in TensorFlow cannot be interrupted
        in another way). "wait": nothing; and servers that are gone are waited
        for without end, where else `TimeoutError` is raised after
        `server_timeout`.
      on_preemption: What a worker or evaluator does that gets SIGTERM, unless
        the script has a handler of its own. "exit": `fit` (or what runs) ends
        by `SystemExit(143)` after the step, which counts; `finally` and
        `atexit` run, and nobody waits for the worker. "note": it goes on, and
        `strategy.preempted` is True. Without servers SIGTERM is left as it is.
      snapshot_dir: Directory in which servers keep snapshots of what they
        hold, and find them when they are started again: optimizer slots and
        the state of algorithms, which no worker has. Seen by servers alone,
        and used by one cluster at a time; groups of codistillation each have
        a directory in it. When training has ended the snapshots are removed;
        those of a run that was stopped are what the next one begins with.
        Default: none, but under `tfdist launch`, which has a directory of its
        own.
      snapshot_every: Seconds between two snapshots; more where one takes
        longer than a twentieth of that.

    Raises:
      ValueError: An argument is not allowed; the message says what is.
    """

    start_timeout: float = 300.0
    worker_timeout: float = 10.0
    server_timeout: float = 300.0
    stall_timeout: float = 600.0
    on_stall: Literal["drop", "fail", "wait"] = "drop"
    on_preemption: Literal["exit", "note"] = "exit"
    snapshot_dir: str | os.PathLike[str] | None = None
    snapshot_every: float = 30.0

    def __post_init__(self) -> None:
        for name in (
            "start_timeout",
            "server_timeout",
            "stall_timeout",
            "snapshot_every",
        ):
            seconds = checks.positive(name, getattr(self, name))
            object.__setattr__(self, name, seconds)
        least = 2 * member_table.HEARTBEAT_SECONDS
        seconds = checks.number(
            "worker_timeout",
            self.worker_timeout,
            lambda value: value > least,
            f"above {least:g}, two heartbeats",
        )
        object.__setattr__(self, "worker_timeout", seconds)
        for name, choices in (
            ("on_stall", ON_STALL),
            ("on_preemption", _ON_PREEMPTION),
        ):
            if getattr(self, name) not in choices:
                raise ValueError(
                    f"Argument `{name}` must be one of {', '.join(choices)}. "
                    f"Received: {name}={getattr(self, name)!r}"
                )
        if self.snapshot_dir is not None:
            checks.path("snapshot_dir", self.snapshot_dir)

    def get_config(self) -> dict[str, Any]:
        """The arguments, a dict from which an equal one can be made."""
        return dataclasses.asdict(self)


def snapshots_of(
    tolerance: FaultTolerance, environ: Mapping[str, str]
) -> tuple[str | os.PathLike[str] | None, float]:
    """Directory of a server's snapshots, or None, and seconds between them.

    Args:
      tolerance: The program's `FaultTolerance`.
      environ: The environment, in which `tfdist launch` says its own.
    """
    directory = environ.get(environment.SNAPSHOT_DIR)
    if tolerance.snapshot_dir is not None:
        directory = tolerance.snapshot_dir
        group = groups.Group.from_tf_config(environ)
        if group.num_groups > 1:
            directory = os.path.join(directory, f"group-{group.index}")
        return directory, tolerance.snapshot_every
    if not directory:
        return None, tolerance.snapshot_every
    return directory, float(environ[environment.SNAPSHOT_EVERY])


def checked(fault_tolerance: FaultTolerance | None) -> FaultTolerance:
    """Returns what was given, or the default.

    Raises:
      TypeError: It is no `FaultTolerance`.
    """
    if fault_tolerance is None:
        return FaultTolerance()
    if not isinstance(fault_tolerance, FaultTolerance):
        raise TypeError(
            "Argument `fault_tolerance` must be a tfdist.FaultTolerance. "
            f"Received: fault_tolerance={fault_tolerance!r}"
        )
    return fault_tolerance


def refuse(unknown: Iterable[str], strategy: type) -> None:
    """Refuses keyword arguments that a strategy does not have.

    Args:
      unknown: Their names; none is fine.
      strategy: The class, whose arguments the error names.

    Raises:
      TypeError: There are some.
    """
    unknown = sorted(unknown)
    if not unknown:
        return
    names = list(inspect.signature(strategy).parameters)
    hint = ""
    if "fault_tolerance" in names and unknown[0] in (
        inspect.signature(FaultTolerance).parameters
    ):
        hint = (
            f" Write fault_tolerance=tfdist.FaultTolerance({unknown[0]}=...)."
        )
    elif close := difflib.get_close_matches(unknown[0], names, 1):
        hint = f" Did you mean `{close[0]}`?"
    raise TypeError(
        f"{strategy.__name__} got an unexpected keyword argument "
        f"{', '.join(map(repr, unknown))}.{hint} Its arguments are: "
        f"{', '.join(names)}."
    )
