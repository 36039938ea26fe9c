"""`FitCalls` without a cluster: when calls that were left end."""

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
