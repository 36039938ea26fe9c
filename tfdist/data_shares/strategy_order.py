"""Data sets that were made before the first strategy of the process."""

from absl import logging
import tensorflow as tf

from tfdist import private_pipelines
from tfdist import private_tensorflow


class _Noted:
    """The number of the first tensor after the first strategy."""

    number = None
    has_warned = False


def note_strategy():
    """Called when a strategy is made."""
    if _Noted.number is None and tf.executing_eagerly():
        _Noted.number = private_tensorflow.number_of(tf.constant(0))


def warn_if_made_before(dataset):
    """Warns, once, of a data set that only a single process can train on.

    On a cluster it is on a device that is no more when the strategy has
    connected the process.

    Args:
      dataset: A `tf.data.Dataset`.
    """
    if _Noted.number is None or _Noted.has_warned:
        return
    numbers = map(
        private_tensorflow.number_of, private_pipelines.sources(dataset)
    )
    if any(n is not None and n < _Noted.number for n in numbers):
        _Noted.has_warned = True
        logging.warning(
            "A data set was made before the strategy. In one process that "
            "does no harm; on a cluster `fit` refuses it. Move `strategy = "
            "...` to the beginning of the program, before the first data set."
        )
