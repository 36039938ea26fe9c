"""The engine of workers that send each other updates."""

import contextlib
import itertools
import time
import weakref
import zlib

from absl import logging
import numpy as np
import tensorflow as tf

from tfdist import one_replica
from tfdist import private_tensorflow
from tfdist.all_reduce import engine as engine_lib
from tfdist.all_reduce import tail as tail_lib
from tfdist.all_reduce import variables as variables_lib
from tfdist.all_reduce.consistency import Moment
from tfdist.compression import cast
from tfdist.peers import account
from tfdist.peers import admission as admission_lib
from tfdist.peers import channel
from tfdist.peers import epoch_check
from tfdist.peers import first_steps
from tfdist.peers import joining
from tfdist.peers import journal as journal_lib
from tfdist.peers import lane as lane_lib
from tfdist.peers import own_state

# Seconds between two looks for what has come for lanes of other steps.
_RECEIPT_SECONDS = 1.0


class PeerEngine(engine_lib.Engine):
    """Steps of this worker, and what it hears of others.

    What the workers of `all_reduce` do together in each step is done here
    where they meet: at the beginning and at the end of `fit`, and in
    `strategy.barrier`.

    Args:
      strategy: The `tf.distribute.Strategy`.
      config: The `ClusterConfig`.
      meetings: Callable of this that makes the `Meetings`, or
        `NoCollectives`.
      check: The `FiniteCheck`.
      files: The `Files` of this task.
      roster: The `Roster`.
      name: Prefix of the names of all that it has on servers.
      device: Of this worker.
      codec: A `Codec`, or None.
      tolerance: The `FaultTolerance`.
      warmup_updates: Updates of each worker before others may join.

    Attributes:
      fit_number: Number of the meeting with which the call of `fit` began, or
        with which a call within it ended; it names what the chief may stop.
      dense: The codec of messages that are vectors as they are.
      known: int64 variable `(num_workers,)`, the incarnations whose messages
        count.
      told: int64 variable: the call of `fit` that the chief has stopped.
      first_steps: The `FirstSteps`.
    """

    def __init__(
        self,
        strategy,
        config,
        meetings,
        check,
        files,
        *,
        roster,
        name,
        device,
        codec,
        tolerance,
        warmup_updates=0,
    ):
        self.roster = roster
        self.name = name
        self.device = device
        self.codec = codec
        self.dense = cast.Cast("float32")
        self.tolerance = tolerance
        hidden = private_tensorflow.hidden_variable
        self.known = hidden(tf.zeros([roster.num_workers], tf.int64))
        self.told = hidden(tf.zeros([], tf.int64))
        super().__init__(strategy, config, meetings(self), check, files)
        self.journal = journal_lib.PeerJournal()
        self.fit_number = 0
        # Calls of `fit` that this worker has begun.
        self._fits = 0
        self._is_over = False
        # By call of `fit` under way, who was late in the one around it.
        self._late_around = []
        # Of a snapshot: by channel the numbers of all workers' updates in it,
        # their checksums, and the numbers of updates of earlier processes.
        self.seen_at_join = {}
        self.first_steps = first_steps.FirstSteps(self)
        # Numbers of this worker's requests for snapshots.
        self.requests = itertools.count(1)
        self.check_of_epochs = self._make_check()
        self.admission = None
        if roster.others:
            self.admission = admission_lib.Admission(self, warmup_updates)
        # All lanes that there are, in order of creation.
        self._made = []
        # By channel, freed ones too: what it has counted, and its senders.
        self._counted = {}
        self._next_receipt = 0.0

    # What other parts ask for.

    def note_known(self):
        """Called when the incarnation of another worker is known."""
        known = self.roster.known
        every = range(self.roster.num_workers)
        self.known.assign([known.get(worker, 0) for worker in every])

    def came_from(self, worker):
        """Number of messages of another worker that have come, int."""
        return sum(one.came_from(worker) for one in self.channels)

    # Of the class that users know.
    strategy_name = "PeerToPeerStrategy"

    def _make_check(self):
        return epoch_check.EpochCheck(self, self.tolerance)

    def make_channel(self, name, group, rate):
        """Makes a `Channel`; see there."""
        state = self._codec_state(name, group)
        return channel.Channel(self, name, group, self.codec, state, rate)

    def _codec_state(self, name, group):
        """Variables for the state of a codec: a part of `strategy.state`."""
        if self.codec is None:
            return {}
        worker = self.roster.worker_id
        state = self.codec.state(group.size, group.dtype, worker)
        # Another run may not make the lanes that this one has made before.
        place = f"{self.first_steps.name_of(-1)}/{group.dtype.name}"
        return {
            key: self._variable(value, f"{name}/{key}", f"{place}/{key}")
            for key, value in state.items()
        }

    def names_of(self, optimizers):
        """Beginnings of names in `named` that belong to optimizers, a list."""
        return [
            self.first_steps.name_of(number)
            for number, reference in enumerate(self._made)
            if (lane := reference()) is not None
            and any(lane.optimizer is one for one in optimizers)
        ]

    def _variable(self, value, name, saved_as):
        """A variable of this worker's own that Keras does not know of."""
        strategy = self._strategy()
        made = variables_lib.WorkerVariable(
            engine=self,
            kind=variables_lib.Kind.OWN,
            distribute_strategy=strategy,
            initial_value=value,
            trainable=False,
            name=name,
        )
        made.saved_as = saved_as
        self.named[saved_as] = made
        strategy.extended.on_variable(made)
        return made

    # Updates are vectors.
    takes_rows = False
    sums_own_gradients = True
    updates_alike = False
    reduces_state = False

    def lane_of(self, optimizer, variables, states, *how):
        """The `PeerLane` of an optimizer's step: state is none of it."""
        return super().lane_of(optimizer, variables, [], *how)

    def make_lane(self, optimizer, variables, *how):
        """Makes a `PeerLane`; see there."""
        is_new = not self.first_steps.was_at_join(len(self._made))
        if is_new and self.channels and self.roster.others:
            # Steps of other lanes may be the last ones for long. In loops of
            # the user's own, others may have many of them left.
            bound = self.tolerance.start_timeout
            self._take_all(bound if self.fits.is_running else None)
        self.first_steps.begin(optimizer, variables)
        made = lane_lib.PeerLane(self, optimizer, variables, len(self._made))
        self._made.append(weakref.ref(made))
        for one in made.channels:
            self._counted[one.name] = one.account, one.transport.senders
            self.check_of_epochs.begin(made, one)
        return made

    @property
    def lanes(self):
        """All `PeerLane`s, in order of creation, a list."""
        found = [reference() for reference in self._made]
        return [lane for lane in found if lane is not None]

    @property
    def channels(self):
        """All channels of all lanes, a list."""
        return [one for lane in self.lanes for one in lane.channels]

    # Steps.

    def before_assignment(self, variable):
        """Called before a shared variable is assigned."""
        is_kept = self.check.looks and not one_replica.is_trainable(variable)
        acts = self._is_evaluating or not self.is_applying
        if is_kept and acts and self._step is None:
            self.note_traced(variable)
        if self.is_applying:
            return
        if self._step is None:
            if tf.executing_eagerly():
                self.fits.end_if_abandoned()
            if variable.trainable:
                self.check_of_epochs.build_written()
            return
        if is_kept:
            # Such as moving statistics, or a teacher's weights, which follow
            # this worker's own.
            self._step.note(variable)
        if not one_replica.is_trainable(variable):
            return
        raise NotImplementedError(
            f"Variable {variable.name!r} is trainable, and a training step "
            "assigns it by other code than an optimizer, which the other "
            "workers would not hear of. If no optimizer trains it, "
            f"{one_replica.how_to_freeze(variable)}. Else use "
            "AllReduceStrategy."
        )

    def check_state(self, assigned):
        """Builds the check of what a step has assigned after its last lane.

        Args:
          assigned: Pairs of a `WorkerVariable` and its value before.
        """
        values, names = own_state.floats(assigned)
        finite = own_state.checked(self.check, values, names)
        own_state.restore_unless(finite, assigned)

    def read_told(self):
        """Returns what all workers were told: never of eager writes.

        Raises:
          tf.errors.UnavailableError: Another worker has given up this one.
          RuntimeError: A thread that exchanges messages has failed.
        """
        if self.roster.given_up_by is not None:
            raise self.roster.left_behind(self.roster.given_up_by)
        if self.admission is not None:
            for one in self.channels:
                one.transport.check_threads()
            self.admission.look()
            self._receive_beside()
        stops = self.fit_number and int(self.told.numpy()) == self.fit_number
        return 0.0, tail_lib.STOPS if stops else tail_lib.TRAINS

    def _receive_beside(self):
        """Applies, once a second, what has come for lanes of other steps.

        A joiner may be in the epoch of a lane that this worker has left.
        """
        now = time.monotonic()
        if now < self._next_receipt:
            return
        self._next_receipt = now + _RECEIPT_SECONDS
        if len(lanes := self.lanes) > 1:
            for lane in lanes:
                lane.receive()

    # Between steps.

    def adopt_model(self, moment, model, optimizers=(), data=0):
        """Gives all workers the chief's values; see `Engine`."""
        begins = moment is Moment.FIT and bool(self.roster.others)
        if begins:
            self._is_over = False
        if begins and (joiner := self._joiner()) is not None:
            joiner.join(model)
            self._fits += 1
            self._open()
            return 0
        if begins and self.channels:
            # Of a loop of the user's own before: the chief's values have them.
            self._take_all()
        chiefs = super().adopt_model(moment, model, optimizers, data)
        if begins:
            # It does not count if the others have not come to it.
            self._fits += 1
        if begins or (moment is Moment.AFTER_FIT and self.roster.others):
            # What the chief has told of a call that ends here is not of the
            # one around it.
            self.fit_number = self.collectives.number
        if begins:
            # All begin together; in a call around it some may have been late.
            self._late_around.append({*self.roster.late})
            self.roster.late.clear()
            self._open()
        elif moment is Moment.AFTER_FIT and self._late_around:
            self.roster.late |= self._late_around.pop()
        return chiefs

    def _joiner(self):
        """The `Joiner` of a worker without which the others began, or None."""
        if not self.roster.others or self.collectives.number:
            return None
        joiner = joining.Joiner(self, self.tolerance)
        if self.roster.comes_later:
            joiner.wait_for_start()
        return joiner if joiner.is_needed() else None

    def _open(self):
        self.admission.is_open = self._fits == 1
        self.collectives.post(fits=self._fits)

    def meeting(self):
        """Scope of what Ctrl-C may end: others are waited for in Python."""
        return contextlib.nullcontext()

    def adopt(self, moment, variables, settings="", data=0):
        """Gives all workers the chief's values; see `Engine`."""
        others = self._not_agreed() if moment is Moment.STEP else []
        lane = len(self._made) - 1
        if moment is Moment.STEP and self.first_steps.was_at_join(lane):
            # They were in the snapshot.
            for variable in [*variables, *others]:
                variable.is_agreed = True
            return 0
        counted = [
            variable
            for variable in variables
            if getattr(variable, "steps_of_update", 1) > 1
        ]
        summed = [int(v.numpy()) % v.steps_of_update for v in counted]
        chiefs = super().adopt(moment, variables, settings, data)
        self.first_steps.note_agreed([*variables, *others])
        with self.applying():
            for variable, number in zip(counted, summed, strict=True):
                # As many as this worker's own accumulators have.
                begun = variable.at_begin_of_update(int(variable.numpy()))
                variable.assign(begun + number)
        self.check_of_epochs.begin_all()
        return chiefs

    def numbers_of(self, variables):
        """Positions of variables in the order of creation, ints or None."""
        return self._strategy().state.numbers_of(variables)

    def read_state(self):
        """Returns the `SavedState` of this worker."""
        return self._strategy().state.read()

    def restore_state(self, saved):
        """Puts back a `SavedState`."""
        self._strategy().state.restore(saved)

    def stop_joiners(self):
        """Tells those that have begun later to stop, if this one leads.

        This worker's data has ended.
        """
        roster = self.roster
        first = min(
            {roster.worker_id, *roster.live} - roster.late, default=None
        )
        if not self._is_over or first != roster.worker_id:
            return
        for one in self.channels:
            one.transport.stop(self.fit_number, roster.late)

    def end_epoch(self):
        """Compares replicas with checksums; see `EpochCheck`."""
        self.check_of_epochs.end_epoch()

    def compare_model(self, moment, model):
        """Logs whether workers hold different values of a model."""
        shared = [
            variable
            for variable in self._shared_by(model)
            if one_replica.is_trainable(variable)
        ]
        parts = (np.ascontiguousarray(v.numpy()).tobytes() for v in shared)
        number = 0
        for part in parts:
            number = zlib.crc32(part, number)
        rows = self.consistency.meet(moment, number)
        different = int((rows[:, 0] != rows[0, 0]).sum())
        if different:
            logging.info(
                "%d of %d replicas differ from the first in the order of sums "
                "or in last updates of a lost worker; all take its values.",
                different,
                len(rows),
            )

    def follow(self, lanes, *, over=0.0, chief=tail_lib.TRAINS, wrote=0.0):
        """Tells the others what the chief decides, or waits for their end.

        Args:
          lanes: Those of the last step.
          over: 1.0 at the end of training.
          chief: The chief's `Tail.chief`.
          wrote: Unused: eager writes stay here until the end of `fit`.

        Returns:
          A `Tail`: nobody steps together.
        """
        if chief == tail_lib.STOPS:
            for lane in lanes:
                for one in lane.channels:
                    one.transport.stop(self.fit_number)
        _, told = self.read_told()
        if not over:
            return tail_lib.Tail(chief=told)
        self.finish()
        return tail_lib.Tail(over=self.num_workers, chief=told)

    def end_loops(self):
        """Waits until all updates are everywhere; see `Engine.barrier`."""
        if self._joiner() is not None:
            # Nobody waits for this worker before it joins, in `fit`.
            return
        self.finish()
        self.consistency.meet(Moment.BARRIER)
        self.note_met()

    def finish(self):
        """Waits until all have ended, and all updates are everywhere.

        What a lost worker has sent to some alone stays as it is until the
        others take the leader's values.
        """
        if not self.roster.others:
            return
        self._is_over = True
        self.stop_joiners()
        self._take_all()
        self.admission.is_open = False
        # In a barrier before the first `fit`, others may still join.
        updates = self.journal.updates
        self.collectives.post(closed=self._fits > 0, updates=updates)

    def _take_all(self, seconds=None):
        """Waits until all have what all have sent so far.

        Args:
          seconds: As of `Meetings.finish`.
        """
        self.collectives.flush(self._receive, self._is_flushed)
        self.collectives.finish(
            {one.name: one.sent for one in self.channels},
            self._receive,
            self._lacks,
            seconds,
        )

    def _is_flushed(self):
        return all(one.is_flushed for one in self.channels)

    def _receive(self):
        for lane in self.lanes:
            lane.receive()
        self.admission.look()

    def _lacks(self, worker, sent):
        here = {
            one.name: int(one.counts[worker, account.SEEN])
            for one in self.channels
        }
        # A channel that was freed here lacks nothing: its model is no more.
        # Nor does one of before this worker joined that it has not made.
        freed = (self._counted.keys() | self.seen_at_join.keys()) - here.keys()
        return any(
            here.get(name, 0) < number
            for name, number in sent.items()
            if name not in freed
        )

    # Accounts.

    def accounts(self):
        """Returns where this worker's updates are, and others' are from.

        Returns:
          A dict: see `PeerToPeerStrategy.update_counts`.
        """
        return account.totals(
            self._counted.values(), self.roster.names, self.roster.worker_id
        )
