"""Each portion counts once, whatever workers do and in whichever order."""

import collections
import itertools
import json

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from tests import laws
from tfdist.data_shares import portion_queue

WORKERS = 3
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["take", "complete", "die", "again"]),
        st.integers(0, WORKERS - 1),
    ),
    max_size=60,
)


def passed_on(queue):
    """The queue as another worker reads it."""
    return portion_queue.restored(json.loads(json.dumps(queue.state())))


@laws.settings(200)
@given(EVENTS, st.integers(1, 30), st.integers(1, 4))
def test_each_portion_counts_once(events, batches, per_worker):
    ends = portion_queue.cut(batches, WORKERS, per_worker)
    queue = portion_queue.PortionQueue(5, ends)
    # Who believes to have which portion: a worker that others have taken for
    # dead does not know.
    believed, counted = {}, collections.Counter()
    returned = 0

    def complete(worker):
        portion = believed.pop(worker, None)
        if portion is not None and queue.complete(portion.number, worker):
            counted.update(range(portion.first, portion.end))

    def take(worker):
        portion = queue.take(worker)
        if portion is not None:
            believed[worker] = portion
        return portion

    for event, worker in events:
        queue = passed_on(queue)
        if event == "take":
            complete(worker)
            take(worker)
        elif event == "complete":
            complete(worker)
        elif event == "die":
            returned += len(queue.give_back([worker]))
        else:
            # A new process, which knows nothing of the one before.
            believed.pop(worker, None)
            take(worker)
        holders = queue.held()
        assert set(holders.values()).isdisjoint(queue.done())
        for number in queue.done():
            assert counted[ends[number] - 1] == 1
    for _ in range(batches + 1):
        # The others are gone.
        queue.give_back([1, 2])
        complete(0)
        take(0)
    assert queue.is_done
    assert counted == dict.fromkeys(range(batches), 1)
    assert sum(queue.counts.values()) == len(queue) == len(ends)
    assert queue.returned >= returned


def test_free_portions_come_in_their_order_and_say_whether_they_were_begun():
    queue = portion_queue.PortionQueue(1, [3, 6, 7])
    assert queue.take(0) == portion_queue.Portion(0, 0, 3)
    assert queue.take(1) == portion_queue.Portion(1, 3, 6)
    assert queue.give_back([0]) == [0]
    assert queue.take(2) == portion_queue.Portion(0, 0, 3, was_begun=True)
    assert queue.take(3) == portion_queue.Portion(2, 6, 7)
    assert queue.take(4) is None
    assert queue.held() == {1: 1, 2: 0, 3: 2}


def test_who_takes_again_has_left_what_it_had():
    queue = portion_queue.PortionQueue(1, [2, 4])
    queue.take(0)
    # It was started again.
    assert queue.take(0).was_begun
    assert queue.returned == 1


def test_a_portion_is_done_whoever_says_so():
    queue = portion_queue.PortionQueue(1, [2])
    queue.take(0)
    queue.give_back([0])
    queue.take(1)
    assert queue.complete(0, worker=0)
    assert not queue.complete(0, worker=1)
    assert queue.counts == {0: 1}
    assert queue.is_done


def test_a_queue_that_was_lost_learns_from_its_workers():
    queue = portion_queue.PortionQueue(1, [2, 4, 6])
    queue.know({0}, {3: 1})
    assert queue.done() == [0]
    assert queue.held() == {3: 1}
    # What another worker has taken meanwhile it keeps.
    queue.know({0}, {4: 1})
    assert queue.held() == {3: 1}
    # What others were last seen with may be done.
    queue.know({0}, {4: 0, 5: 2})
    assert queue.held() == {3: 1, 5: 2}


@pytest.mark.parametrize(
    ("batches", "workers", "per_worker", "multiple", "sizes"),
    [
        # 51 / 24 = 2.1, so three, until a sixth of the rest is less.
        (51, 3, 8, 1, [*[3] * 13, 2, 2, 2, *[1] * 6]),
        (5, 4, 8, 1, [1] * 5),
        # 16 / 8 = 2; a quarter of the rest is less from 4 on.
        (16, 2, 4, 1, [2] * 6 + [1] * 4),
        (16, 2, 4, 3, [3, 3, 3, 3, 3, 1]),
        (7, 1, 1, 1, [4, 2, 1]),
    ],
)
def test_sizes_of_portions(batches, workers, per_worker, multiple, sizes):
    ends = portion_queue.cut(batches, workers, per_worker, multiple)
    assert ends == list(itertools.accumulate(sizes))


@laws.settings(100)
@given(
    st.integers(1, 500),
    st.integers(1, 9),
    st.integers(1, 9),
    st.integers(1, 9),
)
def test_portions_are_the_epoch(batches, workers, per_worker, multiple):
    ends = portion_queue.cut(batches, workers, per_worker, multiple)
    sizes = np.diff([0, *ends])
    assert ends[-1] == batches
    assert all(size % multiple == 0 for size in sizes[:-1])
    assert 0 < sizes[-1] <= sizes[0]
    assert (np.diff(sizes) <= 0).all()
    if multiple == 1:
        assert len(ends) >= min(batches, workers)
