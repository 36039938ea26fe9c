"""Calls of `fit` with `work="queue"`, of one worker of a cluster."""

import types

import pytest
import tensorflow as tf

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
        portions_per_worker=8,
        worker_timeout=10.0,
    )


def test_a_fit_within_another_is_refused_before_either_has_data(work):
    calls = [types.SimpleNamespace(is_over=lambda: False) for _ in range(3)]
    work.watch(calls[0])
    with pytest.raises(NotImplementedError, match="within another `fit`"):
        work.watch(calls[1])
    calls[0].is_over = lambda: True
    work.watch(calls[2])
    with pytest.raises(NotImplementedError, match="within another `fit`"):
        work.watch(calls[1])
