"""A worker that begins while the others train already.

It asks all of them to send it their updates (`admission`), takes a snapshot of
one that has all updates from before that, and trains on from there. Updates
that are in the snapshot and come as well are dropped by their numbers.
"""

import io
import math
import time

from absl import logging
import tensorflow as tf

from tfdist import saved_state
from tfdist.all_reduce import variables as variables_lib
from tfdist.cluster import sessions
from tfdist.peers import admission
from tfdist.peers import board
from tfdist.peers import meetings

_POLL_SECONDS = 0.03
_REPORT_SECONDS = 10.0
# Seconds after which a request that may be lost is made again.
_ASK_SECONDS = 1.0


class Joiner:
    """The way of this worker into a training that is under way.

    Args:
      engine: The `PeerEngine`.
      tolerance: The `FaultTolerance`.
    """

    def __init__(self, engine, tolerance):
        self._engine = engine
        self._roster = engine.roster
        self._meetings = engine.collectives
        self._tolerance = tolerance
        # Numbers of the others that take part.
        self._heard = set()
        # By worker that does not answer: for how many seconds, and when it was
        # asked last.
        self._silent = {}
        # Those with whom the workers that let this one in exchange updates.
        self._live = set()

    def is_needed(self):
        """Whether the others train already, without this worker.

        One whose server takes connections and does not answer may train, and
        is asked again, for `worker_timeout`.
        """
        end = time.monotonic() + self._tolerance.worker_timeout
        while True:
            silent = []
            for worker in self._roster.others:
                try:
                    status = self._meetings.status_of(worker)
                except (tf.errors.OpError, OSError):
                    silent.append(worker)
                    continue
                if status and meetings.trains(status):
                    return True
            if time.monotonic() > end or not any(map(self._listens, silent)):
                return False
            time.sleep(_POLL_SECONDS)

    def _listens(self, worker):
        address, _, _ = self._roster.places[worker]
        return sessions.listens(address, board.SECONDS)

    def wait_for_start(self):
        """Waits until the others train.

        Raises:
          tf.errors.DeadlineExceededError: They do not, in time.
        """
        reported = began = time.monotonic()
        while not self._is_training():
            now = time.monotonic()
            if now - reported > _REPORT_SECONDS:
                reported = now
                logging.warning("Waiting until the first workers train.")
            if now - began > self._tolerance.start_timeout:
                raise tf.errors.DeadlineExceededError(
                    None,
                    None,
                    "The first workers did not begin to train within "
                    f"{self._tolerance.start_timeout:g} s.",
                )
            time.sleep(10 * _POLL_SECONDS)

    def _is_training(self):
        found = map(self._read, self._roster.others)
        return any(status and meetings.trains(status) for status in found)

    def join(self, model):
        """Takes part from here on, with another worker's values.

        Args:
          model: The `keras.Model` that is trained.

        Raises:
          tf.errors.UnavailableError: The others train no more, or are in
            another call of `fit`.
          tf.errors.DeadlineExceededError: One answers, and does not get on.
          ModelMismatchError: They train another model.
        """
        logging.info("The other workers train: this one joins them.")
        # Others that have joined send to this worker from now on.
        self._roster.await_later(())
        self._meetings.post(joins=True)
        saved = self._fetch(self._ask_all())
        self._take(saved, model)
        for worker in self._heard:
            end = time.monotonic() + self._tolerance.worker_timeout
            while not self._meetings.request(worker, admission.JOINED):
                if time.monotonic() > end:
                    break  # It is lost, as in any step.
                time.sleep(_POLL_SECONDS)

    def _ask_all(self):
        """Waits until all that train send their updates.

        Returns:
          Dict, channel -> worker -> its last update before.
        """
        # The first lets one in at a time, who is there for the next.
        needs, asked = {}, set()
        # Another one, if it dies before.
        while not self._heard and self.is_needed():
            first = self._first(asked)
            asked.update(first)
            self._ask(first, needs)
        statuses = {k: self._read(k) for k in self._roster.others}
        # One that does not answer at this moment takes part as well.
        others = {
            worker
            for worker, status in statuses.items()
            if (meetings.trains(status) if status else worker in self._live)
        }
        self._ask(others - self._heard, needs)
        return needs

    def _first(self, asked):
        """The first worker that trains, a list; two joiners ask the same one.

        Args:
          asked: Numbers of those that have not answered before, a set. Another
            one that listens and does not answer at this moment counts.
        """
        for worker in self._roster.others:
            try:
                status = self._meetings.status_of(worker)
            except (tf.errors.OpError, OSError):
                if worker not in asked and self._listens(worker):
                    return [worker]
                continue
            if status and meetings.trains(status):
                return [worker]
        return []

    def _ask(self, workers, needs):
        """Waits until workers send their updates.

        Args:
          workers: Their numbers.
          needs: Dict, channel -> worker -> its last update before.
        """
        me = str(self._roster.worker_id)
        self._heard.update(workers)

        def sends(worker, status):
            incarnation, since = status["since"].get(me, (None, None))
            if incarnation != self._roster.incarnation:
                return False
            for name, number in since.items():
                needs.setdefault(name, {})[worker] = number
            self._live |= {*map(int, status["known"])} - {*status["lost"]}
            return True

        self._wait(workers, 0, sends)

    def _fetch(self, needs):
        """Returns a snapshot that has all updates from before this came."""
        me = str(self._roster.worker_id)
        lacks_since = None
        while self._heard:
            host = min(self._heard)
            number = next(self._engine.requests)
            self._wait(
                [host], number, lambda _, s, n=number: s["served"].get(me) == n
            )
            saved = self._read_snapshot(host)
            if saved is not None:
                seen = saved.header["peers"]["seen"]
                lacking = {
                    worker
                    for name, of_worker in needs.items()
                    for worker, least in of_worker.items()
                    if worker in self._heard
                    and seen.get(name, {worker: 0})[worker] < least
                }
                if not lacking:
                    return saved
                now = time.monotonic()
                lacks_since = now if lacks_since is None else lacks_since
                if now - lacks_since > self._bound:
                    raise self._stalled(host, "get all updates of others")
                for worker in lacking:
                    # If it has died, its last updates may never get there.
                    self._look(worker)
            time.sleep(_POLL_SECONDS)
        raise _too_late("any other worker")

    def _read_snapshot(self, host):
        """Returns the `SavedState` that a worker has left, or None."""
        if host not in self._heard:
            return None
        try:
            text = self._meetings.read_snapshot(host)
        except (tf.errors.OpError, OSError):
            return None  # `_wait` sees whether it is gone.
        return None if text is None else saved_state.read(io.BytesIO(text))

    @property
    def _bound(self):
        """Seconds for a worker that answers and does not get on."""
        if self._tolerance.on_stall == "wait":
            return math.inf
        return self._tolerance.stall_timeout

    def _wait(self, workers, number, is_done):
        """Asks for something until each worker that is there has done it.

        Args:
          workers: Their numbers.
          number: Of the request; see `Meetings.request`.
          is_done: Callable of a worker's number and status.

        Raises:
          tf.errors.DeadlineExceededError: One does not get on: its status has
            not changed for long.
        """
        left, seen = set(workers), {}
        reported = time.monotonic()
        moved = dict.fromkeys(left, reported)
        asked = -math.inf
        while left := left & self._heard:
            if time.monotonic() - asked > _ASK_SECONDS:
                for worker in left:
                    self._meetings.request(worker, number)
                asked = time.monotonic()
            for worker in sorted(left):
                status = self._look(worker)
                if status is None:
                    continue
                if is_done(worker, status):
                    left.discard(worker)
                now = time.monotonic()
                if status != seen.get(worker):
                    seen[worker], moved[worker] = status, now
                elif now - moved[worker] > self._bound and worker in left:
                    raise self._stalled(worker, "let this worker join")
            now = time.monotonic()
            if left and now - reported > _REPORT_SECONDS:
                reported = now
                logging.warning(
                    "Waiting until %s, between two steps, lets this worker "
                    "join.",
                    self._names(left),
                )
            time.sleep(_POLL_SECONDS)

    def _names(self, workers):
        return ", ".join(self._roster.names[k] for k in sorted(workers))

    def _stalled(self, worker, what):
        return tf.errors.DeadlineExceededError(
            None,
            None,
            f"{self._roster.names[worker]} answered, and did not {what} within "
            f"{self._bound:g} s. Where a worker needs longer between two "
            "steps: fault_tolerance=tfdist.FaultTolerance(stall_timeout=...).",
        )

    def _take(self, saved, model):
        told = saved.header["peers"]
        roster = self._roster
        known = {int(k): v for k, v in told["known"].items()}
        roster.known = {**known, roster.worker_id: roster.incarnation}
        roster.await_later(set(roster.others) - set(self._heard))
        self._engine.note_known()
        self._engine.seen_at_join = {
            name: (seen, told["sums"][name], told["earlier"][name])
            for name, seen in told["seen"].items()
        }
        shared = variables_lib.shared_by(model)
        first_steps = self._engine.first_steps
        first_steps.take_position(told)
        if not first_steps.is_as_at_join(shared, told["fit"]):
            raise saved_state.ModelMismatchError(
                "This worker cannot join: it has made other models or "
                "optimizers under strategy.scope() before `fit` than the "
                "worker whose values it takes, and the order in which all "
                "are made tells which is which. Make the same on all workers."
            )
        with self._engine.applying():
            self._engine.restore_state(saved)
        for variable in shared:
            variable.is_agreed = True
        self._meetings.take_position(told)
        self._meetings.post(joins=False, seen=told["seen"])

    def _look(self, worker):
        """The status of a worker; None if it does not train.

        Raises:
          tf.errors.UnavailableError: It lets nobody join any more.
        """
        status, now = self._read(worker), time.monotonic()
        if status is not None and meetings.trains(status):
            self._silent.pop(worker, None)
            if status["closed"] or status["fits"] > 1:
                raise self._refused(worker, status)
            return status
        # It does not answer, or another process has taken its place.
        bound = self._tolerance.worker_timeout
        silent, before = self._silent.get(worker, (0.0, now))
        # Of the time in which nobody asked it little counts.
        silent += min(now - before, bound / 3 + 1.0)
        self._silent[worker] = silent, now
        if silent > bound:
            self._heard.discard(worker)
            del self._silent[worker]
            logging.warning(
                "%s does not answer for %g s: this worker joins without it.",
                self._roster.names[worker],
                bound,
            )
        return None

    def _refused(self, worker, status):
        name, updates = self._roster.names[worker], status["updates"]
        needed = self._engine.admission.warmup_updates
        if updates >= needed:
            return _too_late(name)
        return tf.errors.UnavailableError(
            None,
            None,
            f"This worker cannot join: {name} has ended its training after "
            f"{updates} updates, and lets others join after {needed}. Use a "
            "lower `warmup_updates`, or train for longer.",
        )

    def _read(self, worker):
        try:
            return self._meetings.status_of(worker)
        except (tf.errors.OpError, OSError):
            return None


def _too_late(name):
    return tf.errors.UnavailableError(
        None,
        None,
        f"This worker comes too late: {name} is not in its first call of "
        "`fit`, in which others can join. Start all again, from a checkpoint.",
    )
