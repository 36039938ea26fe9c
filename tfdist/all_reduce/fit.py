"""Calls of `fit`, whose epochs all workers end together.

A worker whose data has ended before that of others follows their steps, until
nobody has a batch; at the end of `fit`, until all have ended it. The chief
decides when all stop.
"""

import contextlib
import itertools

from absl import logging
import keras
import tensorflow as tf

from tfdist import adapted_layers
from tfdist import model_optimizers
from tfdist import own_callbacks
from tfdist import private_keras_calls
from tfdist import running_fit
from tfdist.all_reduce import tail as tail_lib
from tfdist.all_reduce.consistency import DifferentValuesError
from tfdist.all_reduce.consistency import Moment
from tfdist.data_shares import data_number
from tfdist.program_error import ProgramError
from tfdist.saved_state import ModelMismatchError


class FitCalls:
    """The calls of `fit` under way: one, or those that callbacks make in it.

    Args:
      engine: The `Engine`, or a `RingEngine` of local steps.
    """

    def __init__(self, engine):
        self._engine = engine
        self._stack = []
        # Those that have asked for data and not begun: number of the call,
        # `RunningFit`, frame.
        self._next = []
        self._numbers = itertools.count()
        self._numbers_of_data = running_fit.CallNumbers()
        # Of the last of these.
        self._data = data_number.DataNumber()
        self._has_warned = False
        # Of the call that began last, from 0.
        self._first_epoch = 0

    @property
    def is_running(self):
        """Whether a call of `fit` is at its steps."""
        return bool(self._stack) and not self._stack[-1].has_ended

    @property
    def model_of_step(self):
        """The model whose `train_function` a `fit` is calling, or None."""
        return self._stack[-1].model_of_step if self._stack else None

    @property
    def has_abandoned(self):
        """Whether an exception has ended one, which others may train on in."""
        return any(fit.is_abandoned(None) for fit in self._stack)

    def watch(self, frame, running, is_own=False):
        """Called when a call of `fit` asks for its data.

        Args:
          frame: Its frame.
          running: Its `RunningFit`.
          is_own: Whether it is a `fit` of the user's own, whose steps may be of
            their own, too.

        Returns:
          Its number, see `CallNumbers`.
        """
        # One that has raised before its first step is none.
        self._next = [one for one in self._next if not one[1].is_over()]
        # Before this call's callbacks begin: they may read a file of the
        # chief's (BackupAndRestore), which is whole when all have met.
        self.end_abandoned(frame)
        self._next.append((next(self._numbers), running, frame))
        self._data = data_number.DataNumber()
        return self._numbers_of_data.next(running, at_once=is_own)

    def note_data(self, checksum, is_seed):
        """Takes note of its data, which is to be as the chief's.

        Args:
          checksum: Callable that gives a number of it.
          is_seed: Whether it is of the seed of the order; else it is of the
            first batch.
        """
        self._data = data_number.DataNumber(checksum(), is_seed)

    def call(self, function, *args):
        """Calls a `train_function` of Keras."""
        self.end_if_abandoned()
        if self._begins():
            number, running, frame = self._next.pop()
            self.end_abandoned(frame)
            self._first_epoch = private_keras_calls.epoch_of(frame)
            fit = Fit(self._engine, frame, running, self._stack.remove, number)
            data, self._data = self._data, data_number.DataNumber()
            with self._engine.meeting():
                chiefs = fit.begin(data.value)
                self._stack.append(fit)
                self._numbers_of_data.begin()
                self._has_warned = self._has_warned or data.warns(chiefs)
                # Before Ctrl-C: without a first step none can be followed.
                return fit.call(function, *args)
        if not self._stack:
            return self._engine.call(function, *args)
        return self._stack[-1].call(function, *args)

    def _begins(self):
        """Whether the last one that has asked for data is what calls."""
        while self._next and self._next[-1][1].is_over():
            self._next.pop()
        if not self._next or not self._stack:
            return bool(self._next)
        # Or one that a callback makes before the first step of that one.
        return self._next[-1][0] > self._stack[-1].number

    def end_abandoned(self, frame=None):
        """Ends calls that an exception has ended: others may train on.

        Args:
          frame: Of a call that begins within those that go on.
        """
        for fit in reversed(self._stack[:]):
            if fit.is_abandoned(frame):
                fit.abandon()

    def settings(self, moment, optimizers):
        """The settings of this worker, a string; see `Consistency.adopt`.

        Args:
          moment: The `Moment`.
          optimizers: Keras optimizers.
        """
        described = model_optimizers.described(optimizers)
        if moment is not Moment.FIT:
            return described
        # A callback that resumes may have found its file on one worker alone.
        return f"{described}; from epoch {self._first_epoch + 1} on"

    @property
    def is_ending(self):
        """Whether a call has taken its last step, and callbacks still act."""
        return bool(self._stack) and self._stack[-1].has_ended

    def call_at_end(self, function):
        """Calls a function at the end of the call of `fit` that `is_ending`.

        All workers have then taken the chief's values.
        """
        self._stack[-1].calls_at_end.append(function)

    def before_write(self, variable):
        """Called before a shared variable is assigned eagerly."""
        self.end_if_abandoned()
        if self._stack:
            self._stack[-1].before_write(variable)

    def end_if_abandoned(self):
        """Ends calls that an exception has ended, before a script goes on.

        What it sets, and its steps, come after all that others make in these.
        """
        if self.has_abandoned:
            self.end_abandoned()


