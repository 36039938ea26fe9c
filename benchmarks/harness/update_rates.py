"""Rates of updates and steps: measured in a turn, and without any overhead."""

import dataclasses
import heapq

import numpy as np

_SIMULATED_UPDATES = 20_000


@dataclasses.dataclass(frozen=True)
class Turn:
    """What a cluster did in one turn.

    Attributes:
        updates_per_second: updates of the parameters.
        steps_per_second: gradients that all workers together made.
        dropped: share of the gradients that no update took.
        intervals: seconds between one update and the next, a list.
    """

    updates_per_second: float
    steps_per_second: float
    dropped: float
    intervals: list


def of_turn(begin, end, records):
    """Sums up a turn; see `gated_training.GatedTraining.turn`.

    An update is there when the first worker has seen it. One that nobody saw,
    because the next came so soon, counts as of the moment of the next. A
    record without a number of updates is an update for itself.
    """
    times = []
    latest = None
    for position, (when, version, _) in enumerate(records):
        if version is None:
            version = position + 1
        if latest is None:
            # Which updates before this one are of this turn nobody knows.
            latest = version - 1
        times.extend([when] * (version - latest))
        latest = max(latest, version)
    seconds = end - begin
    return Turn(
        updates_per_second=len(times) / seconds,
        steps_per_second=len(records) / seconds,
        dropped=(
            sum(not accepted for *_, accepted in records) / len(records)
            if records
            else 0.0
        ),
        intervals=np.diff(times).tolist(),
    )


def asynchronous(sleeps, num_workers):
    """Gradients per second where nobody ever waits."""
    return sum(1.0 / sleeps.mean(worker) for worker in range(num_workers))


def bounded(sleeps, num_workers, max_staleness):
    """Gradients per second where a worker may be so many steps ahead.

    Ho et al. 2013 (More Effective Distributed ML via a Stale Synchronous
    Parallel Parameter Server), simulated without any overhead.
    """
    steps = _SIMULATED_UPDATES
    draws = np.stack(
        [sleeps.draw(worker, steps) for worker in range(num_workers)], axis=1
    )
    # When all have finished a step, and when each has finished its last.
    all_done = np.zeros(steps)
    done = np.zeros(num_workers)
    for step in range(steps):
        if step > max_staleness:
            done = np.maximum(done, all_done[step - 1 - max_staleness])
        done = done + draws[step]
        all_done[step] = done.max()
    return num_workers * steps / all_done[-1]


def synchronous(sleeps, num_workers, backup_workers):
    """Updates per second of synchronous training, without any overhead.

    Chen et al. 2016 (Revisiting Distributed Synchronous SGD), algorithms 3 and
    4: an update takes the first `num_workers - backup_workers` gradients of
    the newest parameters; a later one is dropped, and its worker goes on with
    the newest parameters. Simulated.
    """
    draws = [
        sleeps.draw(worker, 2 * _SIMULATED_UPDATES)
        for worker in range(num_workers)
    ]
    made = [0] * num_workers
    busy = []
    version = 0
    now = 0.0

    def begin(worker):
        sleep = draws[worker][made[worker] % len(draws[worker])]
        made[worker] += 1
        heapq.heappush(busy, (now + sleep, worker, version))

    waiting = list(range(num_workers))
    while version < _SIMULATED_UPDATES:
        for worker in waiting:
            begin(worker)
        waiting = []
        while len(waiting) < num_workers - backup_workers:
            now, worker, computed_from = heapq.heappop(busy)
            if computed_from == version:
                waiting.append(worker)
            else:
                begin(worker)
        version += 1
    return version / now
