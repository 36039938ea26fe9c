"""The figures of a cluster, from hand-made exchanges of its workers."""

import json

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from tfdist.callbacks import summary as summary_lib
from tfdist.runtime.exchange.journal import ExchangeRecord

stalenesses = st.lists(st.integers(0, 40), min_size=1, max_size=200)


def exchange(staleness=0, **fields):
    return ExchangeRecord(
        **{
            "time": 1e9,
            "version": 1,
            "pulled": 0,
            "arrival": -1,
            "staleness": staleness,
            "accepted": True,
            "compute_seconds": 0.0,
            "exchange_seconds": 0.0,
            "wait_seconds": 0.0,
            "bytes_sent": 0,
            "bytes_received": 0,
            "local_steps": 1,
            "nonfinite": False,
            "pulled_by_server": (0,),
            **fields,
        }
    )


def report_of(values, seconds=1.0):
    """A worker's report as it arrives: through JSON."""
    figures = summary_lib.WorkerFigures()
    figures.add([exchange(value) for value in values])
    return json.loads(json.dumps(figures.report(seconds)))


def gradients(pushed, accepted, dropped):
    """The three counts as the summary calls them."""
    return {
        "gradients_pushed": pushed,
        "gradients_accepted": accepted,
        "gradients_dropped": dropped,
    }


def counts(pushed, accepted, dropped, staleness=0):
    """One worker's counts, as the strategy calls them."""
    return {
        "pushed": pushed,
        "accepted": accepted,
        "dropped": dropped,
        "staleness": staleness,
    }


def gradients_of(summary):
    """The three counts of a summary or of one worker in it."""
    return {name: summary[name] for name in gradients(0, 0, 0)}


def test_a_worker_adds_up_its_exchanges_over_several_calls():
    figures = summary_lib.WorkerFigures()
    parts = {
        "compute_seconds": 0.5,
        "exchange_seconds": 0.25,
        "wait_seconds": 0.125,
        "bytes_sent": 10,
        "bytes_received": 20,
    }
    figures.add([exchange(2, **parts), exchange(0, **parts)])
    figures.add([])
    figures.add([exchange(2, accepted=False, **parts)])
    assert figures.report(8.0) == {
        "fit": 0,
        "steps": 3,
        "exchanges": 3,
        "seconds": 8.0,
        "staleness": [(0, 1), (2, 2)],
        "counts_before": counts(0, 0, 0),
        "accepted": 2,
        **{name: 3 * value for name, value in parts.items()},
    }


def test_the_cluster_is_the_sum_of_its_workers():
    figures = summary_lib.WorkerFigures()
    figures.add(
        [
            exchange(
                staleness,
                exchange_seconds=0.5,
                wait_seconds=0.25,
                bytes_sent=100,
                bytes_received=200,
            )
            for staleness in (0, 0, 1, 3)
        ]
    )
    idle = summary_lib.WorkerFigures().report(0.0)
    summary = summary_lib.summarize(
        {
            "/job:worker/task:1": report_of([8], seconds=2.0),
            "/job:worker/task:0": figures.report(8.0),
            "/job:worker/task:2": idle,
        },
        [7, 6],
    )
    workers = summary.pop("workers")
    assert summary == {
        "updates_applied": 7,
        "gradients_pushed": 5,
        "gradients_accepted": 5,
        "gradients_dropped": 0,
        "staleness": {"mean": 12 / 5, "p95": 8, "max": 8},
        # 4 steps in 8 seconds beside 1 in 2.
        "steps_per_second": 1.0,
        "exchange_share": 2.0 / 10,
        "wait_share": 1.0 / 10,
        "waited_seconds": 1.0,
        "bytes_sent": 400,
        "bytes_received": 800,
    }
    assert workers == [
        {
            "name": "/job:worker/task:0",
            "steps": 4,
            "seconds": 8.0,
            "steps_per_second": 0.5,
            "staleness_mean": 1.0,
            "exchange_share": 0.25,
            "wait_share": 0.125,
            "waited_seconds": 1.0,
            "bytes_sent": 400,
            "bytes_received": 800,
            **gradients(4, 4, 0),
        },
        {
            "name": "/job:worker/task:1",
            "steps": 1,
            "seconds": 2.0,
            "steps_per_second": 0.5,
            "staleness_mean": 8.0,
            "exchange_share": 0.0,
            "wait_share": 0.0,
            "waited_seconds": 0.0,
            "bytes_sent": 0,
            "bytes_received": 0,
            **gradients(1, 1, 0),
        },
        {
            "name": "/job:worker/task:2",
            "steps": 0,
            "seconds": 0.0,
            "steps_per_second": 0.0,
            "staleness_mean": 0.0,
            "exchange_share": 0.0,
            "wait_share": 0.0,
            "waited_seconds": 0.0,
            "bytes_sent": 0,
            "bytes_received": 0,
            **gradients(0, 0, 0),
        },
    ]


def test_nobody_has_reported():
    summary = summary_lib.summarize({}, [0])
    assert summary["staleness"] == {"mean": 0.0, "p95": 0, "max": 0}
    assert summary["workers"] == []
    assert summary["steps_per_second"] == 0


@given(st.lists(stalenesses, min_size=1, max_size=4))
def test_staleness_is_that_of_all_steps_of_all_workers(by_worker):
    reports = {str(k): report_of(v) for k, v in enumerate(by_worker)}
    staleness = summary_lib.summarize(reports, [0])["staleness"]
    together = np.concatenate(by_worker)
    assert staleness["mean"] == pytest.approx(together.mean())
    assert staleness["max"] == together.max()


