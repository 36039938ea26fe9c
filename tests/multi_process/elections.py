"""What workers note of elections, and how much may be lost by them.

A server that comes back begins at the version that the worker who restored it
had pulled, or at that of its snapshot. A worker's own push comes back with the
version that it became, so whatever a worker has pushed is in what it has
pulled, but for the push that was on its way. From the versions follows how
many of its pushes may be lost, whoever was late, and whoever was not heard.
"""

import collections
import itertools
import time

from tfdist.runtime.recovery import restoring

# Who does not know what all others hold restores after so long, and whoever
# holds less than another; not before.
GATHER_SECONDS, STAGGER_SECONDS = 2.0, 3.0


class _Restorer:
    """The restorer of an election, which notes what it is asked and says."""

    def __init__(self, inner):
        self._inner = inner
        self.begin()

    def begin(self):
        """An election begins."""
        self.began = time.monotonic()
        self.offers = self.restored = self.takes_part = None

    def offer(self, shard, takes_part):
        """Offers."""
        self.takes_part = takes_part
        self.offers = self._inner.offer(shard, takes_part)
        return self.offers

    def restore(self, shard):
        """Restores."""
        waited = time.monotonic() - self.began
        found = self._inner.restore(shard)
        self.restored = {
            "before": found.before,
            "after": found.version,
            "offers": list(map(_version_of, self.offers.orders)),
            "waited": waited,
        }
        return found

    def complete(self, shard):
        """Completes."""
        return self._inner.complete(shard)

    def lost_by_rows(self, shard):
        """Reads what rows of tables have lost."""
        return self._inner.lost_by_rows(shard)


class _Watched:
    """The elections of a worker, with a note of each that has ended."""

    def __init__(self, recovery):
        self.notes = []
        self._inner = recovery._election
        self._restorer = _Restorer(self._inner._restorer)
        self._inner._restorer = self._restorer
        self._lives = None
        wait = recovery._whereabouts.wait

        def wait_and_note(*arguments):
            self._lives = wait(*arguments)
            return self._lives

        recovery._whereabouts.wait = wait_and_note

    def restore(self, shard, began):
        """Restores a server as the election does."""
        restorer = self._restorer
        restorer.begin()
        done, here = self._inner.restore(shard, began)
        if restorer.takes_part:
            offers, restored = restorer.offers, restorer.restored
            held = _version_of(offers.held)
            self.notes.append(
                {
                    "server": shard,
                    "life": str(self._lives[shard]),
                    "pulled": _version_of(offers.orders[self._inner._worker]),
                    "held": restored["after"] if restored else held,
                    "restored": restored if done else None,
                }
            )
        return done, here

    def lost_by_rows(self, shard):
        """Reads what rows of tables have lost."""
        return self._inner.lost_by_rows(shard)


def watch(strategy):
    """Lets a strategy note its elections from now on."""
    recovery = strategy._runtime.recovery
    recovery._election = _Watched(recovery)


def noted(strategy):
    """Returns the notes of a strategy that is watched, a list of dicts.

    Each is of one election that has ended:

    * `server`, its number, and `life`, the incarnation that was restored;
    * `pulled`, the version that this worker had pulled before;
    * `held`, the version that the server had when the election ended;
    * `restored`, by this worker, or None: the versions `before` and `after`,
      the `offers` by worker, -1 for none, and the seconds `waited` for them.
    """
    return strategy._runtime.recovery._election.notes


def check(notes_by_worker):
    """Whoever was heard has the newest, or has let its turn pass.

    Args:
        notes_by_worker: list of what `noted` returns.
    """
    for notes in notes_by_worker:
        for note in notes:
            if note["restored"] is None:
                continue
            restored = note["restored"]
            after, waited = restored["after"], restored["waited"]
            assert restored["before"] < after == note["pulled"], note
            if after < max(restored["offers"]):
                assert waited >= STAGGER_SECONDS, note
            if min(restored["offers"]) < 0:
                assert waited >= GATHER_SECONDS, note


def most_lost(notes_by_worker, server):
    """Returns, by worker, how many of its pushes elections may have lost.

    Besides those that were on their way when a call failed: one for each
    recovery.

    A life of a server goes on from version `base`. A worker that had pulled
    more, and was not heard in time, loses no more than what it had pulled
    above it. If it restores the server once more, from there, everybody loses
    no more than what the server had applied since `base`.

    Args:
        notes_by_worker: list of what `noted` returns.
        server: its number.
    """
    lives = collections.defaultdict(list)
    for worker, notes in enumerate(notes_by_worker):
        for note in notes:
            if note["server"] == server:
                lives[note["life"]].append((worker, note))
    lost = [0] * len(notes_by_worker)
    for notes in lives.values():
        base = min(note["held"] for _, note in notes)
        restorations = sorted(
            (note["restored"]["after"], note["restored"]["before"])
            for _, note in notes
            if note["restored"]
        )
        again = sum(
            before - last
            for (last, _), (_, before) in itertools.pairwise(restorations)
        )
        # A worker may have had to elect twice in one life.
        pulled = {worker: note["pulled"] for worker, note in reversed(notes)}
        for worker in range(len(lost)):
            lost[worker] += again + max(0, pulled.get(worker, base) - base)
    return lost


def _version_of(order):
    """The version in an order of `Offers`, an int; -1 for nothing."""
    return order // restoring._WRITES_BASE - 1
