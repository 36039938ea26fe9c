"""The end of Keras's loops when this worker has to leave.

An exception out of `fit`, not an early end of it: at its end callbacks delete
backups, validate and save, as if training were over.
"""

import keras

from tfdist import private_keras_calls
from tfdist.cluster import preemption


class _Leave(keras.callbacks.Callback):
    """Ends the process at the next call of Keras's, after other callbacks.

    Args:
      others: Those of all loops under way, of which such as have
        `on_preemption` are told before.
    """

    def __init__(self, others):
        super().__init__()
        self._others = others

    def _leave(self, *args, **kwargs):
        for one in self._others:
            if hasattr(one, "on_preemption"):
                one.on_preemption()
        preemption.leave()

    on_epoch_begin = on_epoch_end = _leave
    on_train_begin = on_train_end = _leave
    on_train_batch_begin = on_train_batch_end = _leave
    on_test_begin = on_test_end = _leave
    on_test_batch_begin = on_test_batch_end = _leave
    on_predict_begin = on_predict_end = _leave
    on_predict_batch_begin = on_predict_batch_end = _leave


def stop_loops(frame):
    """Makes Keras's loops end with the batch that they are at.

    Args:
      frame: Of the main thread, innermost.

    Returns:
      Whether there is one.
    """
    loops = private_keras_calls.loops_from(frame)
    # A callback may evaluate: the loop around it is left as well.
    listed = [one for callbacks in loops for one in callbacks.callbacks]
    others = list({id(one): one for one in listed}.values())
    for callbacks in loops:
        if not any(isinstance(one, _Leave) for one in callbacks.callbacks):
            callbacks.callbacks.append(_Leave(others))
    return bool(loops)
