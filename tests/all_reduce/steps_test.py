"""One training step of two workers: exact means, or a clear refusal."""

import numpy as np
import pytest

from tests.all_reduce import reports as reports_lib

pytestmark = pytest.mark.nightly

# Gradients 1, 2, 4 of one worker, 8 and 16 of the other: means 4.5, 9, 4.
SUM = -(4.5 + 9 + 4)
RIGHT = {
    # What the batches add up to; steps; the weights after each of them.
    "state_assigned_in_a_step": [-SUM, 3.0, -(4.5 + 13.5 + 17.5)],
    "a_step_without_an_optimizer": -SUM,
    "a_loop_without_an_optimizer": SUM,
    # One step, two in the loop, and three epochs of one.
    "a_loop_without_a_step_on_one_worker": [-6.0, 6],
    "a_model_that_one_worker_keeps": -3.0,
    # 60000 as float16 has it, times 2 ** -10.
    "float16_variables": -60000 / 1024,
}
REFUSED = {
    "a_reduction_of_the_users_own": ["NotImplementedError", "`all_reduce`"],
    "an_optimizers_step_outside_of_a_step": ["ProgramError", "strategy.run"],
    "other_models": ["ModelMismatchError", "task:1", "number 0", "kernel"],
    "other_optimizers": ["ValueError", "task:1", "nesterov"],
    "weights_set_on_one_worker_of_a_loop": [
        "DifferentValuesError",
        "task:1",
        "kernel:0 (1 of 2 variables)",
    ],
}
# Steps of the user's own.
OWN = {
    # The second `fit` ends after an epoch, when the chief's callback says so.
    "a_decorated_step": 2 * SUM,
    # Weights -4.5, -13.5, -17.5, and on from there.
    "a_teacher": [-17.5, -12.6875, -35.0, -29.5859375],
    # The first skips a step, and halves its scale.
    "scaled_steps_of_two_optimizers": [-3.0, 3, 4, 512.0, 1024.0],
}
OTHERS = (
    "rows_of_a_large_table",
    "a_batch_with_nan",
    "dropout_masks",
    "many_steps",
)


@pytest.fixture(scope="module")
def reports(zygote, tmp_path_factory):
    """Of both workers, by program."""
    return reports_lib.of_two_workers(
        zygote,
        tmp_path_factory,
        "main:run",
        modules={
            "all_reduce.steps": [*RIGHT, *REFUSED, *OTHERS],
            "all_reduce.programs": ["one_worker_overflows_in_float16"],
            "all_reduce.own_steps": [*OWN, "a_normalized_kernel"],
        },
    )


@pytest.mark.parametrize("name", RIGHT)
def test_a_step_is_that_of_the_mean(reports, name):
    assert reports_lib.both(reports, name) == RIGHT[name]


@pytest.mark.parametrize("name", OWN)
def test_steps_of_the_users_own_are_those_of_all(reports, name):
    assert reports_lib.both(reports, name) == OWN[name]


def test_workers_normalize_a_kernel_alike(reports):
    found = reports_lib.both(reports, "a_normalized_kernel")
    assert found["norm"] == pytest.approx(1.0, rel=0.01)


@pytest.mark.parametrize("name", REFUSED)
def test_a_step_that_cannot_be_one_of_all_is_refused(reports, name):
    for report in reports:
        for part in REFUSED[name]:
            assert part in report[name]


def test_batches_with_nan_are_left_out_by_all_alike(reports):
    # Means of those that are finite: 4.5, 16, 4, none, 2; momentum 0.5.
    weight = velocity = 0.0
    for mean in (4.5, 16.0, 4.0, 2.0):
        velocity = 0.5 * velocity - mean
        weight += velocity
    for report in reports:
        assert report["a_batch_with_nan"] == [weight, 4, 2]


@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("float32", 1),
        ("float64", 1),
        ("mixed_float16", 1),
        ("compiled", 1),
        ("clipped", 1),
        ("accumulated", 0.5),
    ],
)
def test_gradients_of_a_large_table_travel_as_rows(reports, name, share):
    # Occurrences of ids 0 to 9, 30000, 65000 and 69999 per step, halved where
    # both workers have a batch that counts; nearly all ids occur once more on
    # one worker, or on both.
    once = np.array([0.5] * 10 + [1, 0.5, 0.5])
    extra = [0.5, 0.5, 0.5 + 1.5, 1, 1, 0.5 + 1, 0, 3, 2, 0, 0, 0, 0.5]
    first, second = (
        report["rows_of_a_large_table"][name] for report in reports
    )
    assert first["rows"] == second["rows"]
    right = -share * (once + extra)
    np.testing.assert_array_equal(first["rows"], np.tile(right[:, None], 4))
    assert first["sum"] == -share * 4 * (60_000 + sum(extra))
    size = 8 if name == "float64" else 4
    # 5 numbers a row, a power of two of rows, and a tail of 8 numbers.
    tail = 8 * 4
    rows = [2, 4, 1, 2, None, 1]
    sent = [n for one in first["sent"] for n in one]
    for number, n in zip(rows, sent, strict=True):
        whole = 70_000 * 4 * size  # The table; of two workers each sends half.
        assert n == tail + (whole if number is None else number * 5 * size)


def test_workers_draw_other_dropout_masks(reports):
    first, second = (report["dropout_masks"] for report in reports)
    assert len(first) == len(second)
    assert first != second


def test_workers_hold_the_same_bits_after_many_uneven_steps(reports):
    first, second = (report["many_steps"] for report in reports)
    assert first["iterations"] == second["iterations"] == 200
    assert first["bits"] == second["bits"]
    assert [first["dropped"], second["dropped"]] == [1, 1]


def test_an_overflow_of_one_worker_halves_the_scale_of_all(reports):
    # One of four steps, which is no update.
    report = reports_lib.both(reports, "one_worker_overflows_in_float16")
    assert report["scale"] == 512.0
    assert report["iterations"] == 3
    assert report["finite"]
