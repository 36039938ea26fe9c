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
