"""Each rule by itself, on predictions made by hand."""

import dataclasses

import pytest

from tfdist.simulation import Constant
from tfdist.simulation import Measurement
from tfdist.simulation import SlowWorkers
from tfdist.simulation import verdict
from tfdist.simulation.measurement import Variable
from tfdist.simulation.methods import parse
from tfdist.simulation.prediction import BOUNDS
from tfdist.simulation.prediction import Cluster
from tfdist.simulation.prediction import Prediction
from tfdist.simulation.remedies import Remedy

_BACKUP = "backup_workers:backup_workers=2"


def row(method, speed_up, **changes):
    """A prediction for 8 workers, of those figures that rules look at."""
    synchronous = method in ("sync", _BACKUP)
    figures = {
        "num_workers": 8,
        "staleness_mean": 0.0 if synchronous else 7.0,
        "staleness_p95": 9.0,
        "dropped": 0.25 if method == _BACKUP else 0.0,
        "waiting": 0.6,
        "bound": "compute",
        "gradients_per_update": {"sync": 8, _BACKUP: 6}.get(method, 1),
        **changes,
    }
    return Prediction(
        method=method,
        examples_per_second=100.0 * speed_up,
        speed_up=speed_up,
        updates_per_second=1.0,
        computing=0.4,
        talking=0.0,
        server_gbps=0.0,
        parts={**dict.fromkeys(BOUNDS, 0.0), figures["bound"]: 0.01},
        is_synchronous=synchronous,
        **figures,
    )


def case(*rows, chosen=0, cluster=None, step_seconds=1.0, **settings):
    """A case in which one of the rows is recommended, or None."""
    measurement = Measurement(
        100, [step_seconds], 0.0, step_seconds, [Variable((250_000,))]
    )
    return verdict.Case(
        measurement=measurement,
        cluster=cluster or Cluster(),
        predictions=list(rows),
        methods={r.method: parse(r.method) for r in rows},
        chosen=None if chosen is None else rows[chosen],
        **settings,
    )


def test_nothing_is_chosen_below_the_least_speed_up():
    rows = [row("sync", 1.4), row("async", 1.49)]
    assert verdict.choose(rows, 1.5) is None
    assert verdict.choose(rows, 1.45) is rows[1]
    assert verdict.choose(rows, 1.4) is rows[0]


def test_the_least_stale_of_those_that_are_nearly_as_fast_is_chosen():
    slow = row("sync", 0.79 * 5)
    fresh = row("softsync", 0.81 * 5, staleness_mean=1.0)
    fast = row("async", 5.0)
    assert verdict.choose([slow, fresh, fast], 1.5) is fresh
    near = row("sync", 0.81 * 5)
    assert verdict.choose([near, fresh, fast], 1.5) is near
    # Of two that are equally fresh that which drops nothing.
    backed = row(_BACKUP, 5.0)
    assert verdict.choose([backed, near], 1.5) is near
    assert verdict.choose([backed, slow], 1.5) is backed


def test_no_more_workers_are_chosen_than_are_nearly_as_fast():
    many = row("async", 5.0)
    few = row("async", 4.1, num_workers=4)
    assert verdict.choose([many, few], 1.5) is few
    assert verdict.choose([many, row("async", 3.9, num_workers=4)], 1.5) is many
    # As fresh as it may be, but not below the least speed-up.
    fresh = row("sync", 1.45)
    assert verdict.choose([fresh, row("async", 1.6)], 1.5) is not fresh


def test_of_as_many_workers_the_freshest_that_is_nearly_as_fast_is_chosen():
    # Nearly as fast as the fastest of its size, not as that of all sizes.
    fresh, stale = row("sync", 7.0), row("async", 8.0)
    many = row("async", 10.0, num_workers=16)
    assert verdict.choose([fresh, stale, many], 1.5) is fresh


def test_the_slower_of_two_workers_is_named():
    compute = SlowWorkers(Constant(1.0), {1: 3.0})
    cluster = Cluster(compute=compute)
    named = verdict.slow_workers(
        case(row("async", 1.6, num_workers=2), cluster=cluster)
    )
    assert named.startswith("Worker 1 takes 3.0 times as long")


def test_the_recommendation_says_what_it_gives_up():
    text = verdict.recommendation(case(row("sync", 4.0)))
    assert text.startswith("Use sync with 8 workers: 400 examples/s, 4.0 times")
    assert "fastest" not in text
    text = verdict.recommendation(case(row("sync", 4.0), row("async", 4.5)))
    assert "The fastest is async with 8, 4.5 times" in text
    assert "late by 7.0 updates on average, here by 0.0" in text
    more = row("sync", 4.8, num_workers=16)
    text = verdict.recommendation(case(row("sync", 4.0), more))
    assert "2.0 times the workers for 1.2 times the rate" in text
    assert "late" not in text


