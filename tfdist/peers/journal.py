"""The record that a worker keeps of its steps and what they exchanged."""

import tensorflow as tf

from tfdist import private_tensorflow
from tfdist.all_reduce import journal


class PeerJournal(journal.StepJournal):
    """A ring buffer of the last steps.

    Extras of a step are bytes sent to all others, bytes received in it, and
    the staleness of the messages that came: the updates that this worker had
    made since those that their sender had applied.
    """

    def __init__(self):
        super().__init__(1, extras=3)
        hidden = private_tensorflow.hidden_variable
        self._between = hidden(tf.zeros([], tf.int64))

    def note_between(self, size):
        """Builds the note of bytes that came between steps, scalar int64."""
        self._between.assign_add(size, read_value=False)

    @property
    def bytes_between(self):
        """Bytes that came between steps, which no record has, int."""
        return int(self._between.numpy())

    def figures(self, lane, sent, received, staleness):
        """Staleness, bytes sent and received; see `StepJournal`."""
        return int(staleness), int(sent), int(received)
