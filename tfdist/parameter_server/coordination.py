"""A method of synchronization at work in one strategy."""

from absl import logging
import tensorflow as tf

from tfdist import private_tensorflow
from tfdist.parameter_server import coordinated
from tfdist.parameter_server import exchange as exchange_lib
from tfdist.parameter_server import ledger as ledger_lib
from tfdist.synchronization import events
from tfdist.synchronization import state as state_lib

# A worker that is there and sends no gradient for so long is not waited for.
IDLE_SECONDS = 600.0


class Coordination:
    """Makes exchanges of gradients that are decided over before they count.

    Args:
      store: The `ParameterStore`.
      method: The `Synchronization`.
      correction: The `Correction` of late gradients, or None.
      worker_names: Names of all workers, in the order of their numbers.
      worker_id: Number of this one.
      worker_timeout: Seconds without a sign of life after which a worker is
        not waited for.
      start_timeout: Seconds for which workers that have not begun are.
      members: The first server's `MemberTable`, or None in one process.
    """

    def __init__(
        self,
        store,
        method,
        correction,
        *,
        worker_names,
        worker_id,
        worker_timeout,
        start_timeout,
        members,
    ):
        self._store = store
        self._method = method
        self._correction = correction
        self._names = worker_names
        self._worker = worker_id
        self._patience = events.Patience.of_seconds(
            silent=worker_timeout, missing=start_timeout, idle=IDLE_SECONDS
        )
        self._members = members
        self._by_counter = {}
        self._status = {}

    @property
    def ledgers(self):
        """One `Ledger` per optimizer, in the order of their first steps."""
        return list(self._by_counter.values())

    def exchange(self, **kwargs):
        """The exchange of one step, see `Exchange` for what it takes."""
        counter = kwargs["counter"]
        if counter is None and not self._method.averages:
            return exchange_lib.Exchange(**kwargs)
        return coordinated.CoordinatedExchange(
            ledger=None if counter is None else self._ledger(counter),
            method=self._method,
            correction=self._correction,
            **kwargs,
        )

    def _ledger(self, counter):
        if counter.ordinal not in self._by_counter:
            with tf.init_scope():
                ledger = ledger_lib.Ledger(
                    self._store,
                    str(counter.ordinal),
                    self._method,
                    num_workers=len(self._names),
                    worker_id=self._worker,
                    patience=self._patience,
                    attendance=self._attendance,
                )
                ledger.prepare()
                self._by_counter[counter.ordinal] = ledger
                # Now it is known which updates the replicas hold.
                self._store.pull()
        return self._by_counter[counter.ordinal]

    def _attendance(self):
        """Builds the reading of an `Attendance`."""
        time = tf.timestamp()
        private_tensorflow.run_independently(time.op)
        number = len(self._names)
        heard = tf.zeros([number], tf.int64)
        ended = tf.zeros([number], tf.bool)
        if self._members is not None:
            seen, ended = self._members.build_attendance(number)
            heard = _microseconds(seen)
        return events.Attendance(_microseconds(time), heard, ended)

    def tick(self):
        """Called with each heartbeat of this worker, in its thread."""
        for ledger in self.ledgers:
            self._report(ledger, ledger.tick())

    def leave(self):
        """Tells the others that this worker trains no more for now."""
        for ledger in self.ledgers:
            ledger.leave()

    def counts(self):
        """Gradients of each worker, over all optimizers.

        Returns:
          A dict of worker name to a dict of `pushed`, `accepted` and
          `dropped`.
        """
        counts = {
            name: dict.fromkeys(("pushed", "accepted", "dropped"), 0)
            for name in self._names
        }
        for ledger in self.ledgers:
            state = ledger.read()
            for worker, name in enumerate(self._names):
                for what in counts[name]:
                    counts[name][what] += int(getattr(state, what)[worker])
        return counts

    def _report(self, ledger, state):
        """Logs who has gone and who has come back."""
        status = state.status.tolist()
        before = self._status.get(ledger, status)
        self._status[ledger] = status
        gone, joined = state_lib.Status.GONE, state_lib.Status.JOINED
        for name, old, new in zip(self._names, before, status, strict=True):
            if old == new:
                continue
            left = sum(s != gone for s in status)
            if new == gone:
                logging.warning(
                    "%s is not waited for any more: it has finished, or has "
                    "not been heard of. Workers left: %d of %d.",
                    name,
                    left,
                    len(status),
                )
            elif new == joined and old == gone:
                logging.info("%s takes part again.", name)


def _microseconds(seconds):
    return tf.cast(seconds * 1e6, tf.int64)
