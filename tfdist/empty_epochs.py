"""Epochs for which this worker has no data."""

from absl import logging
import tensorflow as tf

from tfdist import guarded_steps
from tfdist import private_keras_calls


class EmptyEpochs:
    """Looks at what ends the epochs of a call of `fit`.

    An epoch that ends before its first step trains nothing, and its callbacks
    get no metrics.

    Args:
      stay_away: Callable without arguments that tells the others not to wait
        for this worker.
    """

    def __init__(self, stay_away):
        self._stay_away = stay_away
        # What the last step has returned, but for `train_on_batch`.
        self._logs = None

    def call(self, call_in_fit, function, *args):
        """Calls a training step of `fit`.

        Args:
          call_in_fit: Callable of a function and its arguments that calls it.
          function: The step.
          *args: Its arguments.

        Returns:
          What it returns.
        """
        try:
            logs = call_in_fit(function, *args)
        except (StopIteration, tf.errors.OutOfRangeError):
            if private_keras_calls.is_first_step_of_epoch():
                self._begin_empty_epoch()
            raise
        if not guarded_steps.is_of_batch(args):
            self._logs = logs
        return logs

    def _begin_empty_epoch(self):
        logging.warning(
            "There is no data for this worker in this epoch: it trains on "
            "nothing, and nobody waits for it."
        )
        self._stay_away()
        if isinstance(self._logs, dict):
            # Keras keeps them from the epoch before, and would put metrics of
            # no batch in their place: a loss of 0, for callbacks the best.
            self._logs.clear()
