"""Limits of a launched run."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Limits:
    """Restarts, times and numbers of workers that a run may have.

    Attributes:
        max_restarts: how often each task that fails is started again.
        fail_fast: whether the first failure ends the run, and nothing is
            started again.
        grace_seconds: how long tasks may end by themselves.
        terminate_seconds: how long they have between SIGTERM and SIGKILL.
        leave_seconds: how long a worker that is not wanted any more has
            between SIGTERM and SIGKILL.
        min_workers: how many workers there are at least; 1 where there is no
            chief.
        timeout: seconds for the whole run; 0 for no limit.
    """

    max_restarts: int = 0
    fail_fast: bool = False
    grace_seconds: float = 10.0
    terminate_seconds: float = 15.0
    leave_seconds: float = 30.0
    min_workers: int = 1
    timeout: float = 0.0
