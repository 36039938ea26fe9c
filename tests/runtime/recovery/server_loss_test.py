"""What a worker does of itself when servers have come back."""

import types

import keras

import tfdist
from tfdist.runtime.recovery import server_loss


def new_model():
    """A runtime of one variable, of which servers know nothing yet."""
    strategy = tfdist.AsyncStrategy()
    with strategy.scope():
        keras.layers.Dense(2, use_bias=False).build((None, 3))
    return strategy._runtime


def test_a_worker_that_has_committed_nothing_does_not_commit_now():
    # It would wait for a chief that may be where it is itself.
    runtime = new_model()
    server_loss.Recovery._refresh(types.SimpleNamespace(_runtime=runtime))
    assert runtime.committed == 0
    assert not runtime.is_held()


def test_a_server_that_holds_none_of_a_small_model_lacks_nothing():
    runtime = new_model()
    runtime.commit()
    first_values = runtime.synchronizer.first_values
    assert first_values.complete_on(0, [], runtime.committed) == 0
