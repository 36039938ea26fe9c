"""Epochs for which this worker has no data."""

from absl import logging
import tensorflow as tf

from tfdist import private_keras_calls


def call(call_in_fit, coordination, function, *args):
    """Calls a training step of `fit`; looks at what ends an epoch.

    An epoch that ends before its first step trains nothing, and the others
    are told not to wait for this worker.

    Args:
      call_in_fit: Callable of a function and its arguments that calls it.
      coordination: The `Coordination`.
      function: The step.
      *args: Its arguments.

    Returns:
      What it returns.
    """
    try:
        return call_in_fit(function, *args)
    except (StopIteration, tf.errors.OutOfRangeError):
        if private_keras_calls.is_first_step_of_epoch():
            logging.warning(
                "There is no data for this worker in this epoch: it trains on "
                "nothing, and nobody waits for it."
            )
            coordination.stay_away()
        raise
