"""Callbacks of `fit` that come before, between and after those of the user."""

from tfdist import own_callbacks


def put_around(listed, following):
    """Puts them around a call's callbacks, in place of an earlier call's.

    Args:
      listed: Its `keras.callbacks.CallbackList`.
      following: The `ChiefDecisions` to which they tell what happens.
    """
    first = {
        "on_epoch_begin": lambda epoch, logs=None: (
            following.position.begin_epoch(epoch)
        ),
        # The user's callbacks may take long: the batch is done already.
        "on_train_batch_end": lambda batch, logs=None: (
            following.position.end_batch(batch)
        ),
        "on_train_end": lambda logs=None: following.end_loop(),
    }
    last = {
        "on_train_batch_end": lambda batch, logs=None: (
            following.after_callbacks()
        ),
        "on_epoch_end": lambda epoch, logs=None: following.after_callbacks(),
        "on_train_end": lambda logs=None: following.close(),
    }
    between = {
        "on_epoch_end": lambda epoch, logs=None: following.after_callback()
    }
    own_callbacks.put_around(
        listed, __name__, first, last, between if following.is_chief else None
    )
