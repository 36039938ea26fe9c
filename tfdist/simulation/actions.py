"""Actions of servers and workers, which `training.Training` computes."""

import dataclasses

from tfdist.synchronization import state as state_lib


@dataclasses.dataclass
class LocalRun:
    """The local steps that one push stands for.

    Attributes:
      counted: Steps that its worker's optimizer had counted before.
      adopts: Whether its worker begins it with what the servers give.
      batches: Their batches, a list.
      examples: Examples in those that are done.
      is_rest: Whether it is pushed because the worker's data ended, not
        because it was due.
    """

    counted: int
    adopts: bool
    batches: list
    examples: int = 0
    is_rest: bool = False


@dataclasses.dataclass
class Job:
    """One gradient, or what one push brings of several local steps.

    Times are in virtual seconds, None while unknown.

    Attributes:
      number: Of all gradients, in the order in which they were begun.
      worker: Whose it is.
      step: Which of its worker's steps, from 0; of local ones the first.
      batch: The batch, counted over all epochs; of local steps the first.
      pulled: Version of the parameters that it is computed from.
      pulling: When its worker was given these.
      began: When they had arrived, and computing began.
      computed: When the gradient was ready; fetches in between are before.
      arrived: When all servers had it.
      decided: When the worker might go on.
      accepted: Whether it became part of an update.
      staleness: Updates that it was late by.
      fetching: Seconds of the fetches between its steps.
      local: A `LocalRun`, None where workers push after every step.
    """

    number: int
    worker: int
    step: int
    batch: int
    pulled: int
    pulling: float
    began: float | None = None
    computed: float | None = None
    arrived: float | None = None
    decided: float | None = None
    accepted: bool | None = None
    staleness: int | None = None
    fetching: float = 0.0
    local: LocalRun | None = None

    @property
    def batches(self):
        """All its batches, a list."""
        return [self.batch] if self.local is None else self.local.batches

    @property
    def steps(self):
        """Number of steps that it stands for."""
        return len(self.batches)


@dataclasses.dataclass(frozen=True)
class Begin:
    """A worker is given the parameters as they are, for a gradient.

    Attributes:
      anew: Whether it is another process than that of its last gradient.
      servers: Numbers of the servers whose parameters it is given now, a
        set; others give it theirs at another moment. None for all.
    """

    time: float
    job: Job
    anew: bool = False
    servers: frozenset | None = None


@dataclasses.dataclass(frozen=True)
class Fetch:
    """A worker is given the parameters as they are, between two pushes.

    Attributes:
      done: Steps of the job that it has taken before.
    """

    time: float
    job: Job
    done: int


@dataclasses.dataclass(frozen=True)
class LogEntry:
    """Servers carry out an entry of the log; see `State`.

    Attributes:
      job: The gradient; None for none.
    """

    time: float
    job: Job | None
    worker: int
    staleness: int
    first: bool
    count: int
    forget: bool


@dataclasses.dataclass(frozen=True)
class Drop:
    """A gradient is not used."""

    time: float
    job: Job


def read_log(state, first, jobs, time):
    """Returns the entries of a ledger's log.

    Args:
      state: A `State` of NumPy values.
      first: Number of the first entry that is wanted.
      jobs: `Job`s by the keys of their gradients, a list.
      time: When servers carry them out.

    Returns:
      A list of `LogEntry`.
    """
    entries = []
    for number in range(first, int(state.head)):
        place = number % len(state.log_key)
        key = int(state.log_key[place])
        entries.append(
            LogEntry(
                time=time,
                job=jobs[key] if key >= 0 else None,
                worker=int(state.log_worker[place]),
                staleness=int(state.log_staleness[place]),
                first=bool(state.log_first[place]),
                count=int(state.log_count[place]),
                forget=key == state_lib.FORGET,
            )
        )
    return entries
