"""Figures of a worker's steps, from journals made by hand."""

import math
import time
import types

from hypothesis import given
from hypothesis import strategies as st

from tfdist.cluster import step_figures


class Journal:
    """What the journal of a strategy is read by."""

    def __init__(self):
        self.records = []

    @property
    def count(self):
        return len(self.records)

    def read_from(self, first):
        return self.records[first:], self.count

    def exchange(self, staleness=0, local_steps=1, **fields):
        given = {
            "time": time.time(),
            "exchange_seconds": 0.25,
            "wait_seconds": 0.5,
            "bytes_sent": 10,
            "bytes_received": 20,
            **fields,
        }
        self.records.append(
            types.SimpleNamespace(
                staleness=staleness, local_steps=local_steps, **given
            )
        )


def test_a_meter_adds_up_what_all_journals_note_after_they_are_added():
    meter, one, other = step_figures.StepMeter(), Journal(), Journal()
    one.exchange(bytes_sent=1000)
    meter.add(one)
    meter.add(other)
    assert meter.read() == step_figures.StepFigures()
    one.exchange(staleness=3)
    meter.read()
    other.exchange(local_steps=5)
    read = meter.read()
    assert 0 <= read.idle_seconds < 60
    assert (read.steps, read.staleness) == (6, 3)
    assert (read.exchange_seconds, read.wait_seconds) == (0.5, 1.0)
    assert (read.bytes_sent, read.bytes_received) == (20, 40)


def test_idle_time_counts_from_the_end_of_the_last_exchange():
    meter, journal = step_figures.StepMeter(), Journal()
    meter.add(journal)
    journal.exchange(time=time.time() - 1000)
    # A row that is read before it is written is zero.
    journal.exchange(time=0.0)
    assert 1000 <= meter.read().idle_seconds < 1060


@given(st.lists(st.integers(0, 50), min_size=1, max_size=450))
def test_staleness_is_the_95th_percentile_of_the_last_exchanges(values):
    meter, journal = step_figures.StepMeter(), Journal()
    meter.add(journal)
    for number, value in enumerate(values):
        journal.exchange(staleness=value)
        if number % 97 == 0:
            meter.read()
    last = sorted(values[-step_figures.WINDOW :])
    assert meter.read().staleness == last[math.ceil(0.95 * len(last)) - 1]


@given(
    st.builds(
        step_figures.StepFigures,
        steps=st.integers(0, 2**50),
        staleness=st.integers(0, 2**50),
        exchange_seconds=st.floats(0, 1e9),
        wait_seconds=st.floats(0, 1e9),
        bytes_sent=st.integers(0, 2**50),
        bytes_received=st.integers(0, 2**50),
        idle_seconds=st.floats(-1, 1e9),
    )
)
def test_figures_come_back_as_they_were(figures):
    assert len(figures.pack()) == step_figures.SIZE
    assert step_figures.StepFigures.unpack(figures.pack()) == figures
