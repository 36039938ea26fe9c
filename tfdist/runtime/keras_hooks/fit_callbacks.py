"""Callbacks of `fit` that come before and after those of the user."""

import keras


class _First(keras.callbacks.Callback):
    """Called before the user's callbacks."""

    def __init__(self, following):
        super().__init__()
        self._following = following

    def on_epoch_begin(self, epoch, logs=None):
        self._following.position.begin_epoch(epoch)

    def on_train_end(self, logs=None):
        self._following.end_loop()


class _Last(keras.callbacks.Callback):
    """Called after the user's callbacks."""

    def __init__(self, following):
        super().__init__()
        self._following = following

    def on_train_batch_end(self, batch, logs=None):
        self._following.position.end_batch(batch)
        self._following.after_callbacks()

    def on_epoch_end(self, epoch, logs=None):
        self._following.after_callbacks()

    def on_train_end(self, logs=None):
        self._following.close()


_OURS = (_First, _Last)


def put_around(listed, following):
    """Puts them around a call's callbacks, in place of an earlier call's.

    Args:
      listed: Its `keras.callbacks.CallbackList`.
      following: The `ChiefDecisions` to which they tell what happens.
    """
    kept = [c for c in listed.callbacks if not isinstance(c, _OURS)]
    # A callback that trains a batch is in a loop over the old list.
    listed.callbacks = [_First(following), *kept, _Last(following)]
