"""Where Keras's loops end when this worker has to leave.

An exception out of `fit`, not an early end of it: at its end callbacks delete
backups, validate and save, as if training were over.
"""

import keras

from tfdist.cluster import preemption

_LOOPS = ("fit", "evaluate", "predict")


class _Leave(keras.callbacks.Callback):
    """Ends the process at the next call of Keras's, after other callbacks."""

    def _leave(self, *args, **kwargs):
        del args, kwargs
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
    found = False
    while frame is not None:
        if frame.f_code.co_name in _LOOPS:
            found |= _stop_loop(frame.f_locals)
        frame = frame.f_back
    return found


def _stop_loop(variables):
    """The same of one call, by its local variables."""
    # Before the first batch, what the user gave: there is no loop yet.
    callbacks = variables.get("callbacks")
    if not isinstance(variables.get("self"), keras.Model) or not isinstance(
        callbacks, keras.callbacks.CallbackList
    ):
        return False
    if not any(isinstance(one, _Leave) for one in callbacks.callbacks):
        callbacks.callbacks.append(_Leave())
    return True
