"""Saves all of a run on a cluster, and takes it up again."""

import os
from typing import Any
from typing import Literal

from absl import logging
import keras

from tfdist import adapted_layers
from tfdist import checks
from tfdist import model_optimizers
from tfdist import private_keras
from tfdist import private_keras_building
from tfdist import private_keras_calls
from tfdist import running_fit
from tfdist import saved_state
from tfdist.callbacks import checkpoint_files
from tfdist.callbacks import fitted_model
from tfdist.callbacks import known_checkpoints
from tfdist.runtime.checkpoint import table_chunks

_TOPIC = "checkpoint"


class ClusterCheckpoint(keras.callbacks.Callback):
    """Saves the state of the whole training, and resumes from the newest.

    Pass it to `fit` on every worker. The chief saves: all variables of models
    and optimizers as all servers hold them at one moment, what corrections
    and local steps keep, and what belongs to the chief itself (learning rate,
    random streams, gradient accumulators, own weights). When `fit` begins and
    the directory holds a checkpoint, the training goes on from there, with
    any number of servers and workers. Stopped and resumed with one worker, it
    computes what it would have without the stop, if the data of an epoch does
    not depend on the epochs before.

    A chief that gets SIGTERM (as by Ctrl-C under `tfdist launch`) saves after
    the step that it is in.

    A file is there as a whole or not at all, whenever the chief is killed; a
    damaged one is passed over with a warning. If the disk is full, an error is
    logged and the training goes on. All workers have to see the directory.

    A chief that is started again while the servers live takes its place in
    the data from the newest checkpoint, and the parameters from the servers.
    Where the servers were started again as well, the parameters are those of
    what has more updates: the checkpoint, or the servers' snapshots.
    `docs/checkpoints.md` says what each worker gets.

    A later `fit` of the same process with the same directory goes on with the
    next epoch, and with the model and optimizer as they are by then.

    Args:
      directory: Where the files are, made if need be: nobody else's.
      save_freq: "epoch", to save at the end of each; or a number: also every
        so many batches of the chief. What was saved within an epoch is
        resumed with all batches of that epoch: some come once more.
      keep: How many of the newest files are kept, at least 1.
      delete_checkpoint: Whether all are removed when `fit` has ended on all
        workers. Left there, the next `fit` with this directory goes on from
        the end of this one.
      verbose: 1 prints a line for each save and for the resumption.

    Attributes:
      resumed_epoch: Number of the epoch that `fit` went on with, 0 if there
        was nothing to resume.

    Raises:
      ValueError: An argument is malformed, or the model was not built under a
        strategy of tfdist.
      ModelMismatchError: The newest checkpoint is of another model or
        optimizer.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        save_freq: Literal["epoch"] | int = "epoch",
        keep: int = 3,
        delete_checkpoint: bool = False,
        verbose: int = 0,
    ):
        super().__init__()
        checks.path("directory", directory)
        if save_freq != "epoch" and not checks.is_count(save_freq, 1):
            raise ValueError(
                'Argument `save_freq` must be "epoch" or a positive number of '
                f"batches. Received: save_freq={save_freq!r}"
            )
        keep = checks.count("keep", keep)
        self._files = checkpoint_files.CheckpointFiles(
            directory, keep, lazy=table_chunks.PREFIX
        )
        self._save_freq = save_freq
        self._delete = checks.flag("delete_checkpoint", delete_checkpoint)
        # Whether workers wait for each other when a call of `fit` ends.
        self.ends_together = self._delete
        self._verbose = verbose
        self.resumed_epoch = 0
        # Batches since the last save.
        self._since_save = 0
        # Whether this call of `fit` has saved.
        self._has_saved = False
        # Whether what it goes on with is what an earlier one has ended with.
        self._is_at_end = False

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        strategy = self.model.distribute_strategy
        if not hasattr(strategy, "state"):
            raise ValueError(
                "Argument `model` must be built and compiled under the scope "
                "of a tfdist strategy for a ClusterCheckpoint, other than "
                "SandblasterStrategy and PipelineStrategy. Received: a model "
                f"of {type(strategy).__name__}"
            )
        self._strategy = strategy
        self._epoch = self.resumed_epoch = 0
        # Batches of this epoch that are done, and those since the last save.
        self._batches = self._since_save = 0
        self._has_saved = self._is_at_end = False
        # An earlier call may have ended by an exception.
        model_optimizers.keep_weights(self.model, False)
        optimizer = self.model.optimizer
        if optimizer is not None and not optimizer.built:
            _check_layers_are_built(self.model)
            model_optimizers.build(self.model)
        self._known = known_checkpoints.of(strategy.state)
        cluster = strategy.cluster
        if cluster.is_chief or not cluster.num_ps:
            self._begin_as_chief()
        else:
            self._begin_as_worker()
        self._known.use(self._files.directory)
        if not self.resumed_epoch or strategy.state.is_passed:
            return
        # A call whose steps have been made takes none here, even if the chief
        # stopped it before its last epoch.
        if not strategy.state.takes_no_step:
            private_keras.set_initial_epoch(self.model, self.resumed_epoch)
        # Averages of weights are still to be put in place if a process was
        # killed between the last epoch and the end of this call.
        is_of_later_call = self._is_done(self.resumed_epoch - 1)
        if self._is_done(self.resumed_epoch):
            keep = self._is_at_end or is_of_later_call
            model_optimizers.keep_weights(self.model, keep)

    def _is_done(self, epoch):
        """Whether this call of `fit` has no epoch from this one on."""
        epochs = (self.params or {}).get("epochs")
        return epochs is not None and epoch >= epochs

    def _begin_as_chief(self):
        cluster = self._strategy.cluster
        if cluster.is_chief:
            self._files.directory.mkdir(parents=True, exist_ok=True)
            self._files.remove_drafts()
        number = max(self._files.numbers(), default=0)
        known = self._known.header(self._files.path(number))
        if known is not None:
            self._go_on(number, known)
        else:
            found = self._files.newest()
            number = None if found is None else found[0]
            if found is not None:
                self._take_up(*found, is_known=not cluster.is_chief)
        if cluster.num_ps and self._strategy.state.has_come_back:
            # What is newer than on servers, others are to find there.
            self._strategy.commit()
        self._publish(number, restored=known is None)
        # Now the others may ask.
        self._strategy.commit()

    def _begin_as_worker(self):
        self._strategy.commit()
        told = self._strategy.state.wait_for_word(self._chiefs_word)
        call = self._strategy.state.fit_number
        if told is None or told["call"] > call:
            # Lost with a server, or of a later `fit`: the files tell as well.
            if found := self._files.newest():
                self._take_up(*found, is_known=True)
            return
        if told["number"] is None:
            return
        if told["restored"]:
            # This worker may have others, by an evaluation before `fit`.
            self._strategy.pull()
        is_new = self._known.header(self._files.path(told["number"])) is None
        if self._known.has_used(self._files.directory) and not (
            told["restored"] and is_new
        ):
            self.resumed_epoch = told["epoch"]
            self._is_at_end = True
            return
        found = self._files.newest(told["number"])
        if found is not None:
            self._take_up(*found, is_known=False)
            return
        logging.warning(
            "The chief has resumed from checkpoint %d; here %s has none. This "
            "worker has the servers' parameters, and its own first learning "
            "rate and optimizer state where these are not on servers. Let all "
            "workers see the directory.",
            told["number"],
            self._files.directory,
        )
        self.resumed_epoch = told["epoch"]

    def _chiefs_word(self):
        """Returns the chief's word on this `fit` or a later one, or None."""
        reports = self._strategy.collect(_TOPIC)
        told = reports.get(self._strategy.cluster.worker_names[0])
        if told is None:
            return None
        # Another `fit` has the same number if this one had nothing to do, or
        # where workers do not count their calls together.
        is_here = told["directory"] == str(self._files.directory)
        call = self._strategy.state.fit_number
        if told["call"] > call or (told["call"] == call and is_here):
            return told
        return None

    def _take_up(self, number, saved, is_known):
        """Goes on from a checkpoint that has been read.

        Args:
          number: Its number.
          saved: Its `SavedState`.
          is_known: Whether a process that has used the directory before holds
            what is in it, or what is newer.
        """
        if is_known and self._known.has_used(self._files.directory):
            self._go_on(number, saved.header)
            return
        state = self._strategy.state
        fitted_model.check(saved, self.model, state)
        if self._is_done(saved.header["position"]["epoch"]):
            # Nothing is trained. Where more is, workers are as they were then,
            # and not as they are when they have left.
            end = self._files.end(number)
            self._is_at_end = end is not None
            saved = end or saved
        state.restore(fitted_model.without_others(saved, self._known.headers))
        adapted_layers.take_over(self.model)
        self._known.add(self._files.path(number), saved.header)
        self._resume_at(number, saved.header, "Resumed from")

    def _go_on(self, number, header):
        """Goes on from a checkpoint that this process has made or restored.

        Variables may have been set since; they stay as they are.
        """
        fitted_model.check_is_known(header, self.model, self._strategy.state)
        self._is_at_end = True
        self._resume_at(number, header, "Goes on after")

    def _resume_at(self, number, header, what):
        self.resumed_epoch = self._epoch = header["position"]["epoch"]
        self._say(
            f"{what} {self._files.path(number)}: epoch {self.resumed_epoch}, "
            f"{header['updates']} updates"
        )

    def _publish(self, number, restored=False):
        if not self._strategy.cluster.num_ps:
            return  # Each reads the files.
        content = {
            "call": self._strategy.state.fit_number,
            "directory": str(self._files.directory),
            "number": number,
            "epoch": self._epoch,
            "restored": restored,
        }
        self._strategy.publish(_TOPIC, content)

    def on_epoch_begin(
        self, epoch: int, logs: dict[str, Any] | None = None
    ) -> None:
        self._epoch, self._batches = epoch, 0

    def on_train_batch_begin(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        # Keras would begin the next `fit` there, too. Until now, data was to be
        # read: its order depends on the epochs that are left out.
        private_keras.set_initial_epoch(self.model, None)

    def on_train_batch_end(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        # One call may stand for several batches (`steps_per_execution`).
        self._since_save += batch + 1 - self._batches
        self._batches = batch + 1
        if self._save_freq != "epoch" and self._since_save >= self._save_freq:
            self._save()

    def on_epoch_end(
        self, epoch: int, logs: dict[str, Any] | None = None
    ) -> None:
        self._epoch, self._batches = epoch + 1, 0
        if self._is_done(epoch + 1) and self._strategy.cluster.num_workers == 1:
            # Else who is killed after this has lost the last local steps.
            self._strategy.flush()
        self._save()

    def on_preemption(self) -> None:
        """Saves: this process ends after this step, as SIGTERM told it to."""
        if self._since_save:
            self._save()

    def _save(self):
        self._since_save = 0
        if not self._strategy.cluster.is_chief:
            return
        state = self._strategy.state.read()
        state.header["position"] = {
            "epoch": self._epoch,
            "batch": self._batches,
        }
        state.header[fitted_model.KEY] = fitted_model.describe(
            self.model, self._strategy.state
        )
        try:
            number = self._files.write(state)
        except TimeoutError:
            # Of a server that is gone, while rows of a table are read.
            raise
        except OSError as error:
            logging.error(
                "No checkpoint could be written to %s (%s); training goes on, "
                "and the newest one is number %s.",
                self._files.directory,
                error,
                max(self._files.numbers(), default=None),
            )
            return
        self._has_saved = True
        self._known.add(self._files.path(number), state.header)
        self._publish(number)
        self._say(
            f"Saved {self._files.path(number)}: epoch {self._epoch}, batch "
            f"{self._batches}, {state.header['updates']} updates"
        )

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        private_keras.set_initial_epoch(self.model, None)
        running_fit.end(private_keras_calls.current_frame())
        model_optimizers.keep_weights(self.model, False)
        self._strategy.state.end_fit(self.model)
        if self._delete:
            # The others may still need them.
            self._strategy.await_end_of_training()
            if self._strategy.cluster.is_chief:
                self._files.remove_all()
            self._known.forget(self._files.directory)
        elif not self._strategy.state.is_passed:
            # A program that is run again does not train: it is to find what
            # this one ends with.
            self._save_last()

    def _save_last(self):
        """Saves what has changed since the last epoch, for `_take_up`.

        Such as by the last local steps, or callbacks that put weights back.
        Others may still train: they may wait for what the chief does next.
        """
        cluster = self._strategy.cluster
        if not cluster.is_chief or not self._has_saved:
            return
        if cluster.num_ps or cluster.num_workers == 1:
            # Without servers the end of `fit` has done so, and this would wait
            # for all workers.
            self._strategy.flush()
        state, found = self._strategy.state.read(), self._files.newest(lazy="")
        if found is None or saved_state.are_equal(
            state, found[1], without=table_chunks.PREFIX
        ):
            return
        number, saved = found
        for key in ("position", fitted_model.KEY):
            state.header[key] = saved.header[key]
        try:
            self._files.write_end(state, number)
        except OSError as error:
            logging.error(
                "What training ended with could not be written to %s (%s): a "
                "finished program that is run again has what was saved after "
                "the last epoch.",
                self._files.directory,
                error,
            )

    def _say(self, line):
        if self._verbose:
            print(line, flush=True)


def _check_layers_are_built(model):
    """Refuses a model whose optimizer cannot know all weights yet.

    Keras has built others when `fit` begins.
    """
    if not private_keras_building.has_own_train_step(model):
        return
    unbuilt = [
        layer.name for layer in private_keras_building.unbuilt_layers(model)
    ]
    if unbuilt:
        raise ValueError(
            "Argument `model` of a ClusterCheckpoint must have layers that are "
            "built before `fit`: one with a `train_step` of its own builds "
            "them in its first step. Call them on a batch under "
            "`strategy.scope()`, or give their models a keras.Input. "
            f"Received: {model.name!r}, with layers that are not built: "
            f"{unbuilt}"
        )
