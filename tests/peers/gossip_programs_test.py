"""Two workers that train in all ways of Keras's: means of exact updates."""

import numpy as np
import pytest

from tests.all_reduce import reports as reports_lib
from tests.peers import programs

pytestmark = pytest.mark.nightly

GRADIENTS = [programs.gradient(worker).ravel() for worker in range(2)]


@pytest.fixture(scope="module")
def reports(zygote, tmp_path_factory):
    """Of both workers, by program."""
    return reports_lib.of_two_workers(
        zygote,
        tmp_path_factory,
        "tests.peers.gossip_main:run",
        modules={
            "peers.programs": ("loss_scale",),
            "peers.gossip_programs": (
                "monitored",
                "restored",
                "loop_before_fit",
            ),
        },
    )


def check_mean(found, first, second, rate=programs.RATE):
    """Checks weights after steps of both workers, but for rounding.

    Each update is 2**-4 or more where it is not zero: one that was lost, or
    counted twice, is no rounding.
    """
    mean = (first * GRADIENTS[0] + second * GRADIENTS[1]) / 2
    np.testing.assert_allclose(found, -rate * mean, rtol=1e-5, atol=1e-6)


def test_steps_that_overflow_are_no_updates(reports):
    first, second = (report["loss_scale"] for report in reports)
    assert first["replica"] == second["replica"]
    check_mean(first["replica"], 4, 3)


def test_the_bytes_of_steps_are_those_of_messages(reports):
    stale = []
    for report in reports:
        found = report["monitored"]
        stale += found["staleness"]
        # A header of 11 numbers, and 2,048 of float32. Replies to what comes
        # between steps are in no record.
        size = 8 * 11 + 4 * 2048
        assert 0 < found["sent"] <= found["messages"] * size
        assert found["sent"] % size == 0
    assert max(stale) >= 1


def test_what_the_chief_restores_at_the_end_is_what_all_have(reports):
    """A callback that waits for others then does not average once more."""
    assert [report["restored"] for report in reports] == [[0.0], [0.0]]


def test_what_a_loop_has_exchanged_is_in_the_chief_s_values_alone(reports):
    """With which `fit` begins, and stays where the rate is 0."""
    first, second = (report["loop_before_fit"] for report in reports)
    assert first == second == [first[0]] * 4
