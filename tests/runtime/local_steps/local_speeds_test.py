"""Shares of steps, by the speeds of workers that a server knows."""

import contextlib
import types

import pytest
import tensorflow as tf

from tests.runtime.exchange.delay_test import VirtualWorker
from tfdist.runtime.local_steps import local
from tfdist.runtime.local_steps import local_speeds


@pytest.fixture
def speeds(monkeypatch):
    """Those of worker 1 of three; nothing is known yet."""
    store = types.SimpleNamespace(
        worker_variable=lambda value, name: tf.Variable(value, name=name)
    )
    made = local_speeds.Speeds(store, contextlib.nullcontext, 3, worker_id=1)
    monkeypatch.setattr(
        local_speeds, "read_replica", lambda variable: variable.read_value()
    )
    return made


def share(speeds, rows, steps):
    """Of worker 1, where `rows` are known: (speed, seconds) of each."""
    speeds.variable.assign(rows)
    return int(speeds.share_of(tf.constant(steps, tf.int64)))


@pytest.mark.parametrize(
    ("mine", "fastest", "expected"),
    [
        (5.0, 10.0, 8),  # Half as fast, half of 16.
        (7.0, 10.0, 11),  # 11.2
        (10.0, 10.0, 16),  # None less by rounding.
        (1e-6, 10.0, 1),  # One at least.
    ],
)
def test_who_is_slow_takes_its_part_of_the_steps(
    speeds, mine, fastest, expected
):
    rows = [[fastest, 100.0], [mine, 100.0], [3.0 * mine / 4.0, 100.0]]
    assert share(speeds, rows, 16) == expected


def test_who_does_not_know_its_speed_takes_all(speeds):
    assert share(speeds, [[9.0, 100.0], [0.0, 100.0], [0.0, 0.0]], 16) == 16


def test_who_was_not_heard_of_for_twenty_periods_does_not_count(speeds):
    # A period of this worker: 16 steps at 4 steps a second.
    period = 16 / 4.0
    for age, expected in ((20 * period - 1, 8), (20 * period + 1, 16)):
        rows = [[8.0, 1000.0 - age], [4.0, 1000.0], [2.0, 1000.0]]
        assert share(speeds, rows, 16) == expected


def test_the_first_period_has_no_speed_and_the_next_has(speeds):
    steps = tf.constant(10, tf.int64)
    record = speeds.record(steps)
    assert record.variable is speeds.variable
    assert record.value.indices.numpy().tolist() == [1]
    assert record.value.values[0, 0] == 0.0
    speeds.begin()
    began = speeds._began.numpy()
    ((speed, ended),) = speeds.record(steps).value.values.numpy()
    assert ended >= began
    # It ends a moment before it is written down.
    assert speed * (ended - began) >= 9.99


@pytest.mark.parametrize("has_steps", [False, True])
def test_a_call_within_a_period_does_not_begin_it_anew(has_steps):
    """As callbacks make it; its steps would have taken less time."""
    begun = []
    inner = types.SimpleNamespace(
        has_steps=lambda: has_steps,
        speeds=types.SimpleNamespace(begin=lambda: begun.append("period")),
    )
    outer = types.SimpleNamespace(is_around=lambda frame: True)
    worker = types.SimpleNamespace(
        fit=outer,
        inners=[inner],
        _communication=types.SimpleNamespace(begin_fit=lambda *args: None),
    )
    local.Local.watch(worker, call=None, frame=None)
    assert begun == ([] if has_steps else ["period"])
    # What is left is exchanged at the end of that one.
    assert worker.fit is outer


def test_a_snapshot_of_another_number_of_workers_has_no_speeds():
    """It lacks nothing else: a checkpoint is not put back for that."""
    for number in (2, 3):
        worker = VirtualWorker("speeds", 0)
        runtime = worker.runtime
        # A server that is started again holds what it has found.
        runtime.recovery.wait_until_settled = lambda *_: True
        made = local_speeds.Speeds(runtime.store, worker.scope, number, 0)
        runtime.commit()
        assert made.variable.numpy().tolist() == [[0.0, 0.0]] * number
    assert runtime.synchronizer.has_joined
    assert not runtime.synchronizer.has_added
