"""One decision for the cluster: the chief decides, the others follow.

A call of `fit` is the same call on all workers, by its number. The chief tells
when its code stops training or sets a learning rate; each exchange brings the
others what it has told last (`tfdist.cluster.fit_progress`), and they do the
same at their next step. Where one call of `fit` follows on another, the others
begin it after the chief, and what the chief assigns in between comes after all
that anybody has pushed in the former one.
"""

import threading

from absl import logging
import keras

from tfdist import private_keras_calls
from tfdist.cluster import fit_progress
from tfdist.data_shares import data_number
from tfdist.program_error import ProgramError
from tfdist.runtime.keras_hooks import chiefs_word
from tfdist.runtime.keras_hooks import fit_call
from tfdist.runtime.keras_hooks import fit_callbacks
from tfdist.runtime.keras_hooks import fit_position
from tfdist.runtime.keras_hooks import fit_turns
from tfdist.runtime.keras_hooks import rates_of_calls
from tfdist.runtime.keras_hooks import values_between

CHOICES = ("chief", "each")


class ChiefDecisions:
    """Decisions about `fit` that one worker reports and follows.

    Args:
      runtime: The `Runtime`.
      membership: The `Membership`.
      config: The `ClusterConfig`.
      starts_together: Whether workers wait for each other before the first
        step of all.
      **patience: Those of `FitTurns`.

    Attributes:
      position: The `FitPosition`.
      chiefs_word: The `ChiefsWord`, which an exchange brings.
    """

    def __init__(
        self, runtime, membership, config, *, starts_together=False, **patience
    ):
        self._runtime = runtime
        self._starts_together = starts_together
        self._store = runtime.store
        self._membership = membership
        self._fits = membership.fits
        self.is_chief = config.worker_id == fit_turns.CHIEF
        self._turns = fit_turns.FitTurns(
            runtime.store,
            membership,
            config,
            wait=runtime.wait,
            **patience,
        )
        self.position = fit_position.FitPosition(self._turns, self._fits)
        self.chiefs_word = chiefs_word.ChiefsWord(
            runtime.store, membership, runtime.journal
        )
        self._fit = None
        # Whether the last call of `fit` that began is of a callback, within it.
        self._is_within = False
        self._values = values_between.ValuesBetween(
            runtime, self._turns, self.is_chief, patience["start_timeout"]
        )
        self._rates = rates_of_calls.RatesOfCalls(runtime.store, membership)
        self._warned = False

    @property
    def fit_number(self):
        """The number of the call of `fit` under way; 0 without one."""
        return 0 if self._fit is None else self._fit.number

    @property
    def is_in_loop(self):
        """Whether a call of `fit` is between its first and its last step."""
        return self._fit is not None and self._fit.is_in_loop

    @property
    def is_passed(self):
        """Whether the others had ended the call of `fit` under way before."""
        return self._fit is not None and self.position.is_over

    @property
    def takes_no_step(self):
        """Whether that is so, or this worker had made all steps of it."""
        return self.is_passed or (
            self._fit is not None and self.position.is_completed
        )

    @property
    def comes_back(self):
        """Whether an earlier process of this worker was in the call under way.

        Or others, where this worker came late to it.
        """
        is_in = self._fit is not None and not self._is_within
        return is_in and self.position.comes_back

    def others_have_later_call(self):
        """Whether another worker has made a call of `fit` after that one."""
        return self._turns.others_have_call(self._fit.number + 1)

    @property
    def number_of_order(self):
        """The order number of the data of the last call; 0 without one.

        The number of the call of `fit` under way. Calls that callbacks make
        in an epoch have others, the same where workers make the same in it.
        """
        return 0 if self._fit is None else self._fit.number_of_order

    def wait_for_word(self, find):
        """See `FitTurns.wait_for_word`, in the call of `fit` under way."""
        return self._turns.wait_for_word(self.fit_number, find)

    def note_data(self, checksum, is_seed):
        """Takes note of the data of a call, which is to be as the chief's.

        Args:
          checksum: Callable that gives a number of it.
          is_seed: Whether it is of the seed of the order; else it is of the
            first batch.
        """
        if self._fit is not None and not self._is_within:
            self._fit.data = data_number.DataNumber(checksum(), is_seed)

    def begin_data(self, size, skips):
        """Called when the data of a call is known; see `FitPosition.begin`."""
        fit = self._fit
        if fit is None or self._is_within:
            return (0, 0)
        left_out = self.position.begin(fit.model, size, skips)
        if self.position.goes_on and not self.position.has_epochs:
            self._take_no_step(fit)
        return left_out

    def _take_no_step(self, fit):
        # It has been a call all the same.
        fit.has_begun = True
        self._fits.tell(completed=fit.number)
        self._values.end(fit.model, fit.number)
        fit_call.take_over(fit.model, self._runtime)

    def look_again(self):
        """Called when BackupAndRestore has looked for its file.

        The others may have ended the call, and deleted it, just before.
        """
        fit = self._fit
        if fit is None or self._is_within or self.is_chief:
            return
        if self.position.look_again(fit.number):
            self.position.begin(fit.model, size=0, skips=False)
            self._take_no_step(fit)
            # The file may have been there, and is older.
            self._runtime.pull()

    def await_readers(self):
        """Called before BackupAndRestore deletes its files.

        A chief that has resumed a call at its end takes no step, in which it
        would wait until the others have read them.
        """
        fit = self._fit
        if fit is None or fit.has_stepped or self.is_passed:
            return
        if self.is_chief:
            self.position.end_without_step(fit)
            self._tell()
            self._turns.wait_for_others_to_begin(fit.number)

    @property
    def follows(self):
        """Whether this worker follows the decisions of another one."""
        return not self.is_chief

    # Around a call, and its steps.

    def watch(self, frame, call):
        """Called when a call of `fit` is about to begin.

        Waits until it may: for the chief's, if there was one before.

        Args:
          frame: Its frame.
          call: Its `RunningFit`.
        """
        self._is_within = self._fits.is_around(frame)
        if self._is_within:
            self._fit.note_call_within(self._fits.word.epoch)
            return  # One within another, of a callback.
        if self._fit is not None:
            self._end_abandoned(self._fit)
        else:
            self._store.call(self._membership.find_former)
        model = private_keras_calls.model_of(frame)
        number = self._next_number(model)
        if number > 1:
            # It has ended the call before, also if it dies as it waits.
            self._tell(came_to=number)
        if self.is_chief:
            self._turns.wait_for_others(self._values.call_to_end(model, number))
        elif number > 1 or not self._turns.is_expected():
            # Who comes late goes on where all are when the chief is back.
            self._turns.wait_for_chief(
                fit_progress.begun(number), f"to begin call {number} of fit"
            )
        self._fit = fit_call.FitCall(frame, number, call)
        self.position.watch(frame, number, fit_call.makes_all_when_built(model))
        if self.is_chief:
            self._rates.resume(self._fit, self.takes_no_step)
        # A call in which nothing is left to do has been one all the same.
        call.has_ended |= self.position.is_over
        self._fits.watch(call, number)

    def _end_abandoned(self, fit):
        """Ends a call that an exception has ended.

        No callback has seen its end; others may wait for it. Local steps that
        it has left go on in the next one: all workers may have as many.
        """
        fit.is_in_loop = False
        self._runtime.work.leave()
        # Not once more after a heartbeat: others may have begun the next one.
        self._runtime.coordination.leave_if_over()
        if fit.is_call:
            if self.is_chief and fit.has_stepped:
                self._rates.note(fit, self._fits.word.rates)
            self._values.end(fit.model, fit.number, fit.averages)
            self._fits.close()
            # The others count who comes there. The model may be compiled in
            # another way since, or gone. Callbacks of a call that has ended
            # without a step were there.
            waits = fit.ends_together and fit.has_begun
            if waits and self._runtime.settle():
                self._membership.arrive()
            self._tell()

    def _next_number(self, model):
        """The number of the call of `fit` that begins here."""
        if self._fit is not None and not self._fit.is_call:
            # That has raised before the others heard of it, and is none. One
            # whose first step was refused has told its rates: it is a call.
            return self._fit.number
        may_pass = fit_call.makes_all_when_built(model)
        may_pass &= not self._runtime.local.keeps_own_values
        return self._turns.next_number(self.position.passes, may_pass)

    def call(self, call, function, *args):
        """Calls a `train_function` of Keras.

        Args:
          call: Callable of it and its arguments that does so.
          function: The `train_function`.
          *args: Its arguments.
        """
        fit = self._fit
        if fit is None or fit.has_ended:
            return call(function, *args)  # Such as `train_on_batch`.
        if not fit.is_in_loop:
            if not self._fits.is_running():
                # An exception has ended it before its first step.
                return call(function, *args)
            self._begin_loop(fit)
        elif fit.frame is not None and self._begin_epochs(fit):
            if self.position.reads_backup:
                self.position.check(fit.number, self._turns.chief())
        self._values.has_set = False
        if self.is_chief:
            self._tell_rates(fit)
        else:
            fit.adopt_rates(self._runtime.local.keeps_own_values)
        is_first, fit.has_stepped = not fit.has_stepped, True
        if self._starts_together and fit.number == 1 and is_first:
            result = self._start_together(fit, call, function, *args)
        else:
            result = call(function, *args)
        if is_first:
            fit.find_rates()
            fit.find_averages()
        if not self.is_chief:
            self._turns.chief_was_seen_at(self.chiefs_word.look(fit))
            if self._runtime.local.keeps_own_values:
                # Now: what callbacks set after this step lasts.
                fit.adopt_rates(may_last=True)
        return result

    def _start_together(self, fit, call, function, *args):
        """Takes the first step; waits until the others have taken theirs.

        Not before it: tracing takes longer here than there. Others hear of it
        once its gradients are sent, as the step may end only after later ones
        of theirs: a dropped gradient is computed again.
        """
        before = self._runtime.journal.begun

        def look():
            if self._runtime.journal.begun > before:
                self.position.end_batch(0)

        self._membership.on_beat.append(look)
        try:
            result = call(function, *args)
        finally:
            self._membership.on_beat.remove(look)
        self.position.end_batch(0)
        self._tell()
        self._turns.wait_for_start()
        return result

    def before_write(self, variable):
        """Called before what servers hold is assigned eagerly.

        Args:
          variable: The `ReplicaVariable`.

        Returns:
          Whether servers are to get what is assigned, if they get it from this
          worker.
        """
        if not self._values.note_write(variable):
            return False
        fit = self._fit
        if fit is not None and fit.is_in_loop and self._fits.is_running():
            return True
        if self.is_chief:
            self._turns.wait_for_others(self._fits.word.number)
        return True

    def after_callback(self):
        """Called on the chief when one callback has seen the end of an epoch.

        The rates that it has set are told at once: the callbacks after it may
        take long, and a chief that dies there goes on with the next epoch,
        unless nobody knows how many batches this one has.
        """
        word = self._fits.word
        if self.is_in_loop and 0 < word.size <= word.batch:
            self._tell_rates(self._fit)

    def after_callbacks(self):
        """Called when the user's callbacks have seen a batch or an epoch."""
        fit = self._fit
        if fit is None or not fit.is_in_loop:
            return
        if fit.stopped:
            fit.model.stop_training = True
        if not fit.model.stop_training:
            return
        if fit.thread != threading.get_ident():
            return  # No callback of the user's has seen a batch.
        if self.is_chief:
            if not fit.stopped:
                fit.stopped = True
                self._tell(stopped=fit.number, version=self._version())
        elif not fit.stopped and self._chief_decides(fit):
            fit.model.stop_training = False

    def end_loop(self):
        """Called when Keras has taken its last step, before callbacks."""
        fit = self._fit
        if fit is None:
            return
        if self.is_chief:
            self._tell_rates(fit)
        fit.is_in_loop, fit.has_ended = False, True
        self._values.end(fit.model, fit.number, fit.averages)
        self._runtime.work.leave()
        self._runtime.local.finish()
        self._runtime.coordination.leave()
        self._tell(reached=fit_progress.ended(fit.number), completed=fit.number)

    def close(self):
        """Called when all callbacks have seen the end of training."""
        fit, self._fit = self._fit, None
        if fit is None:
            return
        if self.is_chief:
            # Callbacks may have set them since.
            self._tell_rates(fit)
            self._rates.note(fit, fit.own_rates())
        elif fit.stopped or self._values.wrote:
            self._turns.wait_for_chief(
                fit_progress.closed(fit.number),
                f"to end call {fit.number} of fit",
            )
        if fit.stopped or self._values.wrote:
            # The parameters, and no look-ahead: nothing is trained on them.
            # Also on the chief, with the others' last updates: should a server
            # be lost now, what it assigned is newer than all snapshots.
            self._runtime.pull()
            self._values.wrote = False
        self._fits.close()
        self._tell()

    def _begin_loop(self, fit):
        listed = private_keras_calls.callbacks_of(fit.frame)
        self._begin_epochs(fit)
        if not isinstance(listed, keras.callbacks.CallbackList):
            raise ProgramError(
                "Keras's `fit` has no CallbackList to follow the chief with. "
                'Use decisions="each".'
            )
        fit_callbacks.put_around(listed, self)
        fit.is_in_loop = fit.has_begun = True
        fit.find_rates()
        fit.find_averages()
        self._values.begin(fit.model, fit.number)
        fit.exchanges = self._runtime.journal.count
        self._tell_begun(fit)

    def _begin_epochs(self, fit):
        """Tells with which epoch a call begins; returns whether it is known.

        It is not as long as a callback trains in `on_train_begin`.
        """
        if private_keras_calls.is_before_epochs(fit.frame):
            return False
        self.position.begin_loop(fit.frame)
        fit.frame = None
        return True

    def _tell_begun(self, fit):
        """Tells that a call of `fit` begins; waits until the chief's has."""
        values = self._values
        if self.is_chief:
            written = self._fits.word.written
            self._tell(
                written=fit.number if self._values.has_set else written,
                reached=fit_progress.begun(fit.number),
                rates=fit.own_rates(),
                version=self._version(),
                data=fit.data.value,
            )
            # From now on BackupAndRestore writes anew what they read, and
            # ClusterCheckpoint saves later epochs. (In the first call others
            # may wait for steps of this worker.) And where workers wait for
            # each other, those that had no data in the call before are not
            # waited for until they have begun this one.
            waits = fit.number > 1 and (
                self._runtime.coordination.waits
                or self.position.reads_checkpoint
            )
            if waits or self.position.reads_backup:
                # Of a new model one of them may have asked before it begins.
                self._runtime.commit()
                self._turns.wait_for_others_to_begin(fit.number)
            if fit.number > 1 or (values.wrote and values.is_of_former_life()):
                self._values.take_over()
            self._values.wrote = False
            return
        begun, chief = fit_progress.begun(fit.number), None
        takes_over = fit.number > 1 or values.wrote
        takes_over = takes_over or values.are_earlier(begun)
        if takes_over or self.position.reads_backup:
            chief = self._turns.wait_for_chief(
                begun, f"to begin call {fit.number} of fit"
            )
            if fit.frame is None:
                self.position.check(fit.number, chief)
        # Before it takes over what the chief may make in its first step, for
        # which the chief may wait for this word.
        self._tell(reached=begun)
        if takes_over:
            self._values.take_over()
        if takes_over and chief is not None:
            fit.told = chief.word
            if chief.word.written >= fit.number:
                self._runtime.local.adopt_given()
        elif self.position.goes_on:
            # It makes no step with the rates that training began with.
            fit.told = self._turns.chief().word

    def _tell(self, **changes):
        self._fits.tell(**changes)
        self._store.call(self._membership.tell)

    def _tell_rates(self, fit):
        rates = fit.own_rates()
        if rates != self._fits.word.rates:
            self._tell(rates=rates, version=self._version())

    def _version(self):
        return int(self._store.pulled_version(0))

    def _chief_decides(self, fit):
        """Whether the chief is there and trains, so that this worker goes on.

        Called when code of this worker has stopped training here alone.
        """
        chief = self._turns.chief()
        # Where the chief has stopped, the next exchange will tell.
        if chief.word.stopped != fit.number and (
            0 < chief.word.number < fit.number
            or chief.word.reached >= fit_progress.ended(fit.number)
            or not self._turns.is_there(chief)
        ):
            return False
        if not self._warned:
            self._warned = True
            logging.warning(
                "stop_training of this worker is ignored: the chief decides "
                'when all stop. With decisions="each" each worker does.'
            )
        return True
