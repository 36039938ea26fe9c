"""The record of a worker's steps, written by hand."""

import pytest
import tensorflow as tf

from tfdist.all_reduce import journal as journal_lib


@pytest.fixture
def journal(monkeypatch):
    """One that keeps four steps."""
    monkeypatch.setattr(journal_lib, "CAPACITY", 4)
    made = journal_lib.StepJournal(num_workers=2)
    made.add([8])
    return made


def write(journal, began):
    """A step that has computed until `began`."""
    journal.write(
        began=tf.constant(began, tf.float64),
        ended=tf.constant(True),
        accepted=tf.constant(True),
        lane=0,
        extras=[tf.constant(0)],
    )


def test_readers_do_not_disturb_each_other(journal):
    write(journal, 1.0)
    first, number = journal.read_from(0)
    write(journal, 2.0)
    new, end = journal.read_from(number)
    assert (number, end, journal.read_from(end)) == (1, 2, ([], 2))
    # The others have seen nothing yet.
    both = journal.read_new()
    assert both == first + new
    assert journal.read_new() == []
    # From the end of the step before, whoever has read that.
    assert [one.compute_seconds for one in both] == [0.0, 2.0 - both[0].time]


def test_of_a_full_ring_the_oldest_step_has_nothing_before_it(journal):
    for began in range(1, 7):
        write(journal, float(began))
    records, number = journal.read_from(0)
    assert (len(records), number) == (4, 6)
    assert records[0].compute_seconds == 0.0
    assert records[1].compute_seconds == 4.0 - records[0].time


def test_a_step_has_pulled_what_was_there_before_it(journal):
    """Two steps accumulate to one update each."""
    for step in range(4):
        journal.set_updates((step + 1) // 2)
        write(journal, float(step))
    records, _ = journal.read_from(0)
    assert [one.version for one in records] == [0, 1, 1, 2]
    assert [one.pulled for one in records] == [0, 0, 1, 1]
    assert [one.pulled_by_server for one in records] == [(0,), (0,), (1,), (1,)]
