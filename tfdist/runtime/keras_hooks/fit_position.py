"""Position of this worker in the data of a call of `fit`.

Each worker tells its epoch and batch beside its heartbeat. One that has been
started again goes on where the cluster is (`FitTurns.position`): it leaves out
whole epochs by Keras's own initial epoch, and the batches before it in that
epoch where they come in an order that is known.
"""

import weakref

from absl import logging
import keras

from tfdist import own_callbacks
from tfdist import private_keras
from tfdist import private_keras_calls
from tfdist import private_keras_data
from tfdist.cluster import fit_progress

_START = (0, 0)


class FitPosition:
    """Epoch and batch of one worker, told and taken up.

    Args:
      turns: The `FitTurns`.
      fits: The `Fits`, to which the position is told.

    Attributes:
      reads_backup: Whether the call under way has a BackupAndRestore.
      reads_checkpoint: Whether it has another callback that resumes.
      comes_back: Whether this worker comes back to it, or to its end.
      is_completed: Whether a former process of this worker has made all steps
        of it, while others have not.
    """

    def __init__(self, turns, fits):
        self._turns = turns
        self._fits = fits
        self.reads_backup = self.reads_checkpoint = self.comes_back = False
        self.is_completed, self._may_be_completed = False, True
        # Where the call that is beginning goes on.
        self._start = _START
        self._first_epoch, self._end_epoch = 0, 0
        # The first call that was not over when this process came to it; None
        # so far.
        self._first_call = None
        # Whether it has come to a call in which others were, or had been.
        self._is_late = False
        # The model whose initial epoch was set here, as long as it is.
        self._set_on = lambda: None
        # Batches of the epoch under way that this worker has left out.
        self._left_out = 0
        # Whether the call under way has come to its first epoch.
        self._has_epoch = False

    def watch(self, frame, number, may_be_completed=True):
        """Called when a call of `fit` is about to begin.

        Args:
          frame: Its frame.
          number: Its number.
          may_be_completed: Whether none of its steps makes variables, so that
            they may be left out where a former process has made them.
        """
        self._may_be_completed = may_be_completed
        self._release()
        self._start, self._left_out, self._has_epoch = _START, 0, False
        self._first_epoch = private_keras_calls.initial_epoch_of(frame)
        self._end_epoch = private_keras_calls.epochs_of(frame)
        callbacks = own_callbacks.listed(
            private_keras_calls.callbacks_of(frame)
        )
        self.reads_backup = any(map(_is_backup, callbacks))
        self.reads_checkpoint = any(
            hasattr(one, "resumed_epoch") for one in callbacks
        )
        self._find_start(number)

    def look_again(self, number):
        """Called when BackupAndRestore has read its file, or found none.

        The chief may have ended the call and deleted it since `watch`.

        Args:
          number: The call's number.

        Returns:
          Whether the others have ended the call since.
        """
        if self.is_over:
            return False
        self._find_start(number)
        if not self.is_over:
            return False
        self._first_call = None
        return True

    def _find_start(self, number):
        start = self._find(number)
        self.comes_back = start != _START
        self.is_completed = (
            start != fit_progress.OVER
            and self._may_be_completed
            and self._turns.has_completed(number)
        )
        reads = self.reads_backup or self.reads_checkpoint
        if self.is_completed:
            # What is left are the callbacks at its end.
            self._start = self._end_epoch, 0
        elif start == fit_progress.OVER or not reads:
            self._start = start
        # Else the callback sees to where `fit` goes on. Of a call that is over
        # it may have deleted what it wrote.

    def _find(self, number):
        """Returns the epoch and batch where a call goes on; or `OVER`."""
        self._turns.count_along(number)
        if self._first_call in (None, number):
            start = self._turns.position(number)
            if start != fit_progress.OVER:
                self._first_call = number
            if start != _START:
                self._is_late = True
                return start
        if self._is_late and (
            self._turns.are_over() or self._turns.chief_has_ended(number)
        ):
            return fit_progress.OVER
        return _START

    @property
    def passes(self):
        """Whether the others had ended all calls to which this process came."""
        return self._first_call is None

    @property
    def goes_on(self):
        """Whether this worker comes back to a call that others are in."""
        return self._start != _START

    @property
    def is_over(self):
        """Whether the others have ended the call under way."""
        return self._start == fit_progress.OVER

    @property
    def has_epochs(self):
        """Whether epochs of the call under way are left, once it has begun."""
        return self._fits.word.first_epoch < self._end_epoch

    def begin(self, model, size, skips):
        """Takes the position up, when the data is known.

        Args:
          model: The `keras.Model`.
          size: Batches of this worker's share in an epoch; 0 where that is
            not known.
          skips: Whether batches of an epoch can be left out.

        Returns:
          Numbers of epochs and of batches to leave out of the data, a tuple of
          ints: epochs from the user's first one on, less than 0 where the
          others are before that.
        """
        epoch, batch = self._start
        if size and batch >= size:
            epoch, batch = epoch + 1, 0
        if epoch == 0 < self._first_epoch:
            # Keras takes 0 for none, and would begin with the user's epoch.
            epoch, batch = self._first_epoch, 0
        batch = self._left_out = batch if skips else 0
        self._fits.tell(size=size, first_epoch=epoch, first_batch=batch)
        if not self.goes_on:
            return _START
        private_keras.set_initial_epoch(model, epoch)
        self._set_on = weakref.ref(model)
        if self.is_over:
            logging.info("The others have ended this call of fit.")
            # The next call may go on where all of its epochs have left data.
            return max(0, self._end_epoch - self._first_epoch), 0
        logging.info("Goes on at epoch %d, batch %d.", epoch + 1, batch + 1)
        return epoch - self._first_epoch, batch

    def begin_loop(self, frame):
        """Called at the first step of an epoch, with the frame of `fit`."""
        self._release()
        self._has_epoch = True
        epoch = private_keras_calls.epoch_of(frame)
        place = {"epoch": epoch, "batch": self._left_out}
        # A callback that resumes has had its say only now.
        first = {f"first_{name}": value for name, value in place.items()}
        self._fits.tell(**place, **first)

    def check(self, number, chief):
        """Refuses a call whose BackupAndRestore has not found the chief's file.

        This worker would train the epochs before it once more.

        Args:
          number: The call's number.
          chief: The chief's `Member`; None where it is not known.

        Raises:
          ValueError: The chief has begun the call with a later epoch.
        """
        if not self.reads_backup or chief is None:
            return
        first, chiefs = self._fits.word.first_epoch, chief.word.first_epoch
        if chief.word.number == number and first < chiefs:
            raise ValueError(
                "Argument `backup_dir` of BackupAndRestore must be a directory "
                "that all workers see, the same on all. Received: the chief "
                f"has resumed from it with epoch {chiefs + 1}, and this worker "
                f"begins with epoch {first + 1}."
            )

    def end_without_step(self, fit):
        """Tells that a call that a callback has resumed at its end is over.

        Args:
          fit: The `FitCall`.
        """
        self._fits.tell(
            reached=fit_progress.ended(fit.number),
            completed=fit.number,
            first_epoch=private_keras.epoch_set_on(fit.model) or 0,
        )

    def begin_epoch(self, epoch):
        """Called when an epoch begins, perhaps the first one."""
        if not self._has_epoch:
            return
        epoch_iterator = private_keras_calls.epoch_iterator()
        if self._left_out and epoch_iterator is not None:
            # Of data of unknown size, what was left of the epoch before.
            private_keras_data.forget_num_batches(epoch_iterator)
        self._left_out = 0
        self._fits.tell(epoch=epoch, batch=0)

    def end_batch(self, batch):
        """Called when a batch of the epoch is done, with its number from 0."""
        self._fits.tell(batch=self._left_out + batch + 1)

    def _release(self):
        """Lets the model's next `fit` begin where the user says."""
        model, self._set_on = self._set_on(), lambda: None
        if model is not None:
            private_keras.set_initial_epoch(model, None)


def _is_backup(callback):
    return isinstance(callback, keras.callbacks.BackupAndRestore)
