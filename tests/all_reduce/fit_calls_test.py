"""`FitCalls` without a cluster: when calls that were left end."""

import keras
import pytest

from tfdist import private_keras_calls
from tfdist import running_fit
from tfdist.all_reduce import fit as fit_lib


def test_left_calls_end_before_callbacks_of_the_next_begin():
    # Otherwise these might read a backup that the chief has yet to write.
    ended = []

    class Calls(fit_lib.FitCalls):
        def end_abandoned(self, frame=None):
            ended.append(frame)

    frame = private_keras_calls.current_frame()
    Calls(engine=None).watch(frame, running_fit.begin(frame))
    assert ended == [frame]


@pytest.mark.parametrize(
    ("callback", "acts"),
    [
        # Keras's own overrides `on_batch_end`.
        (keras.callbacks.TerminateOnNaN(), True),
        (keras.callbacks.EarlyStopping(), False),
        (keras.callbacks.ProgbarLogger(), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_callbacks_that_may_stop_between_batches_are_known(callback, acts):
    # After these, a worker that is not the chief takes its own stop back.
    assert fit_lib._acts_on_batches(callback) is acts
