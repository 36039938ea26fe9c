"""Two workers that train in all ways of Keras's: sums of exact updates."""

import pytest

from tests.all_reduce import reports as reports_lib
from tests.peers import programs

pytestmark = pytest.mark.nightly

PROGRAMS = (
    "accumulated_gradients",
    "accumulated_over_fits",
    "loop_before_fit",
    "set_after_an_exception",
    "loss_scale",
    "monitored",
    "another_optimizer",
    "heads_in_another_order",
    "models_in_another_order",
    # Last: from here on first steps have other numbers on one worker.
    "stopped_before_unfreezing",
)
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


def test_steps_that_accumulate_send_nothing(reports):
    first, second = (report["accumulated_gradients"] for report in reports)
    assert first["replica"] == second["replica"] == sum_of(3, 3)
    assert first["sent"] == second["sent"] == 3


def test_gradients_to_be_applied_stay_with_their_worker(reports):
    first, second = (report["accumulated_over_fits"] for report in reports)
    assert first["replica"] == second["replica"] == sum_of(3, 2)
    assert (first["sent"], second["sent"]) == (3, 2)


def test_what_a_loop_has_sent_is_applied_once_when_fit_begins(reports):
    """The chief's values have it, and some of it has not come by then."""
    for report in reports:
        replica = report["loop_before_fit"]["replica"]
        assert replica == sum_of(30 + 2, 1 + 2)


def test_a_first_step_sees_all_updates_of_optimizers_before(reports):
    for report in reports:
        assert report["another_optimizer"] == {"first": -81.0}


def test_what_is_set_after_an_exception_comes_after_all_updates(reports):
    for report in reports:
        replica = report["set_after_an_exception"]["replica"]
        assert replica == sum_of(2, 2)


def test_a_stop_before_an_unfreezing_is_an_error_and_no_hang(reports):
    """The script goes on, and its processes end together."""
    for report in reports:
        assert report["stopped_before_unfreezing"] == "ProgramError"


def test_steps_that_overflow_send_nothing(reports):
    first, second = (report["loss_scale"] for report in reports)
    assert first["replica"] == second["replica"] == sum_of(4, 3)
    assert second["sent"] == 3


def test_what_comes_while_a_worker_waits_at_the_end_is_in_its_summary(reports):
    for summary, in_steps, counted in reports[0]["monitored"]:
        assert summary == counted
        assert in_steps < summary


@pytest.mark.parametrize("program", PROGRAMS[-3:-1])
def test_updates_never_reach_other_variables(reports, program):
    for report in reports:
        assert report[program].startswith("ValueError: Optimizer")
        assert "in the same order" in report[program]
