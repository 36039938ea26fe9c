"""An epoch of portions, where servers know of others."""

import types

import pytest

from tfdist.data_shares import portion_queue
from tfdist.runtime.keras_hooks import queued_epoch

CALL, ENDS = 2, [2, 4]


def number(call, epoch):
    return call * 2**32 + epoch


def begun(latest, queue=None, ends=ENDS):
    """An epoch, the second of the second call, that has yet to begin."""
    work = types.SimpleNamespace(
        progress=types.SimpleNamespace(
            latest=lambda: (latest, portion_queue.checksum(ends))
        ),
        queue=lambda: queue,
        lost_workers=lambda call: None,
    )
    model = types.SimpleNamespace(steps_per_execution=1)
    made = queued_epoch.QueuedEpoch(work, None, model, CALL, ENDS)
    made._epoch = 1
    return made


@pytest.mark.parametrize(
    "latest", [-2, -1, number(1, 7), number(2, 0), number(2, 1)]
)
def test_servers_may_know_of_this_epoch_or_of_those_before(latest):
    begun(latest)._check_progress()


@pytest.mark.parametrize("latest", [number(2, 2), number(3, 0)])
def test_servers_with_snapshots_of_a_later_epoch_are_refused(latest):
    # They would leave out each gradient, as one that they have applied.
    old = portion_queue.PortionQueue(number(2, 0), ENDS)
    for queue in (None, old):
        with pytest.raises(RuntimeError, match="begins call 2, epoch 2"):
            begun(latest, queue)._check_progress()
    # Others are further: this worker follows them.
    queue = portion_queue.PortionQueue(latest, ENDS)
    begun(latest, queue)._check_progress()


# Fewer portions, or as many of other sizes.
@pytest.mark.parametrize("ends", [[4], [3, 4]])
def test_servers_with_snapshots_of_other_portions_are_refused(ends):
    # Numbers of batches in portions say nothing of these.
    for queue in (None, portion_queue.PortionQueue(number(2, 0), ends)):
        with pytest.raises(RuntimeError, match="same portions.*epoch 2"):
            begun(number(2, 1), queue, ends)._check_progress()
    # Another worker has begun the epoch with other portions: the data differs.
    queue = portion_queue.PortionQueue(number(2, 1), ends)
    begun(number(2, 1), queue, ends)._check_progress()
    # Those of an epoch that is over do not matter.
    begun(number(2, 0), None, ends)._check_progress()


def test_a_server_that_lost_the_queue_learns_what_workers_now_gone_have_done():
    queue = portion_queue.PortionQueue(number(2, 1), [1, 2, 3])
    queue.take(1)
    queue.complete(0, worker=1)
    epoch = begun(-1)
    epoch._queued_work.worker, epoch._ends = 0, [1, 2, 3]
    _, (epoch._portion, _) = epoch._take_from(queue)
    # Worker 1 is gone by the time that the server is started again.
    again, _ = epoch._tell_known(None)
    assert again.done() == [0]
    assert again.held() == {0: 1}


@pytest.mark.parametrize(
    ("queue", "is_last", "stops"),
    [
        (number(3, 0), False, True),
        # They may have ended the call as this worker does.
        (number(3, 0), True, False),
        (number(2, 2), False, False),
    ],
)
def test_a_call_that_others_have_left_is_not_gone_through(
    caplog, queue, is_last, stops
):
    epoch = begun(-1, portion_queue.PortionQueue(queue, ENDS))
    epoch._model.stop_training, epoch._is_last = False, is_last
    epoch._end()
    assert epoch._model.stop_training is stops
    assert ("the rest of call 2, from epoch 2 on" in caplog.text) is stops


def test_an_epoch_ends_with_what_others_did_while_this_worker_waited():
    queue = portion_queue.PortionQueue(number(2, 1), ENDS)
    for portion in range(len(ENDS)):
        queue.complete(portion, worker=1)
    epoch, pulls = begun(-1, queue), []
    vars(epoch._queued_work).update(
        worker=0,
        is_chief=True,
        wait=lambda condition, what: condition(),
        change=lambda function: function(queue)[1],
        pull=lambda: pulls.append("pull"),
    )
    for _ in range(2):
        with pytest.raises(StopIteration):
            epoch._take()
    assert pulls == ["pull"]


def test_who_begins_a_lost_queue_again_leaves_others_their_portions():
    queue = portion_queue.PortionQueue(number(2, 1), [1, 2, 3])
    queue.take(1)
    epoch = begun(-1)
    epoch._queued_work.worker, epoch._ends = 0, [1, 2, 3]
    _, (epoch._portion, _) = epoch._take_from(queue)
    assert epoch._portion.number == 1
    epoch._done.add(1)
    epoch._portion = None  # It has completed it, and the server is gone.
    again, (portion, _) = epoch._take_from(None)
    assert portion.number == 2
    assert again.held() == {0: 2, 1: 0}
    # Worker 1 is gone after all.
    again.give_back([1])
    assert epoch._take_from(again)[1][0].number == 0