def test_staying_says_what_the_best_would_have_been():
    text = verdict.staying(
        case(row("sync", 0.5), row("async", 1.2), chosen=None)
    )
    assert text.startswith("Stay on one machine")
    assert "1.20 times that (async with 8 workers), less than 1.5" in text


def test_the_reason_is_what_takes_the_time():
    text = verdict.reason(case(row("sync", 4.0, bound="latency")))
    assert "bound by latency" in text and "latency 10 ms" in text
    assert "compute" not in text
    assert "sends 1 MB and gets 1 MB" in text


def test_means_are_compared_with_larger_batches():
    text = verdict.batches(case(row("sync", 4.0)))
    assert "batch of 800 (8 x 100)" in text and "No gradient is late" in text
    assert "dropped" not in text
    text = verdict.batches(case(row(_BACKUP, 4.0)))
    assert "batch of 600 (6 x 100)" in text and "25% of the gradients" in text
    text = verdict.batches(case(row("softsync", 4.0, gradients_per_update=8)))
    assert "batch of 800" in text and "No gradient is late" not in text
    assert verdict.batches(case(row("async", 4.0))) is None


@pytest.mark.parametrize("staleness, much", [(3.9, False), (4.0, True)])
def test_corrections_are_named_where_gradients_are_very_late(staleness, much):
    text = verdict.lateness(case(row("async", 4.0, staleness_mean=staleness)))
    assert f"late by {staleness} updates" in text and "at most 9" in text
    assert ("delay compensation" in text) == much
    assert ("DANA" in text) == much
    assert "smaller" in text
    assert verdict.lateness(case(row("sync", 4.0))) is None


def test_backups_are_named_where_they_make_sync_faster():
    text = verdict.backups(case(row("sync", 2.0), row(_BACKUP, 2.3)))
    assert "2 backup workers of 8 would make it 2.3 times" in text
    assert "wait 60% of the time" in text
    # Not for little, and not for other numbers of workers.
    assert verdict.backups(case(row("sync", 2.0), row(_BACKUP, 2.1))) is None
    other = row(_BACKUP, 9.0, num_workers=16)
    assert verdict.backups(case(row("sync", 2.0), other)) is None
    assert verdict.backups(case(row(_BACKUP, 2.0))) is None


def test_changes_say_what_each_would_give():
    assert verdict.changes(case(row("sync", 2.0))) is None
    none = verdict.changes(case(row("sync", 1.0), chosen=None))
    assert "Neither" in none and "1.5 times" in none
    remedies = [
        Remedy("batch_size", 3200, row("sync", 2.5)),
        Remedy("bandwidth_gbps", 40.0, row("sync", 2.6)),
        Remedy("num_servers", 4, row("sync", 2.7)),
    ]
    text = verdict.changes(case(row("sync", 2.0), remedies=remedies))
    assert text.startswith("What would help")
    assert "batch of 3,200" in text and "2.5 times" in text
    assert "links of 40 Gbit/s: 2.6 times" in text
    assert "4 servers: 2.7 times" in text
    workers = [Remedy("num_workers", 16, row("sync", 1.6))]
    text = verdict.changes(
        case(row("sync", 1.0), chosen=None, remedies=workers)
    )
    assert text.startswith("What would change that")
    assert "16 workers: 1.6 times" in text


def test_a_variable_too_large_for_its_server_is_named():
    bound = row("sync", 2.0, bound="servers' links")
    two = Cluster(num_servers=2)
    assert "holds 100% of" in verdict.uneven_servers(case(bound, cluster=two))
    assert verdict.uneven_servers(case(bound)) is None
    assert verdict.uneven_servers(case(row("sync", 2.0), cluster=two)) is None
    even = case(bound, cluster=two)
    even = dataclasses.replace(
        even,
        measurement=dataclasses.replace(
            even.measurement, variables=[Variable((9,))] * 2
        ),
    )
    assert verdict.uneven_servers(even) is None


def test_workers_that_are_always_slower_end_last():
    slow = Cluster(compute=SlowWorkers(Constant(1.0), {3: 2.0}))
    text = verdict.slow_workers(case(row("async", 2.0), cluster=slow))
    assert "Worker 3 takes 2.0 times as long" in text
    assert verdict.slow_workers(case(row("async", 2.0))) is None
    # There all wait for it at each step.
    assert verdict.slow_workers(case(row("sync", 2.0), cluster=slow)) is None


def test_overhead_is_named_where_steps_are_short():
    cluster = Cluster(overhead_seconds=0.002)
    text = verdict.overhead(
        case(row("sync", 2.0), cluster=cluster, step_seconds=0.01)
    )
    assert "takes 10 ms. 2 ms more are assumed" in text
    assert verdict.overhead(case(row("sync", 2.0), cluster=cluster)) is None


def test_accuracy_is_never_promised():
    text = verdict.sentences(case(row("async", 4.0)))[-1]
    assert "accuracy is not" in text and "tfdist simulate" in text
