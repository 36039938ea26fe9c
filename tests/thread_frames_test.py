"""Another thread's frames are looked at while it is made to stand still."""

import gc
import threading

import pytest

from tfdist import thread_frames

DEPTH = 200


@pytest.fixture
def deep_thread():
    """A thread deep within calls of which no frame object has been made."""
    is_there, over = threading.Event(), threading.Event()

    def descend(depth):
        if depth:
            return descend(depth - 1)
        is_there.set()
        return over.wait(60)

    thread = threading.Thread(target=descend, args=(DEPTH,), daemon=True)
    thread.start()
    assert is_there.wait(60)
    yield thread
    over.set()
    thread.join(60)


@pytest.fixture
def collections():
    """What is collected, at the least occasion: a list."""
    seen = []
    before = gc.get_threshold()
    gc.callbacks.append(lambda phase, info: seen.append(phase))
    gc.set_threshold(1)
    yield seen
    gc.set_threshold(*before)
    del gc.callbacks[-1]


def test_nothing_is_collected_meanwhile(deep_thread, collections):
    seen = []

    def keeps(frame):
        seen.append((frame, len(collections)))
        return frame.f_code is threading.Thread.run.__code__

    assert thread_frames.has(deep_thread.ident, keeps)
    assert len(seen) > DEPTH
    assert seen[0][1] == seen[-1][1]
    assert gc.isenabled()


def test_who_collects_nothing_goes_on_so(deep_thread):
    gc.disable()
    try:
        assert not thread_frames.has(deep_thread.ident, lambda frame: False)
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_the_stack_is_a_traceback(deep_thread):
    assert ", in descend\n" in thread_frames.stack(deep_thread.ident)


def test_a_thread_that_has_ended_is_in_no_call():
    thread = threading.Thread(target=len, args=("",))
    thread.start()
    thread.join()
    assert not thread_frames.has(thread.ident, lambda frame: True)
    assert thread_frames.stack(thread.ident) == ""


def test_a_call_is_seen_around_a_generator_that_yields_meanwhile():
    may_yield, has_yielded, may_end = (threading.Event() for _ in range(3))

    def generate():
        assert may_yield.wait(60.0)
        yield

    def loop():
        for _ in generate():
            has_yielded.set()
            assert may_end.wait(60.0)

    thread = threading.Thread(target=loop)
    thread.start()

    def is_it(frame):
        if frame.f_code is generate.__code__ and not has_yielded.is_set():
            may_yield.set()
            assert has_yielded.wait(60.0)
        return frame.f_code is loop.__code__

    try:
        assert thread_frames.has(thread.ident, is_it)
        assert has_yielded.is_set()
    finally:
        may_yield.set()
        may_end.set()
        thread.join(60.0)
    assert not thread_frames.has(thread.ident, is_it)