@given(stalenesses)
def test_p95_is_the_least_value_that_95_percent_do_not_exceed(values):
    summary = summary_lib.summarize({"w": report_of(values)}, [0])
    p95 = summary["staleness"]["p95"]

    def percent_up_to(bound):
        return 100 * sum(value <= bound for value in values)

    assert p95 in values
    assert percent_up_to(p95) >= 95 * len(values)
    assert percent_up_to(p95 - 1) < 95 * len(values)


def test_the_table_shows_each_worker_and_the_whole():
    reports = {
        "/job:chief/task:0": {
            **report_of([0, 1]),
            "bytes_sent": 12_500_000,
            "bytes_received": 1_500_000,
        },
        "/job:worker/task:0": report_of([3, 3, 3], seconds=2.0),
    }
    summary = summary_lib.summarize(reports, [5])
    lines = summary_lib.table(summary).splitlines()
    assert lines[0] == ("Updates applied: 5; gradients pushed: 5, dropped: 0.")
    assert lines[1] == "Staleness: mean 2.00, p95 3, max 3."
    assert lines[2] == (
        "Share of the workers' time: communication 0.0%, waiting 0.0%."
    )
    assert lines[3] == "Sent 12.5 MB, received 1.50 MB."
    assert lines[4].split() == [
        "worker",
        "steps",
        "steps/s",
        "staleness",
        "communication",
        "waited",
        "s",
        "MB",
    ]
    assert [line.split() for line in lines[5:]] == [
        ["chief", "0", "2", "2.0", "0.50", "0.0%", "0.0", "14.0"],
        ["worker", "0", "3", "1.5", "3.00", "0.0%", "0.0", "0"],
    ]
    # Columns stand below each other.
    assert len({len(line) for line in lines[4:]}) == 1


def test_the_table_of_one_process_has_no_exchanges():
    summary = summary_lib.summarize({"/job:worker/task:0": report_of([0])}, [1])
    _, _, *lines = summary_lib.table(summary, is_local=True).splitlines()
    assert [line.split() for line in lines] == [
        ["worker", "steps", "steps/s", "staleness"],
        ["worker", "0", "1", "1.0", "0.00"],
    ]


def test_the_table_shows_what_was_dropped_within_80_columns():
    summary = summary_lib.summarize(
        {"/job:worker/task:12": report_of([0, 1])},
        [3],
        {
            "/job:worker/task:11": counts(123456, 23456, 100000),
            "/job:worker/task:12": counts(2, 2, 0),
        },
    )
    lines = summary_lib.table(summary).splitlines()
    assert lines[0].endswith("gradients pushed: 123458, dropped: 100000.")
    assert lines[4].split()[:4] == ["worker", "steps", "accepted", "dropped"]
    assert [line.split()[:5] for line in lines[5:]] == [
        ["worker", "11", "123456", "23456", "100000"],
        ["worker", "12", "2", "2", "0"],
    ]
    (width,) = {len(line) for line in lines[4:]}
    assert width <= 80


def test_steps_between_exchanges_are_steps_but_no_gradients():
    figures = summary_lib.WorkerFigures()
    figures.add([exchange(local_steps=16), exchange(local_steps=5)])
    summary = summary_lib.summarize({"a": figures.report(3.0)}, [2], {})
    (worker,) = summary["workers"]
    assert (worker["steps"], worker["steps_per_second"]) == (21, 7.0)
    assert gradients_of(worker) == gradients(2, 2, 0)


def test_without_counts_of_the_servers_the_workers_own_count():
    figures = summary_lib.WorkerFigures()
    figures.add([exchange(), exchange(accepted=False), exchange()])
    summary = summary_lib.summarize({"a": figures.report(1.0)}, [2], {})
    assert gradients_of(summary) == gradients(3, 2, 1)


def test_gradients_of_a_worker_that_died_before_it_could_report_count():
    reports = {"a": report_of([0, 0])}
    summary = summary_lib.summarize(
        reports, [6], {"a": counts(2, 2, 0), "b": counts(5, 4, 1, 12)}
    )
    assert gradients_of(summary) == gradients(7, 6, 1)
    a, b = summary["workers"]
    assert gradients_of(a) == gradients(2, 2, 0)
    assert (b["name"], b["steps"], b["seconds"]) == ("b", 5, 0.0)
    assert gradients_of(b) == gradients(5, 4, 1)
    # 4 of the 6 were late by 12 updates together.
    assert (a["staleness_mean"], b["staleness_mean"]) == (0.0, 3.0)
    assert summary["staleness"]["mean"] == 2.0


def test_what_a_worker_did_after_its_last_report_counts():
    figures = summary_lib.WorkerFigures(counts(10, 10, 0, 100))
    figures.add([exchange(2, local_steps=4), exchange(0, local_steps=4)])
    # Then it pushed three more times, and died.
    summary = summary_lib.summarize(
        {"a": figures.report(2.0)}, [5], {"a": counts(15, 15, 0, 120)}
    )
    (worker,) = summary["workers"]
    assert worker["steps"] == 20
    # Of the time that is known.
    assert worker["steps_per_second"] == 4.0
    assert worker["staleness_mean"] == summary["staleness"]["mean"] == 4.0
    assert gradients_of(worker) == gradients(5, 5, 0)


def test_gradients_of_an_earlier_training_do_not_count():
    figures = summary_lib.WorkerFigures(counts(10, 7, 3))
    figures.add([exchange(), exchange(accepted=False)])
    report = json.loads(json.dumps(figures.report(1.0)))
    summary = summary_lib.summarize({"a": report}, [8], {"a": counts(12, 8, 4)})
    assert gradients_of(summary) == gradients(2, 1, 1)
