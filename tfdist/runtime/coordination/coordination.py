"""A method of synchronization at work in one strategy."""

import functools
import threading

from absl import logging
import tensorflow as tf

from tfdist import private_tensorflow
from tfdist.cluster import preemption
from tfdist.runtime.coordination import agreement
from tfdist.runtime.coordination import coordinated_exchange
from tfdist.runtime.coordination import ledger as ledger_lib
from tfdist.runtime.coordination import retired_gradient_counts
from tfdist.runtime.coordination import status_log
from tfdist.synchronization import events

# A worker that is there and sends no gradient for so long is not waited for,
# unless the strategy says otherwise.
IDLE_SECONDS = 600.0


class Coordination:
    """Makes exchanges of gradients that are decided over before they count.

    Args:
      runtime: The `Runtime`.
      method: The `Synchronization`.
      correction: The `Correction` of late gradients, or None.
      worker_names: Names of all workers, in the order of their numbers.
      worker_id: Number of this one.
      worker_timeout: Seconds without a sign of life after which a worker is
        not waited for.
      start_timeout: Seconds for which workers that have not begun are.
      idle_timeout: Seconds after which a worker that is there and sends no
        gradient is not waited for.
      members_table: The first server's `MemberTable`, or None in one process.
      initial_workers: How many of the workers, the first, are waited for at
        first; None for all.
    """

    # Servers make updates in the order of a log.
    has_log = True

    def __init__(
        self,
        runtime,
        method,
        correction,
        *,
        worker_names,
        worker_id,
        worker_timeout,
        start_timeout,
        idle_timeout=IDLE_SECONDS,
        members_table,
        initial_workers=None,
    ):
        self._runtime = runtime
        self._store = runtime.store
        self._method = method
        self._correction = correction
        self._names = worker_names
        self._initial_workers = initial_workers or len(worker_names)
        self._worker = worker_id
        self._patience = events.Patience.of_seconds(
            silent=worker_timeout, missing=start_timeout, idle=idle_timeout
        )
        self._members = members_table
        # By name.
        self._ledgers = {}
        # By the ordinal of a step counter: the one in use, and the number of
        # the call of `fit` that it was chosen in.
        self._current = {}
        self._num_fits = 0
        self._retired = retired_gradient_counts.RetiredGradientCounts(
            runtime.store, len(worker_names)
        )
        # The call of `fit` that is under way, the outermost: callbacks may
        # train within it. Not to be replaced while the heartbeat makes this
        # worker leave at the end of the one before.
        self._fit = None
        self._watching = threading.RLock()
        # The `_steps` when this worker last found no data in `fit`; None once
        # others may expect it again.
        self._without_data = None
        self._log = status_log.StatusLog(
            method, worker_names, worker_id, worker_timeout, idle_timeout
        )

    @property
    def ledgers(self):
        """All, in the order of their first steps, a list of `Ledger`.

        One per optimizer and set of variables that it has trained.
        """
        return list(self._ledgers.values())

    @property
    def is_behind(self):
        """Whether gradients of this worker are void; see `Ledger`."""
        return any(ledger.is_behind for ledger in self.ledgers)

    @property
    def waits(self):
        """Whether workers wait for the gradients of others."""
        return self._method.waits

    @property
    def averages(self):
        """Whether an update may be made of several gradients."""
        return self._method.averages

    @property
    def is_synchronous(self):
        """Whether all gradients of an update are of the same parameters."""
        return self._method.is_synchronous

    @property
    def retries(self):
        """Whether a batch whose gradient was dropped is computed again."""
        return self._method.retries

    def exchange(self, **kwargs):
        """The exchange of one step, see `ExchangeBuilder` for what it takes."""
        counter = kwargs["counter"]
        ledger = None
        if counter is not None:
            records = kwargs["records"]
            ledger = self._ledger_for(counter, records)
            trained = [r.variable for r in records if r.is_gradient]
            self._runtime.corrector.prepare(ledger, trained)
        return coordinated_exchange.CoordinatedExchange(
            ledger=ledger,
            method=self._method,
            is_alone=len(self._names) == 1,
            **kwargs,
        )

    def _ledger_for(self, counter, records):
        """The `Ledger` of an optimizer and the variables that it trains.

        They may be others in another call of `fit`, where layers have been
        frozen: gradients of others are another sequence of decisions.

        Args:
          counter: The optimizer's step counter.
          records: List of `Update` and `Mutation` of the step.

        Raises:
          ValueError: They are others within one call of `fit`, or on another
            worker.
        """
        layout = agreement.layout_of(records)
        ordinal = counter.ordinal
        ledger, since = self._current.get(ordinal, (None, None))
        with tf.init_scope():
            if ledger is None or since != self._num_fits:
                ledger = self._ledger_with(
                    layout, counter, may_be_new=ledger is not None
                )
                self._current[ordinal] = ledger, self._num_fits
            ledger.agreement.check_layout(layout)
        return ledger

    def prepare(self, counter):
        """The first `Ledger` of the optimizer with that step counter."""
        with tf.init_scope():
            return self._ledger_named(str(counter.ordinal))

    def _ledger_with(self, layout, counter, may_be_new):
        """The first of an optimizer; another where that is of others."""
        first = self.prepare(counter)
        theirs = first.agreement.layout(layout)
        if agreement.is_same_layout(layout, theirs):
            return first
        name = ledger_lib.later_name(first.name, layout)
        # A worker that comes late finds what the others train by now.
        if may_be_new or ledger_lib.is_held(
            self._store, name, len(self._names)
        ):
            return self._ledger_named(name)
        return first

    def _ledger_named(self, name):
        if name not in self._ledgers:
            ledger = ledger_lib.Ledger(
                self._store,
                self._runtime.recovery,
                name,
                self._method,
                self._correction,
                num_workers=len(self._names),
                initial_workers=self._initial_workers,
                worker_id=self._worker,
                patience=self._patience,
                attendance=self._attendance,
            )
            has_updated = ledger.prepare()
            if self._runtime.local.keeps_own_values:
                ledger.tick(joining=True)
            self._ledgers[name] = ledger
            if has_updated or self._runtime.corrector.is_on_servers:
                # The replicas may hold updates of it, and servers are to know
                # what a correction takes for given.
                self._runtime.pull()
        return self._ledgers[name]

    def renew(self, incarnations, expected):
        """Goes on after servers have lost what they held.

        Args:
          incarnations: The lives that the servers are in now, list of int.
          expected: List of bool: which workers take part.
        """
        # A first server that was not lost knows better: some were lost.
        is_known = incarnations[0] == self._runtime.recovery.incarnations[0]
        for ledger in self.ledgers:
            ledger.agreement.again()
            accepted = 0 if is_known else ledger.known_accepted
            ledger.renew(incarnations, expected, accepted).log()
        self._retired.restore()
        self._runtime.corrector.prepare_again()
        self._log.clear()

    def _attendance(self):
        """Builds the reading of an `Attendance`."""
        now = tf.timestamp()
        private_tensorflow.run_independently(now.op)
        number = len(self._names)
        if self._members is None:
            never = tf.zeros([number], tf.int64)
            ended = tf.zeros([number], tf.bool)
            return events.Attendance(_microseconds(now), never, ended)
        seen, entered, ended, preempted = self._members.build_attendance(number)
        return events.Attendance(
            _microseconds(now),
            _microseconds(seen),
            ended,
            _microseconds(entered),
            preempted,
        )

    def watch(self, call, frame):
        """Takes note of a `RunningFit`, at whose end this worker leaves.

        Unless it is made within another one.

        Args:
          call: The `RunningFit`.
          frame: Its frame.
        """
        with self._watching:
            self._num_fits += 1
            self._without_data = None
            before = self._fit
            if before is not None and before.is_around(frame):
                return
            self._fit = call
        if len(self._names) == 1 and before is not None:
            # No heartbeat has told so: a run ends, and another one begins.
            for ledger in self.ledgers:
                for told in ({"leaving": True}, {"joining": True}):
                    self._tick(ledger, **told)
        local = self._runtime.local
        if local.keeps_own_values:
            # From now on, or what it makes of the parameters would be late.
            is_late = False
            for ledger in self.ledgers:
                is_late |= ledger.lacks_updates(
                    self._tick(ledger, joining=True)
                )
            local.begin_fit(is_late and self.is_synchronous)

    def _tick(self, ledger, **told):
        """Tells a `Ledger`, over the loss of servers; returns its `State`."""
        return self._store.call(functools.partial(ledger.tick, **told))

    def leave_if_over(self):
        """Tells the others so if an exception has ended `fit`; once."""
        with self._watching:
            if self._fit is None or not self._fit.is_over():
                return
            self._fit = None
        self._leave()

    def tick(self):
        """Called with each heartbeat of this worker, in its thread."""
        local = self._runtime.local
        with self._watching:
            if self._fit is not None and self._fit.is_over():
                if local.unpushed():
                    logging.warning(
                        "An exception has ended `fit`. The local steps since "
                        "the last exchange are sent when the script asks for "
                        "the weights, and may be too late; nobody waits for "
                        "them."
                    )
                self._leave_once()
                self._fit = None  # Else the next beat tries again.
            known = self._without_data
            if known is not None and known == self._steps():
                self._leave_once()
        working = local.has_progressed()
        for ledger in self.ledgers:
            state = ledger.tick(
                working=working, preempted=preemption.received()
            )
            self._log.report(ledger, state)

    def leave(self, ends_fit=True):
        """Tells the others that this worker trains no more for now.

        Args:
          ends_fit: Whether a call of `fit` that is under way has no more
            steps. Then it is not told once more when the call ends: others
            may have begun the next one.
        """
        with self._watching:
            if self._fit is not None and (ends_fit or self._fit.is_over()):
                self._fit = None
        self._leave()

    def _leave(self):
        """Leaves, over the loss of servers, during which heartbeats go on."""
        self._store.call(self._leave_once)

    def _leave_once(self):
        for ledger in self.ledgers:
            ledger.tick(leaving=True, preempted=preemption.received())

    def stay_away(self):
        """Tells the others, again and again, that there is no data here.

        Until the next exchange, `fit` or `come_back`: others that begin to
        train after it expect whoever has left with them.
        """
        self._runtime.local.flush(last=True)
        with self._watching:
            self._without_data = self._steps()
        self._leave()

    def _steps(self):
        """Steps that were begun to be sent, and those that were made."""
        journal = self._runtime.journal
        return journal.begun, journal.trained

    def come_back(self):
        """Called when all have ended their training: the next one is new."""
        self._without_data = None

    def let_go(self, ordinals):
        """Called when variables are gone: their ordinals, a set."""
        for name, ledger in list(self._ledgers.items()):
            if ledger_lib.ordinal_of(name) not in ordinals:
                continue
            state = self._tick(ledger, leaving=True)
            accepted = int(state.accepted[self._worker])
            del self._ledgers[name]
            self._current.pop(ledger_lib.ordinal_of(name), None)
            self._log.let_go(ledger)
            self._retired.let_go(ledger.name, accepted - ledger.accepted_before)

    def build_retire(self, names):
        """Builds: keeps what ledgers that are to be freed have counted."""
        return self._retired.build_add(names)

    def were_freed(self, ordinals):
        """No server holds the ledgers of optimizers any more."""
        self._retired.were_freed(ordinals)

    def leave_all_but(self, counters):
        """Tells the others that some optimizers take no more steps here.

        Args:
          counters: The step counters of those that do.
        """
        ordinals = {counter.ordinal for counter in counters}
        kept = [
            ledger
            for ordinal, (ledger, _) in self._current.items()
            if ordinal in ordinals
        ]
        for ledger in self.ledgers:
            if ledger not in kept:
                self._tick(ledger, leaving=True)

    def waited_for(self):
        """Names of the workers whose gradients this one waits for now."""
        slow = []
        for ledger in self.ledgers:
            state = ledger.tick()
            slow += self._log.waited_for(state)
        return sorted(set(slow))

    def own_applied(self):
        """Returns the fate of this process's gradients, by server.

        Returns:
          Two lists of ints: gradients that were applied, and those of which
          nothing concerned the server. All servers apply what is accepted.
        """
        own = sum(self._store.call(one.own_accepted) for one in self.ledgers)
        number = self._store.num_shards
        return [own + self._retired.own_accepted] * number, [0] * number

    def counts(self):
        """Gradients of each worker, over all optimizers.

        Returns:
          A dict of worker name to a dict of `pushed`, `accepted`, `dropped`,
          `nonfinite` and `staleness`.
        """
        found = self._store.call(self._retired.read)
        counts = {
            name: dict(zip(retired_gradient_counts.COUNTS, column, strict=True))
            for name, column in zip(self._names, found.T.tolist(), strict=True)
        }
        for ledger in self.ledgers:
            state = self._tick(ledger)
            for worker, name in enumerate(self._names):
                for what, field in retired_gradient_counts.COUNTS.items():
                    counts[name][what] += int(getattr(state, field)[worker])
        return counts


def _microseconds(seconds):
    return tf.cast(seconds * 1e6, tf.int64)
