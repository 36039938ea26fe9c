"""Own callbacks of `fit` around those of the user."""

import keras

from tests.runtime.keras_hooks.one_worker import Worker
from tests.runtime.keras_hooks.one_worker import table
from tfdist.runtime.keras_hooks import fit_callbacks


def test_who_is_killed_in_a_callback_of_a_batch_does_not_repeat_the_batch():
    """Its heartbeats tell that batch, however long the callback takes."""
    worker = Worker(1, table(1, 1))
    worker.begin(1)
    worker.model.stop_training = False
    word, seen = worker.chief_decisions._fits, []
    listed = keras.callbacks.CallbackList(
        [
            keras.callbacks.LambdaCallback(
                on_train_batch_end=lambda batch, logs=None: seen.append(
                    word.word.batch
                )
            )
        ]
    )
    fit_callbacks.put_around(listed, worker.chief_decisions)
    for batch in range(2):
        listed.on_train_batch_end(batch)
    assert seen == [1, 2]


def test_a_rate_set_at_the_end_of_an_epoch_is_told_before_the_next_callback():
    """A chief that dies there goes on with the next epoch."""
    worker = Worker(0, table(1, 1))
    fit, fits = worker.begin(1), worker.membership.fits
    worker.model.stop_training = False
    rate = keras.Variable(1.0)
    fit.rates, seen = [rate], []
    listed = keras.callbacks.CallbackList(
        [
            keras.callbacks.LambdaCallback(
                on_epoch_end=lambda epoch, logs=None: rate.assign(rate / 2.0)
            ),
            keras.callbacks.LambdaCallback(
                on_epoch_end=lambda epoch, logs=None: seen.append(
                    fits.word.rates
                )
            ),
        ]
    )
    for epoch, size in enumerate((2, 0)):
        fit_callbacks.put_around(listed, worker.chief_decisions)
        fits.tell(size=size, batch=2)
        listed.on_epoch_end(epoch)
    # Of unknown size, the callbacks see the end of the epoch once more.
    assert seen == [(0.5,), (0.5,)]
