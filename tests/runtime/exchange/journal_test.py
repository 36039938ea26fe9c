"""The record of exchanges is a ring that loses only the oldest."""

import time

import keras
import pytest
import tensorflow as tf

import tfdist
from tfdist.runtime.exchange import journal as journal_lib


class Store:
    """What a journal needs of a `ParameterStore`."""

    num_shards = 3

    def __init__(self):
        self.worker_device = tf.config.list_logical_devices("CPU")[0].name

    def worker_variable(self, value, name):
        variable = tf.Variable(value, name=name, trainable=False)
        variable.local_handle = variable.handle
        return variable


@pytest.fixture
def journal(monkeypatch):
    monkeypatch.setattr(journal_lib, "CAPACITY", 8)
    return journal_lib.Journal(Store())


@pytest.fixture
def write(journal):
    """Notes the exchanges `first` to `last`, as a training step does."""

    @tf.function
    def step(number):
        number = tf.cast(number, tf.int64)
        seconds = tf.cast(number, tf.float64)
        journal.write(
            started=tf.timestamp(),
            pulled=2 * number,
            pulled_by_server=[2 * number, 2 * number + 2, 2 * number + 1],
            arrival=number - 5,
            staleness=[number, number + 2, number + 1],
            wait=[seconds, 0.5 * seconds],
            version=3 * number,
            accepted=tf.equal(number, 4),
            bytes_sent=[100, number],
            bytes_received=[7],
            shards=[0, 1, 2],
        )

    def write_all(first, last):
        for number in range(first, last + 1):
            step(tf.constant(number))

    return write_all


def numbers(exchanges):
    return [exchange.version // 3 for exchange in exchanges]


def test_each_exchange_is_read_once(journal, write):
    assert journal.read_new() == []
    write(1, 3)
    assert journal.count == 3
    assert numbers(journal.read_new()) == [1, 2, 3]
    assert journal.read_new() == []
    write(4, 4)
    assert numbers(journal.read_new()) == [4]


def test_a_full_ring_loses_nothing(journal, write):
    write(1, 8)
    assert numbers(journal.read_new()) == list(range(1, 9))
    # Across the end of the ring.
    write(9, 13)
    assert numbers(journal.read_new()) == list(range(9, 14))
    write(14, 21)
    assert numbers(journal.read_new()) == list(range(14, 22))


@pytest.mark.parametrize("last", [9, 16, 17, 30])
def test_a_ring_that_was_overrun_has_lost_only_the_oldest(journal, write, last):
    write(1, last)
    assert journal.count == last
    assert numbers(journal.read_new()) == list(range(last - 7, last + 1))


def test_an_exchange_says_what_was_written(journal, write):
    before = time.time()
    write(4, 5)
    first, second = journal.read_new()
    assert (first.pulled, second.pulled) == (8, 10)
    assert (first.arrival, second.arrival) == (-1, 0)
    assert first.pulled_by_server == (8, 10, 9)
    assert second.pulled_by_server == (10, 12, 11)
    assert all(isinstance(p, int) for p in first.pulled_by_server)
    # The largest over the servers.
    assert (first.staleness, second.staleness) == (6, 7)
    assert (first.wait_seconds, second.wait_seconds) == (4.0, 5.0)
    assert (first.accepted, second.accepted) == (True, False)
    # The sum over the servers, of which one is known only in the graph.
    assert (first.bytes_sent, second.bytes_sent) == (104, 105)
    assert first.bytes_received == 7
    assert isinstance(first.bytes_sent, int)
    assert isinstance(first.compute_seconds, float)
    assert before <= first.time <= second.time <= time.time()
    # There is no end of an exchange before the first.
    assert first.compute_seconds == 0.0
    assert 0.0 < second.compute_seconds <= second.time - first.time
    # What was waited is more than has passed: never below zero.
    assert first.exchange_seconds == 0.0


@pytest.mark.parametrize("shards", [[0], [0, 2], [0, 1, 2]])
def test_a_step_is_counted_as_elsewhere_unless_it_is_dropped(journal, shards):
    @tf.function
    def step(accepted):
        journal.note_begun(shards)
        journal.write(
            started=tf.timestamp(),
            pulled=0,
            pulled_by_server=[0, 0, 0],
            arrival=0,
            staleness=[0],
            wait=[tf.zeros([], tf.float64)],
            version=0,
            accepted=accepted,
            bytes_sent=[],
            bytes_received=[],
            shards=shards,
        )

    for accepted in (True, False, True):
        step(tf.constant(accepted))
    assert (journal.begun, journal.drops) == (3, 1)
    assert journal.elsewhere == [0 if k in shards else 2 for k in range(3)]


def test_reads_of_the_journal_are_no_reads_of_the_users(monkeypatch):
    """Heartbeats read it in a thread of their own."""
    strategy = tfdist.AsyncStrategy()
    with strategy.scope():
        weight = keras.Variable(1.0)
    runtime, seen = strategy._runtime, []
    monkeypatch.setattr(runtime, "before_eager_read", seen.append)
    journal = runtime.journal
    assert (journal.begun, journal.count, journal.exchanges) == (0, 0, 0)
    assert not seen
    weight.numpy()
    assert [one is weight.value for one in seen] == [True]
