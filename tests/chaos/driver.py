"""Makes the events of a schedule happen to a cluster that trains.

Every wait is bounded. A process that ends by itself, or does not go on within
its bound, fails the run; the failure shows the seed, all that has happened and
what the processes have printed.
"""

import dataclasses
import heapq
import re
import signal
import time

import numpy as np

from tests.chaos import schedule
from tests.multi_process import recovery_tasks

_POLL_SECONDS = 0.02
# A worker counts as training after so many steps; the others as well go on
# for so many when all is over.
_STEPS = 20
# A power of two, for `recovery_tasks.SumsRows`.
_RATE = 2.0**-8
# Beyond the longest stop, keep-alive and the start of a process, on a machine
# that has other things to do.
START_SECONDS = 180.0
PROGRESS_SECONDS = 90.0
END_SECONDS = 150.0
# Training that has begun leaves less than this of the targets' variance.
_LOSS_SHARE = 0.5
_OUTPUT_LINES = 80
# What TensorFlow says about lost connections.
_NOISE = re.compile("grpc_|GRPC|This could happen if|^E0000")


class ChaosError(AssertionError):
    """A cluster did not survive what it has to."""


@dataclasses.dataclass
class Outcome:
    """What became of one run.

    Attributes:
      strategy: Name of one of `recovery_tasks.STRATEGIES`.
      seed: Of the schedule.
      events: How many have happened.
      seconds: From the first event to the end of all processes.
      slowest: The longest time in seconds from the moment at which all
        processes were there again until all workers made steps.
      pushed: Gradients that the last process of each worker has sent.
      applied: Of these, the fewest that a server has applied.
      dropped: Of these, dropped.
      lost: Of these, the most that a server has lost.
      recoveries: Recoveries of the last process of each worker.
      loss: (before, after): of the mean of the targets, the worst of workers.
      server_mib: Resident memory of servers that were not started again
        within the last minute, largest.
    """

    strategy: str
    seed: int
    events: int = 0
    seconds: float = 0.0
    slowest: float = 0.0
    pushed: int = 0
    applied: int = 0
    dropped: int = 0
    lost: int = 0
    recoveries: int = 0
    loss: tuple = ()
    server_mib: float = 0.0


