"""The places where workers wait for each other, without those that are lost.

Each leaves on its own server a *status*: the numbers that it has brought to
its last two meetings, and how far it is. The others read it. A worker goes on
from a meeting when it has read the numbers of all that are not lost; so nobody
is two meetings ahead of a worker that takes part.
"""

import json
import time
import zlib

from absl import logging
import numpy as np
import tensorflow as tf

from tfdist.peers import admission
from tfdist.peers import board as board_lib

_POLL_SECONDS = 0.02
_REPORT_SECONDS = 10.0
_FAREWELL_SECONDS = 5.0


def status_of(reader, name):
    """Reads the status of a worker, a dict; None if it has none.

    Args:
      reader: Its `BoardReader`.
      name: As of `Meetings`.

    Raises:
      tf.errors.OpError, OSError: It does not answer.
    """
    text = reader.read(f"{name}/status")
    return None if text is None else json.loads(text)


def trains(status):
    """Whether a worker of this status has begun, and is no joiner itself."""
    return bool(status["done"]) and not status["joins"]


class Meetings:
    """The meetings of all workers; it has the methods of `Collectives`.

    Args:
      roster: The `Roster`.
      name: Prefix of the names of its texts.
      device: Of this worker.
      tolerance: The `FaultTolerance`.
      engine: Weak reference to the `PeerEngine`.
    """

    # Workers that are lost are left out.
    has_failed = False

    def __init__(self, roster, name, device, tolerance, engine):
        self.num_workers = roster.num_workers
        self._roster = roster
        self._name = name
        self._values_name = f"{name}/values"
        self._tolerance = tolerance
        self._engine = engine
        self._board = board_lib.Board(device)
        roster.membership = board_lib.MembershipNote(name, device)
        roster.post()
        self._readers = {
            worker: board_lib.BoardReader(*roster.places[worker])
            for worker in roster.others
        }
        # By worker that does not answer: for how many seconds, and when it was
        # asked last.
        self._silent = {}
        # Of this worker; see `_post`.
        self.number = 0
        self._rows = {}
        self._done = self._over = self._values = self._given = 0
        self._sent = {}
        # What admission and joining say.
        self._said = {
            # By joiner: its incarnation, and by channel this worker's last
            # update before it came; number of the snapshot that is there.
            "since": {},
            "served": {},
            # While somebody waits to join, and at the end: this worker's
            # updates.
            "updates": 0,
            # Whether this worker is joining; by channel the numbers of the
            # updates that it has joined with.
            "joins": False,
            "seen": {},
            # Number of the call of `fit`, and whether nobody can join any more.
            "fits": 0,
            "closed": False,
            # See `epoch_check`: this worker's replica at the end of an epoch.
            "epoch": None,
        }
        self._post()

    def post(self, **said):
        """Changes a part of the status; see `_said`."""
        self._said.update(said)
        self._post()

    def _post(self):
        status = {
            **self._said,
            "incarnation": self._roster.incarnation,
            # The last meeting that it has come to; the last one that it has
            # left; the one that it comes to next, when its training is over.
            "number": self.number,
            "done": self._done,
            "over": self._over,
            # By number of a meeting: its name, this worker's numbers, and all
            # numbers that it has read.
            "rows": self._rows,
            # By channel: the number of its last update.
            "sent": self._sent,
            # Number of the values that it has left.
            "values": self._given,
            "lost": self._roster.lost,
            "known": {str(k): v for k, v in self._roster.known.items()},
        }
        self._board.post(f"{self._name}/status", json.dumps(status))

    # For joiners.

    def status_of(self, worker):
        """Returns the status of a worker; None if it has none.

        Raises:
          tf.errors.OpError, OSError: It does not answer.
        """
        return self._read(worker)

    def request(self, worker, number):
        """Asks a worker for a snapshot.

        Args:
          worker: Its number.
          number: Of the snapshot; 0 to be admitted first, or
            `admission.JOINED`.

        Returns:
          Whether it has been asked: one that is gone is not.
        """
        me = self._roster.worker_id
        numbers = self._roster.incarnation, number
        reader = self._readers[worker]
        try:
            return reader.request(self._roster.name, me, numbers)
        except (tf.errors.OpError, OSError):
            return False

    def read_snapshot(self, worker, seconds=None):
        """Returns the snapshot that a worker has left for this one, bytes.

        Args:
          worker: Its number.
          seconds: For the answer. Default: `start_timeout`.
        """
        name = admission.snapshot_name(
            self._roster.name, self._roster.worker_id
        )
        seconds = seconds or self._tolerance.start_timeout
        return self._readers[worker].read(name, seconds)

    @property
    def position(self):
        """Place of this worker in the order of meetings, a dict."""
        return {
            "number": self.number,
            "values": self._values,
            "fit": self._engine().fit_number,
        }

    def take_position(self, position):
        """Goes where another worker is; see `position`."""
        self.number = self._done = position["number"]
        self._values = position["values"]
        self._engine().fit_number = position["fit"]

    # As of `Collectives`.

    def call(self, function, *args):
        """Calls a function."""
        return function(*args)

    def gather(self, row, name):
        """Waits for all workers; returns their rows of whole numbers.

        Args:
          row: Sequence of ints, as long on all workers.
          name: That tells which rows belong together.

        Returns:
          An int64 array `(num_workers, len(row))`; of a worker that was lost
          before anybody had read its row, the leader's.

        Raises:
          tf.errors.UnavailableError: The others have given up this worker.
          tf.errors.DeadlineExceededError: One has not come in time.
          RuntimeError: One is elsewhere in its program.
        """
        self.number += 1
        mine = [int(x) for x in row]
        self._rows = {
            k: v for k, v in self._rows.items() if k == self.number - 1
        }
        found = {self._roster.worker_id: mine}
        self._rows[self.number] = [name, mine, found]
        self._post()

        def read(worker, status):
            if status["number"] < self.number:
                return False
            theirs = status["rows"].get(str(self.number))
            if theirs is None:
                raise self._roster.left_behind(worker)
            if theirs[0] != name or len(theirs[1]) != len(mine):
                raise RuntimeError(
                    f"{self._roster.names[worker]} is elsewhere in its "
                    "program: all workers must run the same, call for call."
                )
            found[worker] = theirs[1]
            self._post()
            return True

        try:
            self._wait(read, self._tolerance.start_timeout)
        except BaseException:
            # Ctrl-C, or another one has not come in time: it may come again.
            del self._rows[self.number]
            self.number -= 1
            self._over = min(self._over, self.number)
            self._post()
            raise
        if set(self._roster.lost) - found.keys():
            self._hear_of_lost(found)
        self._done = self.number
        self._post()
        leader = found[min(found)]
        every = range(self.num_workers)
        return np.array([found.get(k, leader) for k in every], np.int64)

    def _hear_of_lost(self, found):
        """Adds rows of lost workers that others have read in time."""
        for worker in self._roster.live:
            status = self._ask(worker) or {"rows": {}}
            *_, theirs = status["rows"].get(str(self.number), [{}])
            for other, row in theirs.items():
                found.setdefault(int(other), row)

    def from_chief(self, words):
        """Returns the leader's `words`, an int32 vector as long on all.

        If the leader is lost, they are those of the next one: the first
        leader's, if it has them already, and otherwise its own.
        """
        while True:
            self._values += 1
            words = self._from_leader(words)
            # For those that lose the leader first, if this is the next.
            self._board.post(self._values_name, words.tobytes())
            self._given = self._values
            rows = self.gather([zlib.crc32(words)], "values")
            if (rows == rows[0]).all():
                self._board.post(self._values_name, b"")
                return words

    def _from_leader(self, words):
        roster, values = self._roster, []

        def read(worker, status):
            if worker != leader:
                return True
            if status["values"] < self._values:
                return False
            try:
                text = self._readers[worker].read(
                    self._values_name, self._tolerance.start_timeout
                )
            except (tf.errors.OpError, OSError):
                return False
            if not text:  # Who asks is given up, or that one started again.
                return False
            values.append(np.frombuffer(text, np.int32))
            return True

        while not values and (leader := roster.leader) != roster.worker_id:
            self._wait(read, self._tolerance.start_timeout)
        return values[0] if values else words

    # At the end of training.

    def flush(self, receive, is_flushed):
        """Waits until all that are not lost have taken this one's updates.

        Args:
          receive: As of `finish`: others wait for room in this one's inbox.
          is_flushed: Whether all have.
        """
        # A sender gives up a receiver that takes nothing: this has an end.
        reported = time.monotonic()
        while not is_flushed():
            receive()
            if time.monotonic() - reported > _REPORT_SECONDS:
                reported = time.monotonic()
                logging.warning(
                    "Waiting until the other workers have taken all updates."
                )
            time.sleep(_POLL_SECONDS / 4)

    def finish(self, sent, receive, lacks, seconds=None):
        """Waits until all have ended, and what they have sent is here.

        Args:
          sent: Name of a channel -> number of this worker's last update.
          receive: Called again and again: applies what has come.
          lacks: Called with a worker's number and what it has sent: whether
            some of that is not here.
          seconds: That others may take; None while they get on.

        Raises:
          tf.errors.UnavailableError: The others have given up this worker.
          tf.errors.DeadlineExceededError: One has not come in `seconds`.
        """
        self._over = self.number + 1
        self._sent = sent
        self._post()

        def read(worker, status):
            receive()
            is_over = max(status["over"], status["number"]) >= self._over
            return is_over and not lacks(worker, status["sent"])

        # Others may have more to train on.
        self._wait(read, seconds)
        receive()

    def leave(self):
        """Waits a moment for those that read what this worker has left."""
        end = time.monotonic() + _FAREWELL_SECONDS
        for worker in self._roster.live:
            while time.monotonic() < end:
                try:
                    status = self._read(worker)
                except (tf.errors.OpError, OSError):
                    break
                if status is None or status["done"] >= self._done:
                    break
                time.sleep(_POLL_SECONDS)
        for reader in self._readers.values():
            reader.close()

    # How others are asked.

    def _wait(self, read, seconds):
        """Waits until `read` is true of each worker that is not lost.

        Args:
          read: Callable of a worker's number and status.
          seconds: That a worker which answers may take; None for the bound
            of a worker that does not get on.
        """
        bound = self._tolerance.stall_timeout if seconds is None else seconds
        if self._tolerance.on_stall == "wait" and seconds is None:
            bound = float("inf")
        # Workers may join meanwhile.
        done = set()
        last = reported = time.monotonic()
        still = 0.0
        before = {}
        while left := set(self._roster.live) - done:
            for worker in sorted(left):
                status = self._ask(worker)
                if status is not None and read(worker, status):
                    done.add(worker)
                    left.discard(worker)
                progress = status and self._progress(worker, status)
                if status and seconds is None:
                    progress = progress, self._engine().came_from(worker)
                if progress != before.get(worker):
                    before[worker] = progress
                    still = 0.0
            now = time.monotonic()
            # Of the time in which this process itself was stopped little
            # counts: the others may have been, too.
            still += min(now - last, bound / 3 + 1.0)
            last = now
            names = ", ".join(self._roster.names[k] for k in sorted(left))
            if left and still > bound and seconds is None:
                for worker in sorted(left):
                    self._roster.give_up(
                        worker, f"it does not get on for {bound:g} s"
                    )
            elif left and still > bound:
                raise tf.errors.DeadlineExceededError(
                    None,
                    None,
                    f"{names} answered, and did not come to the same call "
                    f"within {bound:g} s. Do all run the same program? "
                    "Where a worker needs longer: fault_tolerance=tfdist."
                    "FaultTolerance(start_timeout=..., stall_timeout=...).",
                )
            if left and now - reported > _REPORT_SECONDS:
                reported = now
                logging.warning("Waiting for %s.", names)
            if left:
                time.sleep(_POLL_SECONDS)

    def _progress(self, worker, status):
        names = "number", "over", "values", "updates"
        return [status[name] for name in names]

    def _ask(self, worker):
        """Returns a worker's status; None where there is none.

        A worker that does not answer for `worker_timeout` is given up; before
        its first answer, for `start_timeout`.
        """
        try:
            status, reason = self._read(worker), "it has not begun"
        except (tf.errors.OpError, OSError) as error:
            status, reason = None, type(error).__name__
        now = time.monotonic()
        if status is None:
            bound = self._tolerance.worker_timeout
            if worker not in self._roster.known:
                bound = self._tolerance.start_timeout
            silent, before = self._silent.get(worker, (0.0, now))
            # Of the time in which this process itself was stopped little
            # counts.
            silent += min(now - before, bound / 3 + 1.0)
            self._silent[worker] = silent, now
            if silent > bound:
                self._roster.give_up(worker, f"{reason} for {bound:g} s")
            return None
        self._silent.pop(worker, None)
        self._check(worker, status)
        return status

    def _read(self, worker):
        return status_of(self._readers[worker], self._name)

    def _check(self, worker, status):
        roster, me = self._roster, self._roster.worker_id
        theirs = status["known"].get(str(me))
        if theirs not in (None, roster.incarnation):
            raise tf.errors.UnavailableError(
                None,
                None,
                f"{roster.names[me]} was started again, and "
                f"{roster.names[worker]} trains on without it: others join "
                "in the first call of `fit` alone, before any other call in "
                "which workers wait for each other. Start all again, from a "
                "checkpoint.",
            )
        if me in status["lost"]:
            raise roster.left_behind(worker)
        if worker not in roster.known:
            roster.known[worker] = status["incarnation"]
            self._engine().note_known()
            self._post()
        elif roster.known[worker] != status["incarnation"]:
            roster.give_up(worker, "it was started again")
