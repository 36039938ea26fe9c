"""Admission of workers that come while the others train.

A joiner writes its request into the `RequestBox` of each other worker. Each
looks there between two steps. It admits the joiner: from then on it sends all
of its updates to the joiner as well, and its status says the number of its last
update before that. One of them then leaves a *snapshot* for the joiner: all
variables that workers share, and the numbers of the updates that are in them.
So of each worker the joiner knows which updates it has, and gets all later
ones. Where workers average there are no updates, and such numbers are 0.
"""

import io
import time

import tensorflow as tf

from tfdist import saved_state
from tfdist.all_reduce.variables import Kind
from tfdist.peers import board

# Seconds between two looks at the requests.
_LOOK_SECONDS = 0.05

# In the place of the number of a snapshot: the joiner has one that will do.
JOINED = -1
# The same: a worker that is no joiner has read its snapshot.
TAKEN = -2


def snapshot_name(name, worker):
    """Name of the text that is the snapshot for a joiner.

    Args:
      name: Prefix of the names of this strategy's texts.
      worker: Number of the joiner.
    """
    return f"{name}/snapshot/{worker}"


class Admission:
    """The part of a worker that lets joiners in.

    Args:
      engine: The `PeerEngine`.
      warmup_updates: Updates of this worker before it admits anybody.

    Attributes:
      warmup_updates: As it was given.
      is_open: Whether joiners are admitted.
    """

    def __init__(self, engine, warmup_updates):
        self._engine = engine
        self.warmup_updates = warmup_updates
        self._box = board.RequestBox(
            engine.name, engine.device, engine.num_workers
        )
        self._snapshots = board.Board(engine.device)
        self._next_look = 0.0
        # Of each joiner: the request that has been answered.
        self._answered = {}
        # Joiner -> its incarnation, and this worker's last updates before it
        # came, by channel.
        self._since = {}
        # Joiner -> number of the snapshot that it was left.
        self._served = {}
        # The one that is joining, or None: one at a time.
        self._joins = None
        self.is_open = False

    def look(self):
        """Answers what joiners ask; called between steps."""
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + _LOOK_SECONDS
        keeps_waiting = False
        for worker, request in enumerate(self._box.read()):
            if request[0] and self._answered.get(worker) != request:
                self._answer(worker, *request)
                keeps_waiting |= self._answered.get(worker) != request
        if keeps_waiting:
            # The joiner sees that this worker gets on.
            updates = self._engine.journal.updates
            self._engine.collectives.post(updates=updates)

    def _answer(self, worker, incarnation, number):
        engine = self._engine
        if engine.journal.updates < self.warmup_updates:
            return
        if engine.roster.known.get(worker) != incarnation:
            if not self.is_open:
                return
            if self._joins not in (None, worker) and not (
                engine.roster.is_lost(self._joins)
            ):
                return
            self._joins = worker
            self._admit(worker, incarnation)
        if number == TAKEN:
            self._snapshots.post(snapshot_name(engine.name, worker), b"")
        elif number > 0:
            text = self._snapshot()
            self._snapshots.post(snapshot_name(engine.name, worker), text)
            self._served[str(worker)] = number
            self._post()
        elif number == JOINED:
            if not self._release(worker):
                return
            self._joins = None
            self._snapshots.post(snapshot_name(engine.name, worker), b"")
        self._answered[worker] = [incarnation, number]

    def _admit(self, worker, incarnation):
        engine = self._engine
        engine.roster.admit(worker, incarnation)
        engine.note_known()
        since = {}
        for one in engine.channels:
            since[one.name] = one.admit(worker)
        # The sums of the worker's updates begin again.
        engine.check_of_epochs.begin_all()
        self._since[str(worker)] = [incarnation, since]
        self._served.pop(str(worker), None)
        engine.stop_joiners()
        self._post()

    def _post(self):
        self._engine.collectives.post(since=self._since, served=self._served)

    def _snapshot(self):
        engine = self._engine
        saved = engine.read_state()
        shared = {
            f"variable/{number}": variable
            for number, reference in enumerate(engine.variables)
            if (variable := reference()) is not None
            and variable.kind is not Kind.OWN
        }
        # The joiner has no gradients that are yet to be applied.
        saved.arrays = {
            name: shared[name].at_begin_of_update(value)
            for name, value in saved.arrays.items()
            if name in shared
        }
        roster = engine.roster
        saved.header["peers"] = {
            "known": {str(k): v for k, v in roster.known.items()},
            "lost": roster.lost,
            "seen": {one.name: one.seen for one in engine.channels},
            "sums": {one.name: one.sums for one in engine.channels},
            "earlier": {one.name: one.earlier for one in engine.channels},
            **engine.first_steps.position,
            **engine.collectives.position,
        }
        file = io.BytesIO()
        saved_state.write(saved, file)
        return file.getvalue()

    def _release(self, worker):
        """Drops what a joiner has already; whether its numbers were there."""
        if self._engine.roster.is_lost(worker):
            return True
        try:
            status = self._engine.collectives.status_of(worker)
        except (tf.errors.OpError, OSError):
            return False
        if status is None or status["joins"]:
            return False
        me = self._engine.roster.worker_id
        for one in self._engine.channels:
            seen = status["seen"].get(one.name)
            if seen is not None:
                one.transport.release(worker, seen[me])
        return True
