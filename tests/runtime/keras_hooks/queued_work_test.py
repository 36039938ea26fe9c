"""Calls of `fit` with `work="queue"`, of one worker of a cluster."""

import types

import pytest
import tensorflow as tf

from tfdist.data_shares import portion_queue
from tfdist.runtime.keras_hooks import queued_work


@pytest.fixture
def work():
    device = tf.config.list_logical_devices("CPU")[0].name
    store = types.SimpleNamespace(
        name_of=lambda name: f"queued_work_test/{name}",
        devices=[device],
        worker_device=device,
    )
    config = types.SimpleNamespace(
        worker_id=0, is_chief=True, worker_names=("a", "b"), initial_workers=2
    )
    return queued_work.QueuedWork(
        store,
        None,
        None,
        config,
        wait=None,
        pull=None,
        portions_per_worker=8,
        worker_timeout=10.0,
    )


def second_epoch(work, initial_epoch):
    """The batches of the second epoch of a `fit`, in their order."""
    data = tf.data.Dataset.range(8).shuffle(8, seed=1).batch(1)
    adapter = types.SimpleNamespace(num_batches=8)
    model = types.SimpleNamespace(steps_per_execution=1)
    frame = types.SimpleNamespace(
        f_globals={},
        f_locals={
            "self": model,
            "steps_per_epoch": None,
            "initial_epoch": initial_epoch,
        },
    )
    work.progress = types.SimpleNamespace(
        set_place=lambda *place: None, clear_place=lambda: None
    )
    epoch = work.data(data, adapter, frame, 1)()
    epoch._epoch, epoch._portion = 1, portion_queue.Portion(0, 0, 8)
    seen = []
    for _ in range(8):
        epoch._train(lambda iterator: seen.append(int(next(iterator)[0])))
    return seen


def test_batches_have_the_same_numbers_wherever_a_worker_begins(work):
    """A worker that resumes has another `initial_epoch` than the others."""
    assert second_epoch(work, 0) == second_epoch(work, 1)


def test_a_fit_within_another_is_refused_before_either_has_data(work):
    calls = [types.SimpleNamespace(is_over=lambda: False) for _ in range(3)]
    work.watch(calls[0])
    with pytest.raises(NotImplementedError, match="within another `fit`"):
        work.watch(calls[1])
    calls[0].is_over = lambda: True
    work.watch(calls[2])
    with pytest.raises(NotImplementedError, match="within another `fit`"):
        work.watch(calls[1])
