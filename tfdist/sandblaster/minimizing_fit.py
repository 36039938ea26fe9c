"""A call of `fit`: an epoch is an iteration of all workers."""

import itertools
import weakref

from absl import logging
import numpy as np
import tensorflow as tf

from tfdist import private_keras
from tfdist import private_keras_calls
from tfdist.cluster import preemption
from tfdist.program_error import ProgramError
from tfdist.sandblaster import coordinator as coordinator_lib
from tfdist.sandblaster import lbfgs
from tfdist.sandblaster import portion_gradients
from tfdist.sandblaster import whole_data


class MinimizingFit:
    """One call of `fit`.

    Args:
      training: The `SandblasterTraining`.
      number: Number of the call.
      frame: Its frame.
      running: Its `RunningFit`.
      is_past: Whether the chief has begun a later one: this process was
        started again, and leaves this one out.

    Attributes:
      is_past: The same.
    """

    def __init__(self, training, number, frame, running, is_past):
        self.is_past = is_past
        self._training = training
        self._number = number
        self._model = private_keras_calls.model_of(frame)
        self._steps_per_epoch = private_keras_calls.steps_per_epoch_of(frame)
        self.running = running
        self._gradients = None
        self._worker = self._coordinator = self._description = None
        # On other workers than the chief: the parameters of the last iteration
        # that the model has shown, or those that it began with.
        self._kept = None
        # Iterations that this worker has seen.
        self._seen = 0
        # The epoch with which the call began, in whichever process.
        self._first_epoch = None
        # The model whose initial epoch was set here, as long as it is.
        self._set_on = lambda: None
        # Whether epochs were left out that are known from a snapshot alone.
        self._needs_snapshot = False
        # On other workers than the chief: whether that has ended the call.
        self._has_ended = False
        # Whether the model has shown the parameters of an iteration.
        self._has_shown = False
        _check_optimizer(self._model)
        if is_past:
            # No epoch: the model is not trained, and callbacks would save it
            # over what the process before has saved.
            self._begin_with(private_keras_calls.epochs_of(frame))

    @property
    def is_call(self):
        """Whether it counts: it came to its first step, or had none to take."""
        has_none = self.is_past or self.running.has_ended
        return has_none or self._description is not None

    def go_on(self, frame, board, is_from_snapshot):
        """Leaves out epochs: this process was started again.

        The last iteration that was made is shown once more.

        Args:
          frame: The frame of `fit`.
          board: Dict with `done`, the number of iterations that were made, and
            `first`, which records of earlier versions lack.
          is_from_snapshot: Whether it is that of a snapshot.
        """
        self._needs_snapshot = is_from_snapshot
        initial = private_keras_calls.initial_epoch_of(frame)
        self._first_epoch = board.get("first", initial)
        self._begin_with(self._first_epoch + board["done"] - 1)

    def _begin_with(self, epoch):
        private_keras.set_initial_epoch(self._model, epoch)
        self._set_on = weakref.ref(self._model)

    def release(self):
        """Lets the model's next `fit` begin where the user says."""
        model, self._set_on = self._set_on(), lambda: None
        if model is not None:
            private_keras.set_initial_epoch(model, None)

    def step(self, iterator):
        """Takes part in an iteration; at the second step, ends the epoch.

        Args:
          iterator: Of the data of an epoch.

        Returns:
          Keras's logs.

        Raises:
          StopIteration: The epoch has had its step.
        """
        self.release()
        if self.is_past:
            self._model.stop_training = True
        if self.is_past or not private_keras_calls.is_first_step_of_epoch():
            raise StopIteration
        if self._worker is None:
            # BackupAndRestore may have chosen another epoch.
            epoch = private_keras_calls.epoch_of(
                private_keras_calls.fit_under_way()
            )
            if self._first_epoch is None:
                self._first_epoch = epoch
            self._seen = epoch - self._first_epoch
            self._begin(iterator)
        self._check_parameters()
        result = self._iterate()
        self._seen += 1
        self._has_shown = result is not None
        if result is None:
            logging.warning(
                "The chief has begun another call of `fit`, or none has an "
                "iteration: this worker keeps the weights of iteration %d.",
                self._seen - 1,
            )
            return self._model.get_metrics_result()
        self._show(result)
        return self._gradients.logs(result["value"])

    def put_back(self):
        """Servers are there again: they get what they have lost."""
        if self._worker is None:
            return
        self._worker.forget()
        if self._coordinator is None:
            self._training.await_coordinator()
        elif self._coordinator.has_begun:
            self._coordinator.go_on()

    def catch_up(self):
        """On the chief, servers hold the last iteration that was shown.

        The model keeps its weights, which may have been set since.
        """
        if self._coordinator is None or not self._coordinator.has_begun:
            return
        values = self._gradients.values()
        is_set = not np.array_equal(values, self._coordinator.parameters)
        try:
            self._coordinator.iterate(self._seen - 1)
        except BaseException:
            self._gradients.assign(values)
            raise
        if is_set:
            self._gradients.assign(values)

    def _check_parameters(self):
        """Refuses a model to which a callback has given other parameters."""
        if self._coordinator is None or not self._has_shown:
            return
        values = self._training.over_losses(self._gradients.values)
        if not np.array_equal(values, self._coordinator.parameters):
            raise ProgramError(
                "The weights of a model must not be changed during `fit` under "
                "SandblasterStrategy, which goes on from those on the servers: "
                "change them between two calls of `fit`. Received: a model "
                "whose weights were set after the last iteration"
            )

    def _iterate(self):
        """Takes part in an iteration, which leaves no trial point behind."""
        over_losses = self._training.over_losses
        try:
            result = over_losses(self._take_part)
        except BaseException:
            try:
                self._take_back()
            except tf.errors.OpError:
                logging.warning(
                    "The model keeps weights that an iteration has tried: its "
                    "helper does not answer."
                )
            raise
        if result is None:
            over_losses(self._take_back)
        return result

    def _take_part(self):
        if self._coordinator is not None:
            number = self._seen
            if self._coordinator.has_ended:
                number -= 1  # The last iteration is shown again.
            return self._coordinator.iterate(number)
        result = self._follow()
        if result is not None:
            self._kept = self._worker.values()
        return result

    def _take_back(self):
        """Gives the model what it has last shown; it may have a trial point."""
        values = self._kept
        if self._coordinator is not None:
            values = self._coordinator.parameters
        self._worker.forget()
        self._gradients.assign(values)

    def _begin(self, iterator):
        batches = [
            whole_data.plain(batch)
            for batch in itertools.islice(iterator, self._steps_per_epoch)
        ]
        if not batches:
            raise ValueError(
                "Argument `x` of `fit` must have at least one batch. Received: "
                "no batch"
            )
        training = self._training
        self._gradients = portion_gradients.PortionGradients(
            training.strategy(), self._model, batches
        )
        training.over_losses(lambda: self._gradients.check_first(batches[0]))
        self.running.before_end(self._end)
        name = training.over_losses(lambda: training.name_of(self._number))
        self._worker, self._coordinator, self._description = training.begin(
            self._model, self._gradients, batches, self._number, name
        )
        if self._coordinator is None:
            self._kept = training.over_losses(self._gradients.values)
        loaded = self._model.optimizer.take_loaded()
        training.over_losses(lambda: self._begin_together(loaded))
        training.left_out.remove(self._model)

    def _begin_together(self, loaded):
        """Begins on the servers; others see whether they do the same."""
        training = self._training
        if self._coordinator is not None:
            goes_on = self._coordinator.begin(
                self._number,
                self._description,
                self._first_epoch,
                self._gradients.values(),
                loaded,
                int(self._model.optimizer.iterations),
            )
            if self._needs_snapshot and not goes_on:
                raise ValueError(
                    "Argument `snapshot_dir` of FaultTolerance must be empty, "
                    "or of the minimization that goes on. Received: one with "
                    "snapshots of other data, another model or other settings"
                )
            if goes_on:
                logging.warning(
                    "Goes on with the minimization that the chief had begun."
                )
            return
        progress = training.progress()
        if progress["fit"] == self._number:
            whole_data.compare(progress["description"], self._description)

    def _end(self):
        """Called when all callbacks have ended."""
        if self._coordinator is None:
            self._end_with_chief()
            try:
                self._training.followers.note(self._number)
            except tf.errors.OpError:
                # The chief waits for nobody any more, or not without end.
                logging.info("The servers have not heard of the end of `fit`.")
        # A chief that has to leave comes back, and goes on. With
        # `on_preemption="note"`, it has ended its call.
        elif not preemption.will_exit():
            over_losses = self._training.over_losses
            # Callbacks may have set them. If a server is lost while others
            # are waited for, the iterations give the model their own.
            values = over_losses(self._gradients.values)
            over_losses(lambda: self._end_together(values))
        # They have all of the data, and the model.
        self._worker = self._coordinator = self._gradients = None
        self._model = self._kept = None

    def _end_with_chief(self):
        """Works until the chief ends the call, and takes its last parameters.

        A callback may have ended the epochs of this worker before.
        """
        if preemption.will_exit():
            return
        is_told = False
        while not self._has_ended:
            result = self._iterate()
            if result is not None:
                self._seen += 1
            if not self._has_ended and not is_told:
                is_told = True
                logging.warning(
                    "The epochs of this worker have ended before those of the "
                    "chief: it computes portions until the chief ends this "
                    "call of `fit`, and takes the chief's weights."
                )
            preemption.leave_if_noticed()
        self._gradients.assign(self._kept)

    def _end_together(self, values):
        self.catch_up()
        self._gradients.assign(values)
        self._coordinator.set_last(values)
        self._coordinator.end()
        self._training.followers.wait(self._number)

    def _follow(self):
        """Works until the iteration has ended; returns its result, or None."""
        training = self._training

        def is_over():
            while True:
                board = training.board.read()
                if self._is_over(board) or board["done"] > self._seen:
                    return True
                if not self._worker.work():
                    return False

        training.await_chief(is_over)
        # Read before the parameters: those are the last ones then.
        board = training.board.read()
        result = self._catch_up()
        if self._has_left(board) or board["ended"]:
            self._has_ended = self._model.stop_training = True
        return result

    def _catch_up(self):
        """Fetches the newest parameters; leaves out iterations before.

        Returns:
          The result of the newest iteration, whose parameters they are; None
          if the chief is in another call of `fit`.
        """
        while True:
            progress = self._training.progress()
            newest = progress["result"]
            if progress["fit"] != self._number or newest is None:
                return None
            self._worker.load(newest["point"], newest["evaluation"])
            # Of the second iteration after it, the vector is a trial point.
            now = self._training.progress()
            if all(now[key] == progress[key] for key in ("term", "done")):
                if not now["done"]:
                    # The result is of the call before.
                    return None
                self._seen = now["done"] - 1
                return newest

    def _is_over(self, board):
        """Whether the chief has ended this call, and nothing is to be seen."""
        if self._has_left(board):
            return True
        return board["ended"] and board["done"] <= self._seen

    def _has_left(self, board):
        """Whether the chief is in another call of `fit`."""
        return board["fit"] != self._number

    def _show(self, result):
        """Shows the metrics of an iteration, and stops after the last one."""
        self._gradients.show(np.array(result["totals"]))
        self._model.optimizer.iterations.assign(result["iterations"])
        self._training.iterations.append(result)
        if float(self._model.optimizer.learning_rate) != 1.0:
            logging.log_first_n(
                logging.WARNING,
                "L-BFGS has no learning rate: that of the optimizer was set, "
                "which has no effect.",
                1,
            )
        if self._coordinator is not None and self._coordinator.has_ended:
            self._model.stop_training = True
        if coordinator_lib.is_last(result):
            self._model.stop_training = True
            logging.info("Training ends: %s.", result["outcome"])


def _check_optimizer(model):
    optimizer = model.optimizer
    if isinstance(getattr(optimizer, "inner_optimizer", None), lbfgs.LBFGS):
        raise ValueError(
            "LBFGS scales no loss: give `compile` the argument "
            "`auto_scale_loss=False`. Received: a LossScaleOptimizer, which "
            "Keras makes under the policy mixed_float16"
        )
    if not isinstance(optimizer, lbfgs.LBFGS):
        raise ValueError(
            "The optimizer of a model under SandblasterStrategy must be "
            f"tfdist.sandblaster.LBFGS. Received: {optimizer!r}"
        )
