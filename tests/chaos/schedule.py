"""What happens to which process, and when: from a seed, and nothing else."""

import dataclasses
import random

KILL, STOP = "kill", "stop"
# Seconds to the next event. Often it follows at once: what a recovery does
# is done within a second or two.
_SOON, _LATER = (0.0, 0.6), (0.6, 4.0)
_SOON_SHARE = 0.4
_RESTART_SECONDS = (0.0, 3.0)
_STOP_SECONDS = (1.0, 15.0)
# Shares of events: all servers at once, one server, one worker.
_ALL_SERVERS, _SERVER = 0.1, 0.45
_STOP_SHARE = 0.35


@dataclasses.dataclass(frozen=True)
class Event:
    """Something that happens to processes of a cluster.

    Attributes:
      number: Its place in the schedule, from 0.
      time: Seconds since the beginning of the schedule.
      kind: `KILL` (SIGKILL, and started again later) or `STOP` (SIGSTOP, and
        SIGCONT later).
      targets: Tuple of (job, index).
      seconds: Until they are started again or continue.
    """

    number: int
    time: float
    kind: str
    targets: tuple
    seconds: float

    @property
    def end(self):
        """Seconds until its processes are back, from the beginning."""
        return self.time + self.seconds

    def __str__(self):
        names = ", ".join(f"{job}-{index}" for job, index in self.targets)
        until = "started again" if self.kind == KILL else "continues"
        return (
            f"#{self.number} {self.kind} {names}, {until} {self.seconds:.2f} s "
            "later"
        )


def make(seed, num_events, *, num_ps, num_workers):
    """Draws a schedule.

    Nothing happens to a process that is away. At least one worker is never
    away: what no server and no worker has is lost for good. All servers may be
    away at once.

    Args:
      seed: Integer, or anything else that `random.Random` takes.
      num_events: How many.
      num_ps: Number of servers.
      num_workers: Number of workers, the first of which is the chief.

    Returns:
      A list of `Event`, by time.
    """
    generator = random.Random(seed)
    servers = [("ps", index) for index in range(num_ps)]
    workers = [("worker", index) for index in range(num_workers)]
    events, time = [], 0.0
    back = dict.fromkeys(servers + workers, 0.0)
    while len(events) < num_events:
        soon = generator.random() < _SOON_SHARE
        time += generator.uniform(*(_SOON if soon else _LATER))
        there = [target for target, at in back.items() if at <= time]
        if targets := _draw_targets(generator, there, servers, workers):
            stops = generator.random() < _STOP_SHARE
            between = _STOP_SECONDS if stops else _RESTART_SECONDS
            events.append(
                Event(
                    len(events),
                    time,
                    STOP if stops else KILL,
                    targets,
                    generator.uniform(*between),
                )
            )
            back.update(dict.fromkeys(targets, events[-1].end))
    return events


def _draw_targets(generator, there, servers, workers):
    """Processes that something may happen to now, none if there are none."""
    share = generator.random()
    here = [server for server in servers if server in there]
    if share < _ALL_SERVERS:
        return tuple(here) if len(here) == len(servers) else ()
    if share >= _ALL_SERVERS + _SERVER:
        here = [worker for worker in workers if worker in there]
        if len(here) < 2:
            return ()
    return (generator.choice(here),) if here else ()
