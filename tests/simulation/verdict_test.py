"""What is chosen, and said, of predictions made by hand."""

from tests.simulation.predictions import BACKUP
from tests.simulation.predictions import case
from tests.simulation.predictions import row
from tfdist.simulation import verdict
from tfdist.simulation.remedies import Remedy


def said(number, decided):
    return verdict.sentences(decided)[number]


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
    backed = row(BACKUP, 5.0)
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


def test_the_recommendation_says_what_it_gives_up():
    text = said(0, case(row("sync", 4.0)))
    assert text.startswith(
        "By speed alone, use sync with 8 workers: 400 examples/s, 4.0 times"
    )
    assert "fastest" not in text
    text = said(0, case(row("sync", 4.0), row("async", 4.5)))
    assert "The fastest is async with 8 workers (4.5 times)." in text
    assert "7.0 updates late on average; those of sync with 8 " in text
    more = row("sync", 4.8, num_workers=16)
    text = said(0, case(row("sync", 4.0), more))
    assert "The fastest is sync with 16 workers (4.8 times)" in text


def test_staying_says_what_the_best_would_have_been():
    text = said(0, case(row("sync", 0.5), row("async", 1.2), chosen=None))
    assert text.startswith("Stay on one machine")
    assert "1.20 times that (async with 8 workers), less than 1.5" in text


def test_the_reason_is_what_takes_the_time():
    text = said(1, case(row("sync", 4.0, bound="latency")))
    assert "bound by latency" in text and "latency 10 ms" in text
    assert "compute" not in text
    assert "sends 1 MB and gets 1 MB" in text


def test_changes_say_what_each_would_give():
    assert len(verdict.sentences(case(row("sync", 2.0)))) == 2
    none = said(2, case(row("sync", 1.0), chosen=None))
    assert "Neither" in none and "1.5 times" in none
    # The network has no limit.
    assert "faster network" not in none
    remedies = [
        Remedy("batch_size", 3200, row("sync", 2.5)),
        Remedy("bandwidth_gbps", 40.0, row("sync", 2.6)),
        Remedy("num_servers", 4, row("sync", 2.7)),
    ]
    text = said(2, case(row("sync", 2.0), remedies=remedies))
    assert text.startswith(
        "With sync and 8 workers, each of these alone would raise the "
        "speed-up: a batch of 3,200 per worker ("
    )
    assert "), to 2.5; links of 40 Gbit/s, to 2.6; 4 servers, to 2.7." in text
    workers = [Remedy("num_workers", 16, row("sync", 1.6))]
    text = said(2, case(row("sync", 1.0), chosen=None, remedies=workers))
    assert "speed-up enough: 16 workers, to 1.6." in text
