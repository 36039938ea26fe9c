"""The repair of a replica: it takes over the parameters of another worker."""

import io
import time

from absl import logging
import numpy as np
import tensorflow as tf

from tfdist import saved_state
from tfdist.peers import admission
from tfdist.peers import messages

_POLL_SECONDS = 0.03


class Repair:
    """The way of a worker to the parameters of another one.

    It stays between two steps, and asks for a snapshot that has all that is
    here. What comes meanwhile is kept in its order: what is in the snapshot as
    well is applied, and both replicas are compared. Then this one becomes the
    other, and the rest is applied. If that takes too long, all goes on as it
    was, until the end of the next epoch.

    Args:
      engine: The `PeerEngine`.
      worker: Number of the other one.
      reason: Why, a text.
      seconds: How long it may take.
      on_done: Called without arguments when this replica is the other one.
    """

    def __init__(self, engine, worker, reason, seconds, on_done):
        self._engine = engine
        self._worker = worker
        self._reason = reason
        self._seconds = seconds
        self._on_done = on_done
        self._roster = engine.roster
        # By channel: the messages that have come.
        self._kept = {one.name: [] for one in engine.channels}

    def run(self):
        """Repairs the replica, or says why not."""
        name = self._roster.names[self._worker]
        logging.warning(
            "Repairing this replica from that of %s (%s): waiting for its "
            "parameters, at most %g s.",
            name,
            self._reason,
            self._seconds,
        )
        try:
            self._repair(name)
        finally:
            self._apply(lambda worker, update: True)

    def _repair(self, name):
        saved = self._fetch()
        if not self._roster.is_lost(self._worker):
            self._engine.collectives.request(self._worker, admission.TAKEN)
        if saved is None:
            logging.warning(
                "%s did not give parameters with all updates that are here "
                "within %g s: the replica is not repaired before the end of "
                "the next epoch.",
                name,
                self._seconds,
            )
        else:
            self._take(saved)

    def _fetch(self):
        """Returns the other's `SavedState`, or None."""
        end = time.monotonic() + self._seconds
        meetings, me = self._engine.collectives, str(self._roster.worker_id)
        while time.monotonic() < end and not self._roster.is_lost(self._worker):
            number = next(self._engine.requests)
            meetings.request(self._worker, number)
            try:
                while time.monotonic() < end:
                    self._keep()
                    status = meetings.status_of(self._worker)
                    if status and status["served"].get(me) == number:
                        break
                    time.sleep(_POLL_SECONDS)
                else:
                    # The other one may be writing it: what is there is old.
                    return None
                text = meetings.read_snapshot(self._worker, self._seconds)
            except (tf.errors.OpError, OSError):
                text = None
            if text:
                saved = saved_state.read(io.BytesIO(text))
                if self._has_all(saved.header["peers"], end):
                    return saved
            time.sleep(_POLL_SECONDS)
        return None

    def _keep(self):
        for one in self._engine.channels:
            self._kept[one.name] += one.take_all()

    def _has_all(self, told, end):
        """Whether a snapshot has all that is here, and that all is here too.

        Several updates that have come as one message are in it, or are not.
        """
        roster = self._roster
        for one in self._engine.channels:
            seen = told["seen"].get(one.name)
            if seen is None or seen[roster.worker_id] < one.sent:
                return False
            here = one.seen
            if any(here[k] > seen[k] for k in roster.live):
                return False
            while True:
                kept = self._kept_of_live(one.name)
                last = [*here]
                for sender, update in kept:
                    last[sender] = max(last[sender], update.last)
                if all(last[k] >= seen[k] for k in roster.live):
                    break
                if time.monotonic() > end:
                    return False
                time.sleep(_POLL_SECONDS)
                self._keep()
            if any(u.first <= seen[k] < u.last for k, u in kept):
                return False
        return True

    def _kept_of_live(self, name):
        """Pairs of sender and message, without those that do not count."""
        roster = self._roster
        return [
            (sender, update)
            for update in self._kept[name]
            if (sender := int(update.header[messages.SENDER])) in roster.live
            and roster.known.get(sender) == update.header[messages.INCARNATION]
        ]

    def _take(self, saved):
        """Compares both, and makes this replica the other one."""
        engine, roster = self._engine, self._roster
        told = saved.header["peers"]

        def is_in(name, update):
            sender = int(update.header[messages.SENDER])
            is_here = update.last <= told["seen"][name][sender]
            return is_here and not roster.is_lost(sender)

        self._apply(is_in)
        off = 0.0
        for lane in engine.lanes:
            # There: the other one may have made more models.
            numbers = told["lanes"][lane.number][-len(lane.agreeing) :]
            with engine.applying():
                for variable, number in zip(
                    lane.agreeing, numbers, strict=True
                ):
                    value = saved.arrays[f"variable/{number}"]
                    change = variable.numpy().astype(np.float64) - value
                    off = max(off, float(np.abs(change).max(initial=0.0)))
                    variable.assign(value)
        before = {one.name: one.seen for one in engine.channels}
        for one in engine.channels:
            seen = told["seen"][one.name]
            one.take_over(
                seen, told["sums"][one.name], told["earlier"][one.name]
            )
            # The other has not got what is left of a lost worker.
            kept = self._kept_of_live(one.name)
            self._kept[one.name] = [update for _, update in kept]
        self._on_done()
        logging.warning(
            "This replica is now that of %s, from which it has differed by at "
            "most %.3g. Updates of each worker in it, by channel: before %s, "
            "now %s.",
            roster.names[self._worker],
            off,
            before,
            {one.name: one.seen for one in engine.channels},
        )

    def _apply(self, condition):
        """Applies messages that were kept, in their order."""
        for one in self._engine.channels:
            now, later = [], []
            for update in self._kept[one.name]:
                is_now = condition(one.name, update)
                (now if is_now else later).append(update)
            self._kept[one.name] = later
            one.put_back(now)
        for lane in self._engine.lanes:
            lane.receive(kept=True)
