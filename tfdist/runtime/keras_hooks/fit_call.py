"""A call of `fit` of this worker, as the chief's decisions see it."""

import threading
import weakref

from tfdist import private_keras_calls
from tfdist.cluster import fit_progress


class FitCall:
    """One call of `fit` of this worker.

    Args:
      frame: Its frame.
      number: Its number.
    """

    def __init__(self, frame, number):
        self.frame = frame
        self.number = number
        self.thread = threading.get_ident()
        self._model = weakref.ref(private_keras_calls.model_of(frame))
        # Variables with learning rates that are followed.
        self.rates = []
        self.is_in_loop = False
        # A number of the first batch of all; 0 where it is not compared.
        self.data = 0
        # Whether it has come to its first step.
        self.has_begun = False
        # Whether it has made its first step.
        self.has_stepped = False
        # Whether the chief has stopped it.
        self.stopped = False
        # What the chief had told by an exchange, what of it counts here, and
        # the number of exchanges when it was looked at and adopted.
        self.seen = self.told = fit_progress.Word()
        self.exchanges = self.adopted = None

    @property
    def model(self):
        """The `keras.Model`."""
        return self._model()
