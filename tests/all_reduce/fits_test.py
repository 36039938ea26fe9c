"""Calls of `fit` on two workers: their epochs, ends, and decisions."""

import pytest

from tests.all_reduce import reports as reports_lib

pytestmark = pytest.mark.nightly

# Where nothing else is said, each step has the gradient 1 at the rate 1.
EXPECTED = {
    # It makes two steps, the others one more.
    "the_chief_stops_within_an_epoch": [-3.0, 3],
    "another_worker_stops": [-6.0, 6],
    # The chief's best is its first epoch of two steps; it stops after two.
    "best_weights_are_restored": [-2.0, 4],
    "failed_beside_a_monitor": [-5.0, 5],
    "fit_within_an_epoch": [-3.0, -20.0],
    "a_fit_within_an_epoch_raises": [-3.0, -20.0],
    # Four steps, and two of the mean of 10 and 20.
    "a_loop_after_an_exception": -34.0,
    # Four steps at the rate 1, and two at a half.
    "another_optimizer_after_an_exception": [-5.0, 2],
    # Two steps of one worker; two steps of 10 within it, two after it.
    "fit_before_the_first_step": [-2.0, -40.0],
    # Weights -1, -2: averages -1, -1.5, which the first `fit` ends with.
    # Then -2.5, -3.5: averages -2, -2.75.
    "averaged_weights_over_fits": [-1.5, -2.75],
    # Weights -1, -2, -3: averages -1, -1.5, -2.25.
    "averaged_weights_with_fewer_epochs": -2.25,
    "averaged_weights_beside_an_exception": -2.25,
    "fewer_epochs_on_one_worker": [-6.0, 6],
    # Two steps of the mean of 2 and 4; and what it makes of 7, which is 1.
    "the_chief_alone_adapts": [-6.0, -6.0],
    # Two steps and three predictions in each epoch.
    "the_chief_alone_predicts": [10.0],
    # 5 and a step; the other one is the chief's.
    "weights_that_keras_does_not_list": [4.0, 0.0],
}


@pytest.fixture(scope="module")
def reports(zygote, tmp_path_factory):
    """Of both workers, by program."""
    return reports_lib.of_two_workers(
        zygote,
        tmp_path_factory,
        "main:run",
        modules={
            "all_reduce.fits": [*EXPECTED, "monitored", "other_data"],
            "all_reduce.programs": [
                "rates_set_in_a_wrapper",
                "gradients_that_an_optimizer_squares",
            ],
        },
    )


@pytest.mark.parametrize("name", EXPECTED)
def test_all_workers_end_as_one(reports, name):
    assert reports_lib.both(reports, name) == EXPECTED[name]


def test_rates_of_an_optimizer_in_another_are_the_chiefs(reports):
    # Four steps at each of its rates 1, a half and a quarter.
    assert reports_lib.both(reports, "rates_set_in_a_wrapper") == -7.0


def test_an_optimizer_squares_the_means(reports):
    # Of 1 and 5, and then the chief's 3.
    name = "gradients_that_an_optimizer_squares"
    assert reports_lib.both(reports, name) == -(9.0 + 9.0)


def test_a_monitor_records_each_step(reports):
    chief, other = (report["monitored"] for report in reports)
    assert chief["versions"] == [1, 2, 3]
    assert chief["steps"] == 3
    assert chief["weight"] == other["weight"] == 9.0
    # Whose data has ended makes no step of its own.
    assert other["versions"] == [1, 2]
    # A weight of 4 bytes takes a row of 64; with it go 8 numbers.
    assert set(chief["bytes"] + other["bytes"]) == {64 + 32}


def test_a_worker_warns_of_data_that_is_not_the_chiefs(reports):
    chief, other = (report["other_data"] for report in reports)
    assert chief == [[], []]
    assert other == [[], ["The first batch"]]
