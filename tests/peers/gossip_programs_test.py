"""Two workers that train in all ways of Keras's: means of exact updates."""

import numpy as np
import pytest

from tests.all_reduce import reports as reports_lib
from tests.peers import programs

pytestmark = pytest.mark.nightly

OWN = ("monitored", "rates")
GRADIENTS = [programs.gradient(worker).ravel() for worker in range(2)]


@pytest.fixture(scope="module")
def reports(zygote, tmp_path_factory):
    """Of both workers, by program."""
    return reports_lib.of_two_workers(
        zygote,
        tmp_path_factory,
        "tests.peers.gossip_main:run",
        modules={
            "peers.programs": programs.ALIKE,
            "peers.gossip_programs": OWN,
        },
    )


def check_mean(found, first, second, rate=programs.RATE):
    """Checks weights after steps of both workers, but for rounding.

    Each update is 2**-4 or more where it is not zero: one that was lost, or
    counted twice, is no rounding.
    """
    mean = (first * GRADIENTS[0] + second * GRADIENTS[1]) / 2
    np.testing.assert_allclose(found, -rate * mean, rtol=1e-5, atol=1e-6)


def both(reports, name):
    return reports_lib.both(reports, name)


def test_a_second_fit_goes_on_from_the_first(reports):
    first, second = both(reports, "two_fits")
    check_mean(first, 3, 5)
    # It begins with the mean on both workers.
    mean = -programs.RATE * (3 * GRADIENTS[0] + 5 * GRADIENTS[1]) / 2
    check_mean(np.array(second) - mean, 4, 2)


def test_a_model_is_compiled_again(reports):
    found = np.array(both(reports, "compiled_again"))
    # Two steps at the rate, and two at half of it.
    check_mean(found, 3, 3)


def test_a_frozen_layer_is_no_part_of_messages(reports):
    report = both(reports, "a_layer_frozen_between_fits")
    assert report["same"]
    assert np.isfinite(report["scale"])


def test_steps_that_accumulate_are_no_updates(reports):
    first, second = (report["accumulated_gradients"] for report in reports)
    assert first["replica"] == second["replica"]
    check_mean(first["replica"], 3, 3)


def test_steps_that_overflow_are_no_updates(reports):
    first, second = (report["loss_scale"] for report in reports)
    assert first["replica"] == second["replica"]
    check_mean(first["replica"], 4, 3)


def test_gradients_that_are_not_finite_are_left_out(reports):
    first, second = (report["not_finite"] for report in reports)
    assert first["replica"] == second["replica"]
    # Sums of momentum 1/2: 1, 3/2, 7/4, and 15/8 of the fourth step.
    check_mean(first["replica"], 49 / 8, 17 / 4)


@pytest.mark.parametrize("way", ["eager", "xla", "at_once"])
def test_steps_are_the_same_in_other_ways(reports, way):
    check_mean(both(reports, "in_other_ways")[way], 4, 4)


def test_a_loop_ends_with_the_mean_at_a_barrier(reports):
    check_mean(both(reports, "a_loop_of_its_own"), 3, 6)


def test_the_chief_decides_when_all_stop(reports):
    first, second = (report["the_chief_stops"] for report in reports)
    assert first["steps"] == 20
    assert first["weights"] == second["weights"]
    check_mean(first["weights"], 20, second["steps"])


def test_what_is_not_supported_is_refused_by_name(reports):
    constraint, average, code = both(reports, "refused")
    assert "GossipStrategy" in constraint
    assert "constraint" in constraint and "dense" in constraint
    assert "GossipStrategy" in average and "use_ema" in average
    assert "trainable=False" in code


def test_each_optimizer_has_exchanges_of_its_own(reports):
    # Two steps of 1 and three of 2, at the rates 1/2 and 1/4; all are exact.
    assert both(reports, "two_optimizers") == [-2.0, -1.0]


def test_moving_statistics_become_the_chief_s_at_the_end(reports):
    first, second = (report["moving_statistics"] for report in reports)
    # 0 + (1 - 0) / 2, and 0 + (10 - 0) / 2.
    assert first == [0.5, 0.5]
    assert second == [5.0, 0.5]


def test_the_bytes_of_steps_are_those_of_messages(reports):
    stale = []
    for report in reports:
        found = report["monitored"]
        stale += found["staleness"]
        # Ten numbers of a header, and 2,048 of float32. Replies to what comes
        # between steps are in no record.
        size = 8 * 10 + 4 * 2048
        assert 0 < found["sent"] <= found["messages"] * size
        assert found["sent"] % size == 0
    assert max(stale) >= 1


def test_the_rate_is_the_chief_s(reports):
    (_, first, _), (_, second, last) = (r["rates"] for r in reports)
    assert first == second == programs.RATE / 4
    assert last == [programs.RATE / 4]
