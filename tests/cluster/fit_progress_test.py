"""What workers tell of their calls of `fit`."""

import sys

from tfdist import running_fit
from tfdist.cluster import fit_progress


def test_a_word_comes_back_as_it_was():
    word = fit_progress.Word(
        reached=4,
        stopped=1,
        version=7,
        rates=(0.5, 0.25),
        data=2**32 - 1,
        epoch=3,
        batch=5,
        size=9,
        first_epoch=1,
        first_batch=2,
        written=3,
        came_to=4,
        completed=2,
    )
    assert fit_progress.Word.unpack(word.pack()) == word
    assert len(word.pack()) == fit_progress.SIZE


def test_calls_of_fit_are_reached_in_order():
    reached = [
        order(number)
        for number in (1, 2)
        for order in (
            fit_progress.begun,
            fit_progress.ended,
            fit_progress.closed,
        )
    ]
    assert reached == sorted(set(reached))
    numbers = [fit_progress.Word(reached=one).number for one in reached]
    assert numbers == [1, 1, 1, 2, 2, 2]


def test_a_position_is_that_of_its_call_alone():
    word = fit_progress.Word(reached=fit_progress.begun(2), epoch=3, batch=5)
    assert word.position(1) == fit_progress.OVER
    assert word.position(2) == (3, 5)
    assert word.position(3) == (0, 0)
    ended = fit_progress.Word(reached=fit_progress.ended(2), epoch=3, batch=5)
    assert ended.position(2) == fit_progress.OVER


def test_a_call_that_raises_is_over():
    told = fit_progress.Fits()

    def fit():
        told.watch(running_fit.RunningFit(sys._getframe()), 3)
        told.tell(reached=fit_progress.begun(3))
        assert fit_progress.Word.unpack(
            told.pack()
        ).reached == fit_progress.begun(3)
        assert told.is_running()

    fit()
    assert not told.is_running()
    # Not before this worker has left.
    assert fit_progress.Word.unpack(told.pack()).reached == fit_progress.begun(
        3
    )
    told.close_if_over()
    assert fit_progress.Word.unpack(told.pack()).reached == fit_progress.closed(
        3
    )
    assert told.is_abandoned
    told.watch(None, 4)
    assert not told.is_abandoned


def test_a_call_without_a_step_is_completed_and_one_that_raises_is_not():
    told, calls = fit_progress.Fits(), []

    def fit(number, ends):
        call = running_fit.begin(sys._getframe())
        calls.append(call)  # As its strategy does.
        call.has_ended = ends
        told.watch(call, number)

    for number, ends in ((1, True), (2, False)):
        fit(number, ends)
        told.close_if_over()
        assert told.word.reached == fit_progress.closed(number)
    assert told.word.completed == 1


def test_a_call_that_has_the_place_of_one_that_is_over_is_not_within_it():
    told = fit_progress.Fits()

    def fit(inner):
        frame = sys._getframe()
        if inner:
            return told.is_around(frame)
        told.watch(running_fit.RunningFit(frame), 1)
        # As a later call would be whose frame is where this one was.
        return told.is_around(frame), fit(inner=True)

    assert fit(inner=False) == (False, True)
    assert not fit(inner=True)


def test_a_call_is_over_when_another_begins_in_its_place():
    """As in a notebook: an exception has ended the first."""
    told = fit_progress.Fits()

    def fit(number):
        frame = sys._getframe()
        call = running_fit.begin(frame)
        told.watch(call, number)
        told.tell(reached=fit_progress.begun(number))
        return frame, call

    frame, first = fit(1)

    def fit_again():
        # A frame where that of the first call was.
        first._frame = id(sys._getframe()), sys._getframe().f_code
        assert told.is_running()
        call = running_fit.begin(sys._getframe())
        assert not told.is_running()
        assert not told.is_around(sys._getframe())
        told.close_if_over()
        assert fit_progress.Word.unpack(
            told.pack()
        ).reached == fit_progress.closed(1)
        # Within the second one, a third.
        inner(call)

    def inner(outer):
        call = running_fit.begin(sys._getframe())
        assert not outer.is_over()
        assert not call.is_over()

    fit_again()
    assert first.is_over()
    del frame