class Fit:
    """One call of `fit` on this worker.

    Args:
      engine: As of `FitCalls`.
      frame: Its frame.
      running: Its `RunningFit`.
      on_close: Called with this when it has ended.
      number: Of the call; those within it have higher ones.

    Attributes:
      has_ended: Whether this worker has taken its last step.
      model_of_step: The model while it takes steps, else None.
      calls_at_end: Functions to be called when all have ended it.
    """

    def __init__(self, engine, frame, running, on_close, number):
        self.number = number
        self.calls_at_end = []
        self._engine = engine
        self._running = running
        self._callbacks = private_keras_calls.callbacks_of(frame)
        self._epochs = private_keras_calls.epochs_of(frame)
        self._model = private_keras_calls.model_of(frame)
        self._on_close = on_close
        self._stops = self._is_told = False
        # Whether this worker, or any, has assigned variables eagerly.
        self._has_written = self._wrote = False
        self._is_over_for_chief = False
        # Whether all workers have taken their last step.
        self._is_over_for_all = False
        # Whether this worker is with the others at the end of an epoch.
        self._has_met = False
        self.has_ended = False
        # Whether this worker has come to the comparison at the end.
        self._is_compared = False
        self.model_of_step = None

    @property
    def _lanes(self):
        return self._engine.lanes_of(self._model)

    def begin(self, data):
        """Called before the first step: all begin with the chief's values.

        Args:
          data: Value of the `DataNumber` of the call.

        Returns:
          That of the chief, an int.
        """
        if not isinstance(self._callbacks, keras.callbacks.CallbackList):
            raise ProgramError(
                "Argument `callbacks` of `fit` must become a Keras "
                "CallbackList, by which workers without servers end epochs. "
                f"Received: {self._callbacks!r}"
            )
        self._put_around_callbacks()
        model = self._model
        self._engine.read_told()  # Of steps before this call.
        optimizers = [] if model.optimizer is None else [model.optimizer]
        return self._adopt(Moment.FIT, optimizers, data)

    def _adopt(self, moment, *args):
        """Gives all workers the chief's values; see `Engine.adopt_model`."""
        chiefs = self._engine.adopt_model(moment, self._model, *args)
        adapted_layers.take_over(self._model)
        return chiefs

    def _put_around_callbacks(self):
        first = {
            "on_test_begin": lambda logs=None: self.meet(),
            "on_epoch_end": lambda epoch, logs=None: self.meet(),
            "on_train_end": lambda logs=None: self.end(),
        }
        last = {
            "on_epoch_end": lambda epoch, logs=None: self.decide(epoch),
            "on_train_end": lambda logs=None: self.finish(),
        }
        users = own_callbacks.others(self._callbacks, __name__)
        # Callbacks may stop training between batches. Keras turns the logs of
        # each batch into numbers where any callback sees them.
        if any(_acts_on_batches(callback) for callback in users):
            last["on_train_batch_end"] = lambda batch, logs=None: (
                self.ignore_own_stop()
            )
        own_callbacks.put_around(self._callbacks, __name__, first, last)

    def call(self, function, *args):
        """Calls the `train_function`."""
        self._has_met = False
        if self._has_written:
            self._engine.wrote.assign(1.0)
        self.model_of_step = self._model
        try:
            result = self._engine.call(function, *args)
        finally:
            self.model_of_step = None
            # Also if a later one of several steps has raised.
            wrote, chief = self._engine.read_told()
            if self._has_written:
                # Without a step nobody was told, as at the end of the data.
                self._has_written = not wrote
                self._engine.wrote.assign(0.0)
            self._look(wrote, chief)
        self.ignore_own_stop()  # Of callbacks before the epoch.
        return result

    def _look(self, wrote, chief):
        self._wrote |= wrote > 0
        self._is_over_for_chief |= chief == tail_lib.IS_OVER
        if chief == tail_lib.STOPS and not self._engine.is_chief:
            self._stops = True
            self._model.stop_training = True

    def before_write(self, variable):
        """Called before a shared variable is assigned eagerly."""
        if not variable.is_rate:
            self._has_written = True

    # At the ends of epochs.

    def meet(self):
        """Follows the others' steps until nobody has a batch."""
        self._engine.fits.end_if_abandoned()
        if self._has_met or not self._lanes:
            return
        self._has_met = True
        self._stops |= self._model.stop_training
        while self._meet_once():
            pass

    def _meet_once(self):
        """Takes part in a step; returns whether anybody had a batch."""
        with self._engine.meeting():
            tail = self._follow()
            self._look(tail.wrote, tail.chief)
            if tail.present:
                return True
            self._engine.end_epoch()
            if self._wrote:
                self._wrote = False
                self._engine.compare_model(Moment.END_OF_EPOCH, self._model)
            return False

    def decide(self, epoch):
        """Called when the callbacks have seen the end of an epoch."""
        self._engine.fits.end_if_abandoned()
        if not self._lanes:
            return
        with self._engine.meeting():
            self._hear_chief()
        model = self._model
        is_last = model.stop_training or epoch + 1 >= self._epochs
        if is_last and model_optimizers.averages_weights(model):
            # Keras is about to put them in place: no step may follow.
            self._follow_to_end()

    def _hear_chief(self):
        model = self._model
        if self._engine.is_chief:
            self._stops = bool(model.stop_training)
        # Nothing tells which steps of evaluations this worker has made.
        wrote = self._has_written or self._engine.evaluations_assign
        tail = self._follow(wrote=float(wrote))
        self._has_written = False
        if tail.wrote:
            self._adopt(Moment.END_OF_EPOCH)
        self._is_over_for_chief |= tail.chief == tail_lib.IS_OVER
        if self._engine.is_chief or self._is_over_for_chief:
            return
        self._stops = tail.chief == tail_lib.STOPS
        self.ignore_own_stop()
        model.stop_training = self._stops

    def ignore_own_stop(self):
        """Lets this worker go on until the chief stops, who decides."""
        model = self._model
        if (
            self._engine.is_chief
            or self._stops
            or self._is_over_for_chief
            or not model.stop_training
        ):
            return
        model.stop_training = False
        if not self._is_told:
            self._is_told = True
            logging.warning(
                "stop_training of this worker is ignored: the chief decides "
                "when all stop."
            )

    def _follow(self, **mine):
        chief = tail_lib.TRAINS
        if self._engine.is_chief:
            chief = tail_lib.STOPS if self._stops else chief
            chief = tail_lib.IS_OVER if "over" in mine else chief
        return self._engine.follow(self._lanes, chief=chief, **mine)

    # At the end.

    def is_abandoned(self, frame):
        """Whether an exception has ended it, before a call by its frame."""
        if frame is not None:
            return not self._running.is_around(frame)
        return self._running.is_over()

    def _follow_to_end(self):
        self.has_ended = True
        while self._lanes and not self._is_over_for_all:
            with self._engine.meeting():
                tail = self._follow(over=1.0)
                if tail.over >= self._engine.num_workers:
                    self._is_over_for_all = True
                else:
                    self._answer(tail)

    def end(self, has_raised=False):
        """Follows the others' steps until all have ended `fit`.

        Args:
          has_raised: Whether an exception has ended it on this worker.
        """
        self._follow_to_end()
        with self._engine.meeting():
            self._is_compared = True
            try:
                self._engine.put_averages(self._model, are_there=not has_raised)
                self._engine.compare_model(Moment.END_OF_FIT, self._model)
            except (KeyboardInterrupt, tf.errors.OpError, ProgramError):
                # Not with the others: `abandon` comes there again.
                self._is_compared = False
                raise
            self._engine.note_end(self._lanes)

    def _answer(self, tail):
        """Takes part in what others do at the ends of their epochs."""
        if tail.present:
            self._wrote |= tail.wrote > 0
            return
        if self._wrote:  # As in `meet`.
            self._wrote = False
            # Of a worker that an exception has ended, others judge.
            with contextlib.suppress(DifferentValuesError):
                self._engine.compare_model(Moment.END_OF_EPOCH, self._model)
        if tail.wrote:  # As in `decide`.
            self._adopt(Moment.END_OF_EPOCH)

    def abandon(self):
        """Ends it after an exception: the others may have had none.

        Where one of them is gone, it is over here, and the model is this
        worker's own: what is there can be saved, and what was saved loaded.
        """
        try:
            if not self._is_compared:
                with contextlib.suppress(DifferentValuesError):
                    self.end(has_raised=True)
            self.close()
        except tf.errors.OpError as error:
            if not self._engine.has_failed:
                raise
            logging.warning("This `fit` ends alone: %s", error.message)
            self._on_close(self)
        except ModelMismatchError as error:
            # All have found it. What one has compiled since the next `fit`
            # compares.
            logging.warning("Each keeps its own model of this `fit`: %s", error)
            self._on_close(self)

    def close(self):
        """Gives all what the chief's callbacks have made of the weights."""
        with self._engine.meeting():
            self._adopt(Moment.AFTER_FIT)
            self._engine.note_met(self._lanes)
            self._on_close(self)

    def finish(self):
        """Called when all callbacks have seen the end of training."""
        self._engine.fits.end_if_abandoned()
        self.close()
        for function in self.calls_at_end:
            function()


def _acts_on_batches(callback):
    # Keras calls the shorter names, too.
    seen = (
        "on_train_batch_begin",
        "on_train_batch_end",
        "on_batch_begin",
        "on_batch_end",
    )
    base = keras.callbacks.Callback
    # A `LambdaCallback` has functions of its own, and no methods.
    return not isinstance(callback, keras.callbacks.ProgbarLogger) and any(
        getattr(getattr(callback, name), "__func__", None)
        is not getattr(base, name)
        for name in seen
    )
