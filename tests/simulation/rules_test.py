"""Each rule by itself, on predictions made by hand."""

import dataclasses

import pytest

from tests.simulation.predictions import BACKUP
from tests.simulation.predictions import case
from tests.simulation.predictions import row
from tfdist.simulation import Constant
from tfdist.simulation import SlowWorkers
from tfdist.simulation import rules
from tfdist.simulation.measurement import Variable
from tfdist.simulation.prediction import Cluster
from tfdist.simulation.remedies import Remedy


def test_the_slower_of_two_workers_is_named():
    compute = SlowWorkers(Constant(1.0), {1: 3.0})
    cluster = Cluster(compute=compute)
    named = rules.slow_workers(
        case(row("async", 1.6, num_workers=2), cluster=cluster)
    )
    assert named.startswith("Worker 1 takes 3.0 times as long")


def test_the_recommendation_says_what_it_gives_up():
    text = rules.recommendation(case(row("sync", 4.0)))
    assert text.startswith("Use sync with 8 workers: 400 examples/s, 4.0 times")
    assert "fastest" not in text
    text = rules.recommendation(case(row("sync", 4.0), row("async", 4.5)))
    assert "The fastest is async with 8, 4.5 times" in text
    assert "late by 7.0 updates on average, here by 0.0" in text
    more = row("sync", 4.8, num_workers=16)
    text = rules.recommendation(case(row("sync", 4.0), more))
    assert "2.0 times the workers for 1.2 times the rate" in text
    assert "late" not in text


def test_staying_says_what_the_best_would_have_been():
    text = rules.staying(case(row("sync", 0.5), row("async", 1.2), chosen=None))
    assert text.startswith("Stay on one machine")
    assert "1.20 times that (async with 8 workers), less than 1.5" in text


def test_the_reason_is_what_takes_the_time():
    text = rules.reason(case(row("sync", 4.0, bound="latency")))
    assert "bound by latency" in text and "latency 10 ms" in text
    assert "compute" not in text
    assert "sends 1 MB and gets 1 MB" in text


def test_means_are_compared_with_larger_batches():
    text = rules.batches(case(row("sync", 4.0)))
    assert "batch of 800 (8 x 100)" in text and "No gradient is late" in text
    assert "dropped" not in text
    text = rules.batches(case(row(BACKUP, 4.0)))
    assert "batch of 600 (6 x 100)" in text and "25% of the gradients" in text
    text = rules.batches(case(row("softsync", 4.0, gradients_per_update=8)))
    assert "batch of 800" in text and "No gradient is late" not in text
    assert rules.batches(case(row("async", 4.0))) is None


@pytest.mark.parametrize("staleness, much", [(3.9, False), (4.0, True)])
def test_corrections_are_named_where_gradients_are_very_late(staleness, much):
    text = rules.lateness(case(row("async", 4.0, staleness_mean=staleness)))
    assert f"late by {staleness} updates" in text and "at most 9" in text
    assert ("delay compensation" in text) == much
    assert ("DANA" in text) == much
    assert "smaller" in text
    assert rules.lateness(case(row("sync", 4.0))) is None


def test_backups_are_named_where_they_make_sync_faster():
    text = rules.backups(case(row("sync", 2.0), row(BACKUP, 2.3)))
    assert "2 backup workers of 8 would make it 2.3 times" in text
    assert "wait 60% of the time" in text
    # Not for little, and not for other numbers of workers.
    assert rules.backups(case(row("sync", 2.0), row(BACKUP, 2.1))) is None
    other = row(BACKUP, 9.0, num_workers=16)
    assert rules.backups(case(row("sync", 2.0), other)) is None
    assert rules.backups(case(row(BACKUP, 2.0))) is None


def test_changes_say_what_each_would_give():
    assert rules.changes(case(row("sync", 2.0))) is None
    none = rules.changes(case(row("sync", 1.0), chosen=None))
    assert "Neither" in none and "1.5 times" in none
    remedies = [
        Remedy("batch_size", 3200, row("sync", 2.5)),
        Remedy("bandwidth_gbps", 40.0, row("sync", 2.6)),
        Remedy("num_servers", 4, row("sync", 2.7)),
    ]
    text = rules.changes(case(row("sync", 2.0), remedies=remedies))
    assert text.startswith("What would help")
    assert "batch of 3,200" in text and "2.5 times" in text
    assert "links of 40 Gbit/s: 2.6 times" in text
    assert "4 servers: 2.7 times" in text
    workers = [Remedy("num_workers", 16, row("sync", 1.6))]
    text = rules.changes(case(row("sync", 1.0), chosen=None, remedies=workers))
    assert text.startswith("What would change that")
    assert "16 workers: 1.6 times" in text


def test_a_variable_too_large_for_its_server_is_named():
    bound = row("sync", 2.0, bound="servers' links")
    two = Cluster(num_servers=2)
    assert "holds 100% of" in rules.uneven_servers(case(bound, cluster=two))
    assert rules.uneven_servers(case(bound)) is None
    assert rules.uneven_servers(case(row("sync", 2.0), cluster=two)) is None
    even = case(bound, cluster=two)
    even = dataclasses.replace(
        even,
        measurement=dataclasses.replace(
            even.measurement, variables=[Variable((9,))] * 2
        ),
    )
    assert rules.uneven_servers(even) is None


def test_workers_that_are_always_slower_end_last():
    slow = Cluster(compute=SlowWorkers(Constant(1.0), {3: 2.0}))
    text = rules.slow_workers(case(row("async", 2.0), cluster=slow))
    assert "Worker 3 takes 2.0 times as long" in text
    assert rules.slow_workers(case(row("async", 2.0))) is None
    # There all wait for it at each step.
    assert rules.slow_workers(case(row("sync", 2.0), cluster=slow)) is None


def test_overhead_is_named_where_steps_are_short():
    cluster = Cluster(overhead_seconds=0.002)
    text = rules.overhead(
        case(row("sync", 2.0), cluster=cluster, step_seconds=0.01)
    )
    assert "takes 10 ms. 2 ms more are assumed" in text
    assert rules.overhead(case(row("sync", 2.0), cluster=cluster)) is None


def test_accuracy_is_never_promised():
    text = rules.sentences(case(row("async", 4.0)))[-1]
    assert "accuracy is not" in text and "tfdist simulate" in text
