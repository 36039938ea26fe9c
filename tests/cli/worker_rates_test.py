"""Rates of workers, from readings made by hand."""

import dataclasses

import pytest

from tfdist.cli import worker_rates
from tfdist.cli.worker_rates import Reading
from tfdist.cluster.step_figures import StepFigures


def reading(name, time, steps, *, state="runs", **figures):
    told = StepFigures(steps=steps, idle_seconds=0.5, **figures)
    return Reading(name, state, state == "runs", told, time, 0.5)


def named(*readings):
    return {one.name: one for one in readings}


def test_rates_are_differences_over_the_time_between_two_readings():
    before = reading("worker 0", 100.0, 50, bytes_sent=10**6)
    now = reading(
        "worker 0",
        110.0,
        150,
        exchange_seconds=2.0,
        wait_seconds=5.0,
        bytes_sent=21 * 10**6,
        bytes_received=4 * 10**6,
    )
    assert worker_rates.rates(before, now) == worker_rates.Rates(
        10.0, 0.2, 0.5, 2e6, 0.4e6
    )


def test_nothing_is_known_of_a_worker_that_was_started_again():
    before = reading("worker 0", 100.0, 50)
    for now in (
        reading("worker 0", 110.0, 3),
        before,
        Reading("worker 0", "runs", True),
    ):
        assert worker_rates.rates(before, now) is None
    assert worker_rates.rates(None, before) is None


@pytest.mark.parametrize(
    "total",
    ["exchange_seconds", "wait_seconds", "bytes_sent", "bytes_received"],
)
def test_a_restart_is_known_though_the_new_process_has_made_more_steps(total):
    before = reading("worker 0", 100.0, 20, **{total: 60})
    now = reading("worker 0", 110.0, 21, **{total: 1})
    assert worker_rates.rates(before, now) is None


def test_the_line_adds_up_workers_and_names_who_is_slow_and_who_waits():
    before = named(*(reading(f"worker {k}", 100.0, 0) for k in range(3)))
    now = [
        reading("worker 0", 110.0, 100, wait_seconds=5.0, staleness=1),
        reading("worker 1", 110.0, 100, bytes_sent=2 * 10**7, staleness=7),
        reading("worker 2", 110.0, 50, bytes_received=10**7),
    ]
    assert worker_rates.line(before, now) == (
        "3 of 3 workers run; 25.0 steps/s; staleness p95 7; sent 2.00 MB/s, "
        "received 1.00 MB/s; worker 2 is slow (5.00 steps/s); "
        "worker 0 waits 50 % of the time"
    )


def test_the_line_says_who_runs_and_makes_no_step():
    before = named(*(reading(f"worker {k}", 100.0, 5) for k in range(2)))
    now = [
        reading("worker 0", 110.0, 105),
        reading("worker 1", 110.0, 5),
        Reading("worker 2", "runs", True),
    ]
    line = worker_rates.line(before, now)
    assert line.endswith("; worker 1 makes no step; worker 2 makes no step")


def test_the_line_says_who_is_down_and_since_when_nobody_makes_a_step():
    before = named(reading("worker 0", 100.0, 9), reading("worker 1", 100.0, 9))
    waits = dataclasses.replace(
        reading("worker 0", 110.0, 9), idle_seconds=12.0
    )
    dead = Reading("worker 1", "is down", False)
    assert worker_rates.line(before, [waits, dead]) == (
        "1 of 2 workers run; no step for 12 s; worker 1 is down"
    )


def test_a_row_without_figures_has_dashes():
    new = Reading("worker 10", "not seen yet", False)
    old = reading("worker 0", 100.0, 9)
    lines = worker_rates.table({}, [old, new]).splitlines()
    # After its name and its state.
    assert lines[1].split()[3:] == ["-", "-", "9", "-", "0", *"----"]
    assert lines[2].split()[-9:] == list("-" * 9)
