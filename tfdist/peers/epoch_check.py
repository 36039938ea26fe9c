"""Checksums of replicas at the end of each epoch, and the repair of a replica.

Replicas differ at any moment by messages that are on their way, so that they
cannot be compared as they are. But each one should be the values with which all
began, minus all updates that it has applied. With random signs `r`, the same on
all workers, `<r, w>` is a checksum of a replica `w`. Each sender adds up
`<r, update>` over all of its updates, and each message has this sum. So

    <r, w> + (the sum of the last message of each worker, and its own)

stays what it was, whatever has arrived, but for rounding. Each worker looks at
the end of an epoch, and waits for nobody. Lost updates of live workers need no
checksum: numbers of messages tell. Of a worker that has died, others may have
applied different last updates: survivors compare the numbers.

The replica of the lowest live worker whose checksum holds is the right one. A
worker whose checksum does not hold, or which has other last updates of a dead
worker, takes it over (`repair`).
"""

import math

from absl import logging
import numpy as np
import tensorflow as tf

from tfdist.null_methods import nothing
from tfdist.peers import repair

# How much more than the expected rounding errors a checksum may be off.
_DEVIATIONS = 8.0


class NoEpochCheck:
    """For workers that send each other no updates."""

    begin = begin_all = end_epoch = build_written = nothing


class EpochCheck:
    """The checks of one worker.

    Args:
      engine: The `PeerEngine`.
      tolerance: The `FaultTolerance`.
    """

    def __init__(self, engine, tolerance):
        self._engine = engine
        self._tolerance = tolerance
        # By channel: the checksum, number of updates, and norm at first.
        self._first = {}
        self._epochs = 0

    def build_written(self):
        """Builds the note that code of this worker's sets weights."""
        self._engine.wrote.assign(1.0, read_value=False)

    @property
    def has_written(self):
        """Whether it has done so since the checksums began."""
        return bool(self._engine.wrote.numpy())

    def begin(self, lane, channel):
        """Notes what a replica is now.

        Args:
          lane: A `PeerLane`.
          channel: One of its channels.
        """
        vector = lane.read()[channel.name]
        self._first[channel.name] = (
            channel.checksum(vector),
            sum(channel.seen),
            float(np.linalg.norm(vector)),
        )

    def begin_all(self):
        """Notes what all replicas are now."""
        self._engine.wrote.assign(0.0)
        for lane in self._engine.lanes:
            for channel in lane.channels:
                self.begin(lane, channel)

    def end_epoch(self):
        """Compares, and repairs this replica if it has to be."""
        roster = self._engine.roster
        if not roster.others:
            return
        self._epochs += 1
        if self.has_written:
            logging.info(
                "Weights were set here: the checksum of the replica begins "
                "again."
            )
            self.begin_all()
        off = self._find_off()
        mine = {
            "holds": not off,
            "seen": {one.name: one.seen for one in self._engine.channels},
            "earlier": {one.name: one.earlier for one in self._engine.channels},
            "lost": roster.lost,
            "known": [roster.known.get(k) for k in range(roster.num_workers)],
        }
        self._engine.collectives.post(epoch=mine)
        # Nobody else is asked as long as nobody has died.
        if not (off or roster.lost or roster.joined):
            return
        worker, reason = self._reference(mine)
        if worker is not None and (off or reason):
            reason = reason or "its checksum is off"
            repair.Repair(
                self._engine,
                worker,
                reason,
                self._tolerance.worker_timeout,
                self.begin_all,
            ).run()

    def _find_off(self):
        """Names of the channels whose checksum is off, a set."""
        engine, off = self._engine, set()
        shared = _shared([lane for lane in engine.lanes if self._updates(lane)])
        for lane in engine.lanes:
            vectors = lane.read()
            for channel in lane.channels:
                name, vector = channel.name, vectors[channel.name]
                first, count, norm = self._first[name]
                updates = sum(channel.seen) - count
                # Steps of another optimizer may change these weights as well.
                if (
                    lane in shared
                    or not updates
                    or not np.isfinite(vector).all()
                ):
                    self.begin(lane, channel)
                    continue
                drift = channel.checksum(vector) - first
                bound = rounding(
                    lane.epsilon(channel),
                    updates,
                    max(norm, float(np.linalg.norm(vector))),
                )
                logging.info(
                    "Epoch %d: the checksum of %s is off by %.3g of at most "
                    "%.3g that rounding makes, after %d updates.",
                    self._epochs,
                    name,
                    drift,
                    bound,
                    updates,
                )
                if abs(drift) > bound:
                    off.add(name)
                    logging.warning(
                        "This replica is not the sum of its updates: its "
                        "checksum is off by %.3g, and rounding makes at most "
                        "%.3g. Updates of each worker in it: %s.",
                        drift,
                        bound,
                        channel.seen,
                    )
                else:
                    self.begin(lane, channel)
        return off

    def _updates(self, lane):
        """Number of updates since the last check, of all workers."""
        return sum(
            sum(one.seen) - self._first[one.name][1] for one in lane.channels
        )

    def _reference(self, mine):
        """The worker whose replica counts; and why this one is another.

        Args:
          mine: What this worker has posted.

        Returns:
          Its number, or None for this one; a text, or "".
        """
        engine, roster = self._engine, self._engine.roster
        for worker in sorted([roster.worker_id, *roster.live]):
            if worker == roster.worker_id:
                if mine["holds"]:
                    return None, ""
                continue
            try:
                theirs = engine.collectives.status_of(worker)["epoch"]
            except (tf.errors.OpError, OSError, TypeError):
                continue
            if theirs and theirs["holds"]:
                return worker, _difference(mine, theirs, roster.names)
        return None, ""


def rounding(epsilon, updates, norm):
    """Returns the most that rounding changes a checksum by.

    Each update is rounded about three times, by at most half of an epsilon of
    each element. Such errors are independent of each other in float32; in
    half precision, small updates vanish one like the other.

    Args:
      epsilon: Of the coarsest dtype of the variables.
      updates: Number of updates.
      norm: Of the parameters.

    Returns:
      A float.
    """
    updates = max(updates, 1)
    # Half precision: 2^-10 of float16 and 2^-7 of bfloat16; float32 has 2^-23.
    if epsilon < 1e-4:
        updates = math.sqrt(updates)
    # The smallest unit of checksums counts as well.
    return _DEVIATIONS * (epsilon / 2 * norm * updates + 1e-9 * updates)


def _shared(lanes):
    """Those lanes that train variables of another one as well, a set."""
    seen, found = {}, set()
    for lane in lanes:
        for variable in lane.agreeing:
            other = seen.setdefault(id(variable), lane)
            if other is not lane:
                found |= {lane, other}
    return found


def _difference(mine, theirs, names):
    """Text: of which dead processes two have other last updates."""
    found = []
    both_lost = {*mine["lost"]} & {*theirs["lost"]}
    for worker, name in enumerate(names):
        if mine["known"][worker] != theirs["known"][worker]:
            continue
        for channel in mine["seen"].keys() & theirs["seen"].keys():
            for key, what in ("seen", ""), ("earlier", "earlier processes of "):
                here = mine[key][channel][worker]
                there = theirs[key][channel][worker]
                counts = key == "earlier" or worker in both_lost
                if counts and here != there:
                    found.append(
                        f"of the last updates of {what}{name} it has {here} "
                        f"instead of {there}"
                    )
    return "; ".join(found)
