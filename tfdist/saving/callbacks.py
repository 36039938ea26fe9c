"""Keras's callbacks that write files, on a task that writes none.

They are told so by their public attributes, when `fit` begins and before they
have opened anything.
"""

import json
import os
import sys

from absl import logging
import keras

from tfdist import checks
from tfdist import dynamic_subclasses
from tfdist import model_optimizers
from tfdist import own_callbacks
from tfdist import private_keras
from tfdist import private_keras_building
from tfdist import private_keras_calls
from tfdist import running_fit
from tfdist.cluster import waiting

_RESTORE_SECONDS = 20.0
_GIVEN = "_tfdist_given"
_NEVER = {"save_freq": sys.maxsize}
# Class, the attribute that says where it writes, and what makes it write
# nothing. `OrbaxCheckpoint` is not in every version of Keras 3.
_RULES = [
    (keras.callbacks.ModelCheckpoint, "filepath", _NEVER),
    (getattr(keras.callbacks, "OrbaxCheckpoint", ()), "directory", _NEVER),
    (
        keras.callbacks.BackupAndRestore,
        "backup_dir",
        {**_NEVER, "delete_checkpoint": False},
    ),
    (keras.callbacks.CSVLogger, "filename", {"filename": os.devnull}),
    # It opens its files whatever it is told: elsewhere, then.
    (keras.callbacks.TensorBoard, "log_dir", {"log_dir": None}),
]


def see_request(request, files):
    """Makes callbacks follow the rule of files when a call asks for its data.

    Args:
      request: The `DataRequest`.
      files: The `Files`.
    """
    purpose, frame, _ = request
    # Of data for validation, an `evaluate` that a callback calls has callbacks
    # of its own; those of a `fit` that asks for it have been seen.
    if purpose == "validate" and private_keras_calls.evaluation() is not frame:
        return
    if purpose is not None and files.is_shared:
        see(private_keras_calls.callbacks_of(frame), files)


def see(callbacks, files):
    """Makes callbacks follow the rule of files.

    Args:
      callbacks: What `fit`, `evaluate` or `predict` was given.
      files: The `Files`.

    Raises:
      ValueError: One is no callback.
    """
    for callback in own_callbacks.listed(callbacks):
        # Keras takes any object with the methods of a callback.
        if isinstance(callback, type) or not hasattr(callback, "set_model"):
            allowed = "keras.callbacks.Callback objects"
            raise ValueError(checks.refusal("callbacks", allowed, callback))
        # As it was given, in case that it has been used before.
        for name, value in vars(callback).pop(_GIVEN, {}).items():
            setattr(callback, name, value)
        if not files.writes_logs:
            _leave_to_chief(callback, files)


def _leave_to_chief(callback, files):
    given = {}
    for kind, where, instead in _RULES:
        if not isinstance(callback, kind):
            continue
        files.leave_to_chief(kind.__name__, getattr(callback, where))
        for name, value in instead.items():
            given[name] = getattr(callback, name)
            if value is None:
                value = files.scratch()
            setattr(callback, name, value)
        if kind is keras.callbacks.BackupAndRestore:
            dynamic_subclasses.specialize(callback, RestoresWhileWritten)
    setattr(callback, _GIVEN, given)


def keep_rows(callbacks):
    """Has each CSVLogger append to its file in this call of `fit`.

    The file has rows of a former process, which has died in this call or
    later, and may be all that is left of it.

    Args:
      callbacks: What `fit` was given.
    """
    for callback in own_callbacks.listed(callbacks):
        if isinstance(callback, keras.callbacks.CSVLogger):
            given = vars(callback).setdefault(_GIVEN, {})
            # Keras looks for a header in a file to which it appends alone.
            for name in ("append", "append_header"):
                given.setdefault(name, getattr(callback, name))
            callback.append = True


def see_backups(callbacks):
    """Lets each `BackupAndRestore` restore an optimizer that is not built yet.

    That of a model with a `train_step` of its own is not, before that step.

    Args:
      callbacks: What `fit` was given, on any task, or in one process.
    """
    for callback in own_callbacks.listed(callbacks):
        if isinstance(callback, keras.callbacks.BackupAndRestore):
            dynamic_subclasses.specialize(callback, RestoresUnbuilt)


