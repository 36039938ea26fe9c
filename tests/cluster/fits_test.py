"""What workers tell of their calls of `fit`."""

import sys

from tfdist.cluster import fits
from tfdist.runtime.keras_hooks import calls


def test_a_word_comes_back_as_it_was():
    word = fits.Word(reached=4, stopped=1, version=7, rates=(0.5, 0.25))
    assert fits.Word.unpack(word.pack()) == word
    assert len(word.pack()) == fits.SIZE


def test_calls_of_fit_are_reached_in_order():
    reached = [
        order(number)
        for number in (1, 2)
        for order in (fits.begun, fits.ended, fits.closed)
    ]
    assert reached == sorted(set(reached))
    numbers = [fits.Word(reached=one).number for one in reached]
    assert numbers == [1, 1, 1, 2, 2, 2]


def test_a_call_that_raises_is_over():
    told = fits.Fits()

    def fit():
        told.watch(calls.Call(sys._getframe()), 3)
        told.tell(reached=fits.begun(3))
        assert fits.Word.unpack(told.pack()).reached == fits.begun(3)
        assert told.is_running()

    fit()
    assert not told.is_running()
    assert fits.Word.unpack(told.pack()).reached == fits.closed(3)


def test_a_call_that_has_the_place_of_one_that_is_over_is_not_within_it():
    told = fits.Fits()

    def fit(inner):
        frame = sys._getframe()
        if inner:
            return told.is_around(frame)
        told.watch(calls.Call(frame), 1)
        # As a later call would be whose frame is where this one was.
        return told.is_around(frame), fit(inner=True)

    assert fit(inner=False) == (False, True)
    assert not fit(inner=True)
