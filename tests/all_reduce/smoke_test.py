"""Two workers by all-reduce: what counts is exactly their batches.

Programs that were wrong in an earlier engine. Gradients are the data, SGD has
the rate 1: a weight is minus the sum over steps of the mean of those workers
that have a batch.
"""

import pytest

from tests.all_reduce import reports as reports_lib

pytestmark = pytest.mark.smoke

PROGRAMS = (
    "data_that_ends_first_on_another_worker_in_each_fit",
    "accumulated_gradients_over_fits",
    "rate_lowered_by_a_plateau",
    "rate_set_by_one_worker",
    "weights_set_by_one_worker_within_an_epoch",
    "weights_set_at_the_end_of_an_epoch",
    "weights_set_while_another_worker_has_failed",
    "two_models_of_equal_shapes_in_a_loop",
    "many_steps",
    "the_chief_reads_and_evaluates_alone",
)


@pytest.fixture(scope="module")
def reports(zygote, tmp_path_factory):
    """Of both workers, by program."""
    return reports_lib.of_two_workers(
        zygote,
        tmp_path_factory,
        "main:run",
        modules={"all_reduce.programs": PROGRAMS},
    )


def both(reports, name):
    return reports_lib.both(reports, name)


def test_no_step_is_lost_whoever_ends_first(reports):
    # Three steps in each of two calls of `fit`, of gradient 1.
    name = "data_that_ends_first_on_another_worker_in_each_fit"
    assert both(reports, name) == [-6.0, 6]


def test_gradients_are_accumulated_over_calls_of_fit(reports):
    # As in one process: of 3, 4, 5, 6 gradients 1, 2, 2, 3 pairs are whole.
    name = "accumulated_gradients_over_fits"
    assert both(reports, name) == [-1.0, -2.0, -2.0, -3.0]


def test_a_plateau_of_another_worker_changes_no_rate(reports):
    # The chief's loss falls in all four epochs of three steps; the other's
    # rises, and its callback halves the rate that it has.
    assert both(reports, "rate_lowered_by_a_plateau") == [-12.0, 1.0]


def test_a_rate_counts_if_the_chief_has_set_it(reports):
    # It sets 1/2, 1/4 and 1/8 before the first steps, and keeps the last.
    expected = -(1 / 2 + 1 / 4 + 4 / 8)
    assert both(reports, "rate_set_by_one_worker") == expected


def test_weights_that_one_worker_sets_in_an_epoch_are_an_error(reports):
    error = both(reports, "weights_set_by_one_worker_within_an_epoch")
    assert "/job:worker/task:1" in error
    assert "dense/kernel" in error


def test_weights_that_the_chief_sets_after_an_epoch_count(reports):
    # It sets 10, of which two steps are left.
    assert both(reports, "weights_set_at_the_end_of_an_epoch") == 8.0


def test_who_has_failed_follows_what_others_set_after_their_epochs(reports):
    name = "weights_set_while_another_worker_has_failed"
    assert both(reports, name) == 8.0


def test_models_of_equal_shapes_do_not_get_each_others_gradients(reports):
    # Three steps of the means of 1 and 2, and of 10 and 20.
    name = "two_models_of_equal_shapes_in_a_loop"
    assert both(reports, name) == [-4.5, -45.0]


def test_the_chief_may_read_and_evaluate_while_others_train(reports):
    chief, other = (r["the_chief_reads_and_evaluates_alone"] for r in reports)
    assert chief == [[-2.0, -3.0, -4.0], -5.0]
    assert other == [[], -5.0]


def test_a_step_leaves_no_thread_behind(reports):
    # TensorFlow's own bound of a collective's time is a thread for each, which
    # lives as long as that bound.
    for report in reports:
        few, many = report["many_steps"]
        assert many < few + 100
