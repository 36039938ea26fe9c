"""Two workers that train in all ways of Keras's: sums of exact updates."""

import numpy as np
import pytest

from tests.all_reduce import reports as reports_lib
from tests.peers import programs

pytestmark = pytest.mark.nightly

PROGRAMS = (*programs.ALIKE, "monitored")
GRADIENTS = [programs.gradient(worker).ravel() for worker in range(2)]


@pytest.fixture(scope="module")
def reports(zygote, tmp_path_factory):
    """Of both workers, by program."""
    return reports_lib.of_two_workers(
        zygote,
        tmp_path_factory,
        "tests.peers.main:run",
        modules={"peers.programs": PROGRAMS},
    )


def sum_of(first, second, rate=programs.RATE):
    """The weights after steps of both workers."""
    return (-rate * (first * GRADIENTS[0] + second * GRADIENTS[1])).tolist()


def both(reports, name):
    return reports_lib.both(reports, name)


def test_a_second_fit_goes_on_from_the_first(reports):
    assert both(reports, "two_fits") == [sum_of(3, 5), sum_of(7, 7)]


def test_a_model_is_compiled_again(reports):
    assert both(reports, "compiled_again") == sum_of(3, 3)


def test_a_frozen_layer_is_no_part_of_messages(reports):
    report = both(reports, "a_layer_frozen_between_fits")
    assert report["same"]
    # The scale's gradient is no constant: other workers' steps are in it.
    assert np.isfinite(report["scale"])


def test_steps_that_accumulate_send_nothing(reports):
    first, second = (report["accumulated_gradients"] for report in reports)
    assert first["replica"] == second["replica"] == sum_of(3, 3)
    assert first["sent"] == second["sent"] == 3


def test_steps_that_overflow_send_nothing(reports):
    first, second = (report["loss_scale"] for report in reports)
    assert first["replica"] == second["replica"] == sum_of(4, 3)
    assert second["sent"] == 3


def test_gradients_that_are_not_finite_are_left_out(reports):
    first, second = (report["not_finite"] for report in reports)
    assert first["replica"] == second["replica"]
    assert np.isfinite(first["replica"]).all()
    # Sums of momentum 1/2: 1, 3/2, 7/4, and 15/8 of the fourth step.
    assert first["replica"] == sum_of(49 / 8, 17 / 4)


@pytest.mark.parametrize("way", ["eager", "xla", "at_once"])
def test_steps_are_the_same_in_other_ways(reports, way):
    assert both(reports, "in_other_ways")[way] == sum_of(4, 4)


def test_a_loop_ends_with_all_updates_at_a_barrier(reports):
    assert both(reports, "a_loop_of_its_own") == sum_of(3, 6)


def test_the_chief_decides_when_all_stop(reports):
    first, second = (report["the_chief_stops"] for report in reports)
    assert first["steps"] == 20
    assert first["weights"] == second["weights"]
    assert first["weights"] == sum_of(20, second["steps"])


def test_what_is_not_supported_is_refused_by_name(reports):
    constraint, average, code = both(reports, "refused")
    assert "constraint" in constraint and "dense" in constraint
    assert "use_ema" in average
    assert "trainable=False" in code


def test_each_optimizer_has_messages_of_its_own(reports):
    # Two steps of 1 and three of 2, at the rates 1/2 and 1/4.
    assert both(reports, "two_optimizers") == [-4.0, -2.0]


def test_moving_statistics_become_the_chief_s_at_the_end(reports):
    first, second = (report["moving_statistics"] for report in reports)
    # 0 + (1 - 0) / 2, and 0 + (10 - 0) / 2.
    assert first == [0.5, 0.5]
    assert second == [5.0, 0.5]


def test_what_comes_while_a_worker_waits_at_the_end_is_in_its_summary(reports):
    for summary, in_steps, counted in reports[0]["monitored"]:
        assert summary == counted
        assert in_steps < summary