class Chaos:
    """One run of one strategy.

    Args:
      cluster: A fresh `ClusterUnderTest`.
      strategy: Name of one of `recovery_tasks.STRATEGIES`.
      num_ps: Number of servers.
      snapshot_every: Seconds between snapshots of servers, 0 for none.
      pace: Seconds that workers pause after each step.
      tell: Called with each line of the log.
    """

    def __init__(
        self,
        cluster,
        strategy,
        *,
        num_ps,
        snapshot_every=1.0,
        pace=0.03,
        tell=print,
    ):
        self._cluster = cluster
        self._num_ps = num_ps
        self._strategy = strategy
        self._every = snapshot_every
        self._pace = pace
        self._tell = tell
        self._began = time.monotonic()
        self._tasks = {}
        # Numbers and a target: when a process that is away comes back.
        self._returns = []
        self._killed = []
        self._stopped = set()
        self.log = []

    def run(self, seed, num_events):
        """Trains while the events of a schedule happen; checks the end.

        Args:
          seed: Of the schedule.
          num_events: Of the schedule.

        Returns:
          An `Outcome`.

        Raises:
          ChaosError: Something went wrong that must not.
        """
        outcome = Outcome(self._strategy, seed)
        events = schedule.make(
            f"{seed} {self._strategy}",
            num_events,
            num_ps=self._num_ps,
            num_workers=self._cluster.num_workers,
        )
        try:
            self._run(events, outcome)
            self._check_end(outcome)
        except (AssertionError, TimeoutError) as error:
            raise ChaosError(self._describe(error, seed, num_events)) from error
        return outcome

    def _run(self, events, outcome):
        for index in range(self._num_ps):
            self._start(("ps", index))
        for index in range(self._cluster.num_workers):
            self._start(("worker", index))
        self._wait(self._all_train, "all workers to train", START_SECONDS)
        self._note("all workers train")
        began = origin = time.monotonic()
        for event in events:
            waited = time.monotonic()
            self._wait_for_others(event)
            # What follows is later by as much.
            origin += time.monotonic() - waited
            # By the schedule nothing happens to who is away; but what ends
            # there is later here, by what it took to make it happen.
            back = [at for at, _, t in self._returns if t in event.targets]
            self._let_pass(max([origin + event.time, *back]))
            self._make_happen(event)
            outcome.events += 1
        self._let_pass(max([r[0] for r in self._returns], default=0.0))
        slowest = time.monotonic()
        steps = {t: self._tasks[t].steps() for t in self._workers()}
        self._wait(
            lambda: all(
                self._tasks[t].steps() >= n + _STEPS for t, n in steps.items()
            ),
            lambda: f"all workers to make {_STEPS} more steps than {steps}",
            PROGRESS_SECONDS,
        )
        outcome.slowest = time.monotonic() - slowest
        outcome.server_mib = max(
            _resident_mib(self._tasks["ps", index].pid)
            for index in range(self._num_ps)
        )
        self._note("all workers train again; told to stop")
        self._cluster.tell("stop")
        self._wait(
            lambda: not self._running(),
            lambda: f"{', '.join(self._running())} to end",
            END_SECONDS,
        )
        outcome.seconds = time.monotonic() - began

    # Processes.

    def _start(self, target):
        job, index = target
        if job == "ps":
            kept = str(self._cluster.directory / "snapshots")
            self._tasks[target] = self._cluster.start(
                job,
                index,
                "recovery_tasks:serve",
                directory=kept if self._every else None,
                every=self._every or 30.0,
            )
        else:
            self._tasks[target] = self._cluster.start(
                job,
                index,
                "recovery_tasks:train",
                strategy=self._strategy,
                pace=self._pace,
                # With 0.05 gradients that are late by 2 diverge.
                rate=_RATE,
                server_timeout=2 * PROGRESS_SECONDS,
                worker_timeout=4.0,
            )

    def _running(self):
        return [t.label for t in self._tasks.values() if t.runs()]

    def _workers(self):
        return [target for target in self._tasks if target[0] == "worker"]

    def _all_train(self):
        return all(self._trains(target) for target in self._workers())

    def _trains(self, target):
        return self._tasks[target].steps() >= _STEPS

    def _wait_for_others(self, event):
        """Waits until a worker that nothing happens to has all there is."""

        def others():
            away = {target for _, _, target in self._returns}
            return [
                target
                for target in self._workers()
                if target not in away | set(event.targets)
            ]

        if any(target[0] == "worker" for target in event.targets):
            self._wait(
                lambda: any(map(self._trains, others())),
                lambda: f"one of {others()} to train",
                PROGRESS_SECONDS,
            )

    def _make_happen(self, event):
        self._note(str(event))
        for target in event.targets:
            task = self._tasks[target]
            if event.kind == schedule.KILL:
                self._killed.append(task)
                task.kill()
            else:
                self._stopped.add(task.label)
                task.send(signal.SIGSTOP)
            heapq.heappush(
                self._returns,
                (time.monotonic() + event.seconds, event.kind, target),
            )

    def _let_pass(self, until):
        """Lets time pass, and processes come back."""
        while True:
            self._check_lives()
            now = time.monotonic()
            while self._returns and self._returns[0][0] <= now:
                _, kind, target = heapq.heappop(self._returns)
                if kind == schedule.KILL:
                    self._start(target)
                    self._note(f"started {self._tasks[target].label}")
                else:
                    self._tasks[target].send(signal.SIGCONT)
                    self._note(f"{self._tasks[target].label} continues")
            if now >= until:
                return
            time.sleep(_POLL_SECONDS)

    def _wait(self, condition, what, seconds):
        end = time.monotonic() + seconds
        while not condition():
            self._let_pass(0.0)
            if time.monotonic() > end:
                what = what() if callable(what) else what
                raise TimeoutError(f"Waited {seconds:g} s for {what}.")
            time.sleep(_POLL_SECONDS)

    def _check_lives(self):
        away = {target for _, _, target in self._returns}
        for target, task in self._tasks.items():
            if target in away or task.runs():
                continue
            told = (self._cluster.directory / "stop").exists()
            if (status := task.wait()) or not told:
                raise ChaosError(f"{task.label} has ended with {status}.")

    # The end.

    def _check_end(self, outcome):
        for task in self._cluster.tasks:
            expected = -signal.SIGKILL if task in self._killed else 0
            assert task.wait() == expected, f"{task.label}: {task.wait()}"
        reports = {t: self._tasks[t].report() for t in self._workers()}
        _, targets = recovery_tasks.regression()
        untrained = float(np.mean(targets**2))
        outcome.loss = (untrained, max(r["after"] for r in reports.values()))
        for target, report in reports.items():
            label = self._tasks[target].label
            self._note(
                f"{label}: loss {report['before']:.4g} > {report['after']:.4g},"
                f" updates {report['updates']}, largest weights "
                f"{[max(map(abs, w)) for w in report['weights']]}"
            )
            self._check_counts(label, report)
            counts = report["counts"]
            outcome.pushed += counts["pushed"]
            outcome.applied += min(counts["applied"])
            outcome.dropped += counts["dropped"]
            outcome.lost += max(counts["lost"])
            outcome.recoveries += len(report["recoveries"])
        first, *others = reports.values()
        for other in others:
            assert other["weights"] == first["weights"], "weights differ"
            assert other["updates"] == first["updates"], (first, other)
            assert other["all_counts"] == first["all_counts"]
            assert other["by_worker"] == first["by_worker"]
        self._check_sums(first, reports)
        for table in first["rows"]:
            for index, counts in enumerate(table):
                self._check_rows(index, counts, reports)
        assert outcome.loss[1] < _LOSS_SHARE * untrained, outcome.loss

    def _check_counts(self, label, report):
        counts, all_counts = report["counts"], report["all_counts"]
        self._note(f"{label}: {counts}, {len(report['recoveries'])} recoveries")
        for applied, lost in zip(
            counts["applied"], counts["lost"], strict=True
        ):
            assert min(applied, lost, counts["dropped"]) >= 0, (label, counts)
            total = applied + lost + counts["dropped"]
            assert counts["pushed"] == total, (label, counts)
            if not report["recoveries"]:
                assert not lost, (label, counts)
            if not self._stopped:
                assert lost <= len(report["recoveries"]) + 1, (label, report)
        for name, of_one in all_counts.items():
            total = of_one["accepted"] + of_one["dropped"]
            assert min(of_one.values()) >= 0, (name, of_one)
            assert of_one["pushed"] == total, (name, of_one)

    def _check_sums(self, report, reports):
        """What servers have applied is what they have applied of each."""
        for server, by_worker in enumerate(report["by_worker"]):
            updates = report["updates"][server]
            assert sum(by_worker) == updates, report["by_worker"]
            for (_, index), own in reports.items():
                applied = own["counts"]["applied"][server]
                assert applied <= by_worker[index], (applied, by_worker)

    def _check_rows(self, index, counts, reports):
        """Rows of a table lack what is counted as lost there, and no more.

        Args:
          index: Number of the server.
          counts: Updates in its rows, each number once.
          reports: By target, a dict.
        """
        # A small table is in a snapshot as it was at one moment.
        (count,) = counts
        missing = reports["worker", 0]["updates"][index] - count
        server = f"/job:ps/task:{index}"
        killed = [task.label.split(".")[0] for task in self._killed]
        deaths = killed.count(f"ps-{index}")
        self._note(f"{server}: rows lack {missing:g} updates, {deaths} deaths")
        assert missing >= 0 and (deaths or not missing), (server, missing)
        for target, report in reports.items():
            label = f"worker-{target[1]}"
            if label in killed:
                continue
            seen = [
                event[server][0]
                for event in report["lost_by_rows"]
                if server in event
            ]
            self._note(f"{label}: saw {seen} lost in rows of {server}")
            assert max(seen, default=0) <= missing, (label, seen, missing)
            # A worker that was stopped may have put back more since.
            if seen and len(seen) == deaths and not self._stopped:
                # Without a snapshot all is lost, and what was lost before.
                sums = [sum(seen[k:]) for k in range(deaths)]
                assert missing in sums, (label, seen, missing)

    # What is told.

    def _note(self, what):
        line = f"{time.monotonic() - self._began:7.2f} s  {what}"
        self.log.append(line)
        self._tell(line)

    def _describe(self, error, seed, num_events):
        """The failure, with all that helps to find its cause."""
        parts = [
            f"{self._strategy}: {error}",
            f"Again: python -m tests.chaos.main --seed={seed} "
            f"--strategy={self._strategy} --events={num_events} "
            f"--num_ps={self._num_ps} "
            f"--num_workers={self._cluster.num_workers} "
            f"--snapshot_every={self._every:g}",
            *self.log,
        ]
        # What they hang at: they print their stacks.
        for task in self._cluster.tasks:
            if task.runs():
                task.send(signal.SIGABRT)
                task.send(signal.SIGCONT)
        for task in self._cluster.tasks:
            task.wait()
        for task in self._cluster.tasks:
            lines = [
                line
                for line in task.output().splitlines()
                if not _NOISE.search(line)
            ]
            parts += [
                f"--- {task.label} (ended with {task.wait()}):",
                *lines[-_OUTPUT_LINES:],
            ]
        return "\n".join(parts)


def _resident_mib(pid):
    with open(f"/proc/{pid}/status") as status:
        for line in status:
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
    return 0.0
