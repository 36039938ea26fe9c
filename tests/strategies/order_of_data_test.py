"""Calls of `fit` that all workers make have the same order of the data."""

import keras
import numpy as np
import pytest

import tfdist
from tfdist import running_fit
from tfdist.data_shares import shares


class Busy(keras.callbacks.Callback):
    """Raises in the first call of `fit`, before its first step."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def on_train_begin(self, logs=None):
        self.calls += 1
        if self.calls == 1:
            raise OSError("a file is busy")


@pytest.mark.parametrize(
    "make", [tfdist.AllReduceStrategy, tfdist.PeerToPeerStrategy]
)
def test_a_call_that_raises_before_its_first_step_is_not_counted(
    make, monkeypatch
):
    numbers = []
    distribute = shares.distribute

    def spy(dataset, config, before, **kwargs):
        def before_data(request, number):
            numbers.append(before(request, number))
            return numbers[-1]

        return distribute(dataset, config, before_data, **kwargs)

    monkeypatch.setattr(shares, "distribute", spy)
    with make().scope():
        model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    x, callbacks = np.ones([4, 1], "float32"), [Busy()]
    with pytest.raises(OSError, match="busy"):
        model.fit(x, x, callbacks=callbacks, verbose=0)
    for _ in range(2):
        model.fit(x, x, callbacks=callbacks, verbose=0)
    assert numbers == [1, 1, 2]


class Call:
    """A `RunningFit`."""

    def __init__(self):
        self.raises = False

    def is_over(self):
        return self.raises


def test_calls_within_one_that_has_not_begun_have_numbers_of_their_own():
    numbers, outer, inner = running_fit.CallNumbers(), Call(), Call()
    assert [numbers.next(outer), numbers.next(inner)] == [1, 2]
    for call in inner, inner, outer:
        numbers.begin(call)
    failed = Call()
    assert numbers.next(failed) == 3
    failed.raises = True
    assert numbers.next(Call()) == 3
