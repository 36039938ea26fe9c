"""What is chosen, of predictions made by hand."""

from tests.simulation.predictions import BACKUP
from tests.simulation.predictions import row
from tfdist.simulation import verdict


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
