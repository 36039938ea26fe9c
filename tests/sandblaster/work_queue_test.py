"""The work queue, on a virtual clock."""

import heapq
import json

from hypothesis import given
from hypothesis import strategies as st
import pytest

from tests import laws
from tfdist.sandblaster import work_queue


def run(speeds, portions, patience=2.0, deaths=(), with_backups=True):
    """Runs an evaluation on workers of given speeds.

    Args:
      speeds: seconds of each worker for a portion.
      portions: their number.
      patience: of the queue.
      deaths: by worker the time at which it dies, or infinity.
      with_backups: whether portions are given out twice.

    Returns:
      The time of the last answer, and the tickets of those that counted.
    """
    deaths = list(deaths) or [float("inf")] * len(speeds)
    queue = work_queue.WorkQueue(
        portions, patience if with_backups else float("inf")
    )
    counted = []
    events = [(0.0, worker, None) for worker in range(len(speeds))]
    while not queue.is_done:
        now, worker, attempt = heapq.heappop(events)
        # As on a server: nobody holds it.
        queue = work_queue.restored(json.loads(json.dumps(queue.state())))
        if now >= deaths[worker]:
            # Found out about some time later.
            queue.give_back([worker])
            continue
        if attempt is not None and queue.complete(attempt.ticket, now):
            counted.append(attempt)
        taken = queue.take(worker, now)
        pause = 0.01 if taken is None else speeds[worker]
        heapq.heappush(events, (now + pause, worker, taken))
    assert queue.accepted == [
        attempt.ticket
        for attempt in sorted(counted, key=lambda one: one.portion)
    ]
    return now, counted


@laws.settings(60, deadline=None)
@given(
    st.lists(st.floats(0.1, 5.0), min_size=1, max_size=6),
    st.integers(1, 30),
    st.floats(1.1, 4.0),
    st.data(),
)
def test_each_portion_counts_once_whoever_dies(
    speeds, portions, patience, data
):
    deaths = [float("inf")] + [
        data.draw(st.one_of(st.just(float("inf")), st.floats(0, 10)))
        for _ in speeds[1:]
    ]
    _, counted = run(speeds, portions, patience, deaths)
    assert sorted(one.portion for one in counted) == list(range(portions))
    assert len({one.ticket for one in counted}) == portions


def test_backup_tasks_shorten_the_end():
    """Without them the last portion is with the worker of 50 s."""
    slow, _ = run([1.0, 1.0, 1.0, 50.0], 32, with_backups=False)
    fast, _ = run([1.0, 1.0, 1.0, 50.0], 32)
    assert slow == 50.0
    assert fast < 15.0


def test_the_longest_waited_for_is_given_out_first():
    queue = work_queue.WorkQueue(3, 2.0, typical=1.0)
    for worker, now in ((0, 0.0), (1, 0.5), (2, 1.0)):
        assert queue.take(worker, now).portion == worker
    # The median is 0.5 now: a backup after 1 s.
    assert queue.complete(2, 1.5)
    assert queue.take(2, 1.5).portion == 0
    # Portion 1 began 0.9 s ago, and then 1.1 s.
    assert queue.take(3, 1.4) is None
    assert queue.take(3, 1.6).portion == 1
    # Both have a backup that has just begun.
    assert queue.take(4, 2.0) is None
    assert queue.take(4, 2.55).portion == 0


def test_the_second_answer_does_not_count():
    queue = work_queue.WorkQueue(1, 2.0, typical=1.0)
    first = queue.take(0, 0.0)
    backup = queue.take(1, 3.0)
    assert queue.is_open(first.ticket)
    assert queue.complete(backup.ticket, 3.5)
    assert not queue.is_open(first.ticket)
    assert not queue.complete(first.ticket, 4.0)
    assert queue.accepted == [backup.ticket]


def test_a_worker_that_begins_anew_has_nothing():
    queue = work_queue.WorkQueue(2, 2.0)
    first = queue.take(0, 0.0)
    second = queue.take(0, 1.0)
    assert (first.portion, second.portion) == (0, 0)
    assert not queue.complete(first.ticket, 2.0)
    assert queue.complete(second.ticket, 2.0)


@pytest.mark.parametrize("typical", [None, 4.0])
def test_nothing_is_late_before_a_duration_is_known(typical):
    queue = work_queue.WorkQueue(1, 2.0, typical=typical)
    queue.take(0, 0.0)
    assert (queue.take(1, 100.0) is None) == (typical is None)
