"""Corrections on real clusters, where a worker is killed and comes back.

Each worker pushes a constant, so all elements that a server holds are alike,
and records what each of its gradients was computed from and which update it
became. From these records an oracle written from the papers' formulas
(`tests.correction.oracles`) says what each server must hold after each update;
a backup of the wrong worker, or of its former life, would be another number.
"""

import dataclasses
from itertools import pairwise
import json

import numpy as np
import pytest

from tests.correction import oracles
from tests.multi_process.correction_tasks import RATE

pytestmark = pytest.mark.nightly

WORKERS, SERVERS = 3, 2
VALUES = (1.0, 0.5, 2.0)
# What a server keeps of its own, of each worker, and what workers send. All
# formulas, without processes: `tests.runtime.corrections.corrections_test`.
CASES = {
    "gap aware": (("GapAware", {}), lambda: oracles.GapAware(RATE)),
    "adaptive delay compensation by workers": (
        ("DelayCompensation", {"variance_decay": 0.9, "backups": "worker"}),
        lambda: oracles.DelayCompensation(2.0, 0.9),
    ),
    "DANA-DC": (
        ("DANA", {"variant": "dc", "momentum": 0.5}),
        lambda: oracles.DanaZero(WORKERS, RATE, 0.5, 2.0),
    ),
}
# What is kept of a worker, on servers; the others run without a death.
KILLED = ("DANA-DC", "DANA-Slim")


CLOSE = {"rtol": 2e-4, "atol": 1e-6}


@dataclasses.dataclass
class Gradient:
    """One gradient that became an update.

    Attributes:
        worker: whose it is.
        pulled: versions that it was computed from, by server.
        weights: what the worker had then, by server; None where nobody knows.
    """

    worker: int
    pulled: list
    weights: list


def run(cluster, name, correction):
    """Trains; if the name is among `KILLED`, a worker dies and comes back.

    Returns:
        The tasks' reports, and by worker the records of its lives.
    """
    kind, arguments = correction
    made = cluster(num_ps=SERVERS, num_workers=WORKERS)
    made.start_servers()

    def start(worker, pace):
        return made.start(
            "worker",
            worker,
            "correction_tasks:train",
            name=kind,
            arguments=arguments,
            value=VALUES[worker],
            until="stop",
            pace=pace,
        )

    others = [start(0, 0.02), start(1, 0.05)]
    victim = start(2, 0.0)
    # Its gradient is late by six updates: what a correction is for.
    made.let_the_last_be_late([*others, victim])
    for task in (*others, victim):
        task.wait_for_steps(8)
    lives = [victim]
    if name in KILLED:
        victim.kill()  # In whatever it is doing: it does not pause.
        others[0].wait_for_steps(others[0].steps() + 5)
        lives.append(start(2, 0.01))
        made.tell(f"go on {lives[-1].label}")
        lives[-1].wait_for_steps(10)
    made.tell("stop")
    made.finish()
    records = [
        [
            [
                json.loads(line)
                for line in (made.directory / f"{task.label}.record")
                .read_text()
                .splitlines()
            ]
            for task in tasks
        ]
        for tasks in ([others[0]], [others[1]], lives)
    ]
    reports = [task.report() for task in (*others, lives[-1])]
    return reports, records


def gradients_of(records, total):
    """All gradients in the order of their updates.

    Of a worker that was killed one may be in no record: its last.
    """
    found = {}
    for worker, lives in enumerate(records):
        for lines in lives:
            for (_, pulled, weights), (update, _, _) in pairwise(lines):
                assert update not in found
                found[update] = Gradient(worker, pulled, weights)
    missing = sorted(set(range(total)) - set(found))
    assert len(missing) <= len(records[2]) - 1
    for update in missing:
        _, pulled, weights = records[2][0][-1]
        found[update] = Gradient(2, pulled, weights)
    return [found[update] for update in range(total)]


