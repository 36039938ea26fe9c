"""The threads that read a `keras.utils.PyDataset` with `workers`."""

from absl import logging

from tfdist import private_keras


class Readers:
    """Lets Keras's threads read when an epoch begins, and not before.

    Under a strategy Keras starts and stops them once to build the model, and
    gives what they have read meanwhile to the first epoch, before all of it.

    Args:
      adapter: The Keras `DataAdapter` of the data.
      steps_per_epoch: Of `fit`, or None.
      number: Into how many shares the data is divided.
    """

    def __init__(self, adapter, steps_per_epoch=None, number=1):
        self._adapter = adapter
        self._enqueuer = private_keras.enqueuer_of(adapter)
        if self._enqueuer is None:
            return
        adapter.enqueuer = None
        ends = adapter.num_batches is not None
        if ends and steps_per_epoch and number > 1:
            # From one epoch to the next they go on with what they had read,
            # and then start afresh: another number of batches on each worker.
            logging.warning(
                "With `steps_per_epoch` this worker reads the PyDataset by "
                "itself, without `workers`."
            )
            self._enqueuer = None

    def begin(self):
        """Called when Keras begins to iterate."""
        if self._enqueuer is None:
            return
        if self._adapter.num_batches is not None:
            # Left by an evaluation that was begun to build the model.
            while not self._enqueuer.ready_queue.empty():
                self._enqueuer.ready_queue.get()
        self._adapter.enqueuer = self._enqueuer
