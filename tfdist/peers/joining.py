"""A worker that begins while the others train already.

It asks all of them to send it their updates (`admission`), takes a snapshot of
one that has all updates from before that, and trains on from there. Updates
that are in the snapshot and come as well are dropped by their numbers.
"""

import io
import time

from absl import logging
import tensorflow as tf

from tfdist import saved_state
from tfdist.all_reduce import variables as variables_lib
from tfdist.peers import admission

_POLL_SECONDS = 0.03


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
        # The others that take part, by number: when they answered last.
        self._heard = {}

    def is_needed(self):
        """Whether the others train already, without this worker."""
        return bool(self._training())

    def wait_for_start(self):
        """Waits until the others train.

        Raises:
          tf.errors.DeadlineExceededError: They do not, in time.
        """
        end = time.monotonic() + self._tolerance.start_timeout
        while not self._training():
            if time.monotonic() > end:
                raise tf.errors.DeadlineExceededError(
                    None,
                    None,
                    "The first workers did not begin to train within "
                    f"{self._tolerance.start_timeout:g} s.",
                )
            time.sleep(10 * _POLL_SECONDS)

    def _training(self):
        """Numbers of the others that train, a set."""
        found = ((k, self._read(k)) for k in self._roster.others)
        return {k for k, s in found if s and s["done"] and not s["joins"]}

    def join(self, model):
        """Takes part from here on, with another worker's values.

        Args:
          model: The `keras.Model` that is trained.

        Raises:
          tf.errors.UnavailableError: The others train no more, or are in
            another call of `fit`.
          ModelMismatchError: They train another model.
        """
        logging.info("The other workers train: this one joins them.")
        self._meetings.post(joins=True)
        # The first lets one in at a time, who is there for the next.
        needs = {}
        first = min(self._training())
        self._ask([first], needs)
        self._ask(self._training() - {first}, needs)
        saved = self._fetch(needs)
        self._take(saved, model)
        for worker in self._heard:
            self._meetings.request(worker, admission.JOINED)

    def _ask(self, workers, needs):
        """Waits until workers send their updates.

        Args:
          workers: Their numbers.
          needs: Dict, channel -> worker -> its last update before.
        """
        me = str(self._roster.worker_id)
        for worker in workers:
            self._heard[worker] = time.monotonic()
            self._meetings.request(worker, 0)
        left = set(workers)
        while left := left & set(self._heard):
            for worker in sorted(left):
                status = self._look(worker)
                incarnation, since = (status or {"since": {}})["since"].get(
                    me, (None, None)
                )
                if incarnation != self._roster.incarnation:
                    continue
                left.discard(worker)
                for name, number in since.items():
                    needs.setdefault(name, {})[worker] = number
            time.sleep(_POLL_SECONDS)

    def _fetch(self, needs):
        """Returns a snapshot that has all updates from before this came."""
        number = 0
        while True:
            host = min(self._heard)
            number += 1
            self._meetings.request(host, number)
            while host in self._heard and not self._has_served(host, number):
                time.sleep(_POLL_SECONDS)
            if host not in self._heard:
                continue
            text = self._meetings.read_snapshot(host)
            saved = saved_state.read(io.BytesIO(text))
            seen = saved.header["peers"]["seen"]
            lacking = any(
                seen.get(name, {worker: 0})[worker] < least
                for name, of_worker in needs.items()
                for worker, least in of_worker.items()
                if worker in self._heard
            )
            if not lacking:
                return saved
            time.sleep(_POLL_SECONDS)

    def _has_served(self, host, number):
        status = self._look(host)
        me = str(self._roster.worker_id)
        return status is not None and status["served"].get(me) == number

    def _take(self, saved, model):
        told = saved.header["peers"]
        roster = self._roster
        known = {int(k): v for k, v in told["known"].items()}
        roster.known = {**known, roster.worker_id: roster.incarnation}
        roster.await_later(set(roster.others) - set(self._heard))
        roster.post()
        self._engine.note_known()
        self._engine.seen_at_join = told["seen"]
        self._engine.lanes_at_join = told["lanes"]
        with self._engine.applying():
            self._engine.restore_state(saved)
        for variable in variables_lib.shared_by(model):
            variable.is_agreed = True
        self._meetings.take_position(told)
        self._meetings.post(joins=False, seen=told["seen"])

    def _look(self, worker):
        """The status of a worker; None if it does not answer.

        Raises:
          tf.errors.UnavailableError: Nobody is left, or nobody trains.
        """
        status, now = self._read(worker), time.monotonic()
        if status is not None:
            self._heard[worker] = now
            if status["closed"] or status["fits"] > 1:
                raise _too_late(self._roster.names[worker])
        elif now - self._heard[worker] > self._tolerance.worker_timeout:
            del self._heard[worker]
            if not self._heard:
                raise _too_late("any other worker")
        return status

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