def see_ends(callbacks):
    """Has each BackupAndRestore end a call of `fit` as the servers know it.

    Args:
      callbacks: As `fit` has got them.
    """
    for callback in own_callbacks.listed(callbacks):
        if isinstance(callback, keras.callbacks.BackupAndRestore):
            dynamic_subclasses.specialize(callback, GoesOnWithServers)


class TellsOfTheEnd:
    """A mixin: a `BackupAndRestore` that may resume a call at its end."""

    def on_train_batch_begin(self, batch, logs=None):
        """As Keras's; the next `fit` begins where the user says.

        Keras leaves out of it as many epochs as of this one. Not before a
        batch: until then the order of the data is that of the epoch set.
        """
        super().on_train_batch_begin(batch, logs)
        private_keras.set_initial_epoch(self.model, None)

    def on_train_end(self, logs=None):
        """The same, where no epoch was left, and no step tells of the call."""
        self._before_deleting()
        super().on_train_end(logs)
        running_fit.end(private_keras_calls.current_frame())
        private_keras.set_initial_epoch(self.model, None)

    def _before_deleting(self):
        """Called when training ends."""


class GoesOnWithServers(TellsOfTheEnd):
    """A mixin: a `BackupAndRestore` of a call whose epochs servers may know.

    If all epochs are made, the task shows the last one again: in its step, it
    joins the others, with which it ends the call. If the others have ended the
    call, no epoch is left, whatever the file says.
    """

    def on_train_begin(self, logs=None):
        """As Keras's; the end is where the servers say."""
        known = private_keras.epoch_set_on(self.model)
        super().on_train_begin(logs)
        found = private_keras.epoch_set_on(self.model)
        epochs = (self.params or {}).get("epochs")
        if None not in (known, epochs) and max(known, found) >= epochs:
            private_keras.set_initial_epoch(self.model, known)


class RestoresUnbuilt(TellsOfTheEnd):
    """A mixin: a `BackupAndRestore` that builds the optimizer in the scope.

    Keras's does so outside of it, and only where there is a file: a worker
    that joins later would number its variables in another way.
    """

    def on_train_begin(self, logs=None):
        """As Keras's; warns of layers that it cannot restore."""
        strategy = self.model.distribute_strategy
        if not hasattr(strategy, "state"):
            # It is used again, for a model without servers or workers.
            super().on_train_begin(logs)
            return
        if private_keras_building.is_built(self.model):
            # Also where its steps have others: Keras would build it here on
            # the workers alone that find a file.
            model_optimizers.build(self.model)
        elif self.model.built:
            unbuilt = private_keras_building.unbuilt_layers(self.model)
            logging.warning(
                "BackupAndRestore cannot restore layers that are not built "
                "when `fit` begins. If a step builds them (a model with a "
                "`train_step` of its own does), the file has them, and a "
                "restarted program cannot load it. Call them on a batch under "
                "`strategy.scope()`, or give their models a keras.Input. They "
                "are: %s",
                [layer.name for layer in unbuilt],
            )
        epoch = private_keras.epoch_set_on(self.model)
        # Keras may build the optimizer, and restore layers that no step uses.
        with strategy.scope(), strategy.state.loading():
            super().on_train_begin(logs)
        if strategy.state.takes_no_step:
            # It, or the others, have ended this call: it takes no step here,
            # even if the chief stopped it before its last epoch.
            private_keras.set_initial_epoch(self.model, epoch)
        else:
            strategy.state.look_again()

    def _before_deleting(self):
        strategy = self.model.distribute_strategy
        if hasattr(strategy, "state"):
            strategy.state.await_readers()


class RestoresWhileWritten:
    """A mixin: a `BackupAndRestore` whose files another task may write.

    Weights are there as a whole; the number of the epoch beside them may be
    half written, and both may be deleted between two looks.
    """

    def on_train_begin(self, logs=None):
        """As Keras's, again while what it reads is not whole."""
        begin = super().on_train_begin
        failures = []

        def is_restored():
            try:
                begin(logs)
            except (OSError, json.JSONDecodeError) as error:
                failures.append(error)
                return False
            return True

        try:
            waiting.wait_until(
                is_restored,
                what=f"{self.backup_dir} to be readable",
                timeout=_RESTORE_SECONDS,
            )
        except TimeoutError:
            raise failures[-1] from None
        if failures:
            logging.info("Restored at attempt %d.", len(failures) + 1)