class Replay:
    """What one server holds after each update.

    Args:
        shard: its number.
        oracle: of the correction.
        gradients: list of `Gradient`.
        forget: after how many updates worker 2 is forgotten, or None.
    """

    def __init__(self, shard, oracle, gradients, forget=None):
        self._shard = shard
        self._theta = [0.0]
        # By version, what workers may be given: when one is forgotten, that
        # is before the next update, and either of two.
        self._given = [[0.0]]
        for update, gradient in enumerate(gradients):
            now = np.float64(self._theta[-1])
            if update == forget:
                oracle.gone(2)
                self._given[-1].append(oracle.given(now))
            corrected = oracle.correct(
                np.float64(VALUES[gradient.worker]),
                worker=gradient.worker,
                staleness=update - min(gradient.pulled),
                now=now,
                then=self._given_as(gradient),
            )
            self._theta.append(now - RATE * corrected)
            oracle.observe(now, self._theta[-1])
            self._given.append([oracle.given(self._theta[-1])])

    def _given_as(self, gradient):
        """What a gradient was computed from, to all digits.

        By what the worker saw, in 32 bits, a gap that is none would be one,
        which gap awareness makes larger with each update.
        """
        seen = gradient.weights[self._shard]
        allowed = self._given[gradient.pulled[self._shard]]
        if seen is None:
            # Of a pull before the first exchange, which gives no look-ahead.
            return self._theta[gradient.pulled[self._shard]]
        nearest = min(allowed, key=lambda value: abs(value - seen))
        return nearest if np.isclose(nearest, seen, **CLOSE) else seen

    def fits(self, records, reports, leaves):
        """Whether it is what the workers saw, and what came out.

        Args:
            records: of the workers.
            reports: of the workers.
            leaves: whether it matters who has left in the end: then what came
                before that is compared alone.
        """
        shard = self._shard
        last = min(lives[-1][-1][1][shard] for lives in records)
        seen = [
            (weights[shard], self._given[pulled[shard]])
            for lives in records
            for lines in lives
            for _, pulled, weights in lines[1:]
            if pulled[shard] < last or not leaves
        ]
        if not leaves:
            seen += [(r["final"][shard], self._theta[-1:]) for r in reports]
        return all(
            np.isclose(found, allowed, **CLOSE).any() for found, allowed in seen
        )


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_corrected_by_what_they_were_computed_from(cluster, name):
    correction, make_oracle = CASES[name]
    reports, records = run(cluster, name, correction)
    total = check_counts(reports)
    gradients = gradients_of(records, total)
    assert max(k - min(g.pulled) for k, g in enumerate(gradients)) >= 6
    momenta = "DANA" in name
    forgets = momenta and name in KILLED
    moments = [None]
    if forgets:
        # After the last update of its first life, before that of its second.
        mine = [k for k, g in enumerate(gradients) if g.worker == 2]
        first = records[2][1][1][0]
        moments = range(max(k for k in mine if k < first) + 1, first + 1)

    def fits(shard, oracle, moment=None):
        replay = Replay(shard, oracle, gradients, moment)
        return replay.fits(records, reports, leaves=momenta)

    for shard in range(SERVERS):
        assert any(fits(shard, make_oracle(), moment) for moment in moments)
        # What would come out with the faults of other codes is not that.
        assert not fits(shard, oracles.Nothing())
        for faulty in WRONG[name]:
            for moment in {None, *moments}:
                assert not fits(shard, faulty(make_oracle()), moment)
        if forgets:
            assert not fits(shard, make_oracle())  # Never forgotten.


class _Faulty(oracles.Nothing):
    """A correction with a fault."""

    def __init__(self, oracle):
        self._oracle = oracle
        self.observe, self.given = oracle.observe, oracle.given
        self.gone = getattr(oracle, "gone", None)


class OneBackup(_Faulty):
    """One backup for all, from before the last update, as MXNet has it."""

    _last = 0.0

    def correct(self, g, *, now, then, **kwargs):
        last, self._last = self._last, now
        return self._oracle.correct(g, now=now, then=last, **kwargs)


class OneMomentum(_Faulty):
    """One momentum for all, as a server's optimizer has it."""

    def correct(self, g, *, worker, **kwargs):
        return self._oracle.correct(g, worker=0, **kwargs)


WRONG = {
    "gap aware": [OneBackup],
    "adaptive delay compensation by workers": [OneBackup],
    "DANA-DC": [OneBackup, OneMomentum],
}


def check_counts(reports):
    """Checks that all count alike; returns the number of updates."""
    (total,) = {count for report in reports for count in report["updates"]}
    for report in reports:
        assert report["iterations"] == total
        counts = report["counts"].values()
        assert sum(c["pushed"] for c in counts) == total
        assert sum(c["accepted"] for c in counts) == total
    return total


def test_what_slim_workers_push_adds_up(cluster):
    """Each life of a worker has a momentum of its own, and one push is u."""
    reports, records = run(cluster, "DANA-Slim", ("DANA", {"momentum": 0.5}))
    lives = [
        (VALUES[worker], len(lines) - 1, life == 0 and worker == 2)
        for worker, of_worker in enumerate(records)
        for life, lines in enumerate(of_worker)
    ]
    (final,) = {tuple(report["final"]) for report in reports}
    for shard in range(SERVERS):
        # The killed worker may have pushed once more to this server.
        allowed = [
            -RATE
            * sum(
                _pushed(value, steps + more * was_killed)
                for value, steps, was_killed in lives
            )
            for more in (0, 1)
        ]
        counted = [
            sum(steps for _, steps, _ in lives) + more for more in (0, 1)
        ]
        at = counted.index(reports[0]["updates"][shard])
        np.testing.assert_allclose(final[shard], allowed[at], rtol=1e-4)


def _pushed(value, steps):
    """The sum of gamma v + g with v <- gamma v + g, gamma = 1/2."""
    momentum = total = 0.0
    for _ in range(steps):
        momentum = 0.5 * momentum + value
        total += 0.5 * momentum + value
    return total
