"""Two workers that average every two steps without servers.

Gradients are the data, the rate is 1: a step of one batch takes 1 off. Means
are weighted by the batches of a period.
"""

import pytest

from tests.all_reduce import reports as reports_lib
from tests.multi_process.conftest import cluster
from tests.multi_process.conftest import zygote

__all__ = ["cluster", "zygote"]

pytestmark = pytest.mark.nightly

# Calls of `fit` that all workers end at the same point: weight, steps.
ENDS = {
    # After two epochs, of three steps of the chief and two of the other.
    "the_chief_stops_after_an_epoch": [-6.0, 6, 2],
    # It makes two steps, and the other one more period.
    "the_chief_stops_within_an_epoch": [-4.0, 4],
    "another_worker_stops": [-6.0, 6],
    # The chief's best is its first epoch of two steps; it stops after two.
    "best_weights_are_restored": [-2.0, 4],
    "fewer_epochs_on_one_worker": [-6.0, 6],
    "failed_beside_a_monitor": [-5.0, 5],
    # Four steps at the rate 1, and two at a half.
    "another_optimizer_after_an_exception": [-5.0, 2],
    # Two steps of one worker; two steps of 10 within it, two after it.
    "fit_before_the_first_step": [-2.0, -40.0],
    # Two steps of gradients 2 and 4; and what it makes of 7, which is 1.
    "the_chief_alone_adapts": [-6.0, -6.0],
}
MODULES = {
    "all_reduce.programs": (
        "rate_lowered_by_a_plateau",
        "rate_set_by_one_worker",
    ),
    "all_reduce.fits": [
        name for name in ENDS if name != "the_chief_stops_after_an_epoch"
    ],
    "averaging.ring_programs": (
        "the_chief_stops_after_an_epoch",
        "one_worker_raises",
        "validation_of_the_chief_alone",
        "weights_set_by_one_worker",
        "the_chief_reads_alone",
        "another_optimizer_in_fit",
        "another_optimizer_in_a_loop",
        "another_rate_in_fit",
        "another_rate_in_a_loop",
        "two_optimizers_alternating",
    ),
}


@pytest.fixture(scope="module")
def reports(zygote, tmp_path_factory):
    """Of both workers, by program."""
    return reports_lib.of_two_workers(
        zygote, tmp_path_factory, "main:run", modules=MODULES, period=2
    )


def test_each_worker_decides_for_itself_where_it_is_to(
    zygote, tmp_path_factory
):
    names = ("another_worker_stops", "the_chief_stops_after_an_epoch")
    found = reports_lib.of_two_workers(
        zygote,
        tmp_path_factory,
        "main:run",
        modules={
            "all_reduce.fits": names[:1],
            "averaging.ring_programs": names[1:],
        },
        period=2,
        decisions="each",
    )
    # The other one stops after a step, beside the chief's first two; then come
    # the chief's last four.
    weight, _ = both(found, names[0])
    assert weight == pytest.approx(-(2 * 2 + 1 * 1) / 3 - 4, rel=1e-6)
    # The chief stops after six steps, in epochs of three, beside the other's
    # four in epochs of two. That one goes on for three more epochs.
    chief, other = (report[names[1]] for report in found)
    assert (chief[0], chief[2]) == (-12.0, 2)
    assert (other[0], other[2]) == (-12.0, 5)


def both(reports, name):
    return reports_lib.both(reports, name)


@pytest.mark.parametrize("name", ENDS)
def test_all_workers_end_as_one(reports, name):
    assert both(reports, name) == ENDS[name]


def test_the_chief_may_validate_alone(reports):
    chief, other = (r["validation_of_the_chief_alone"] for r in reports)
    # The loss is the weight, after two steps and after four.
    assert chief == [-4.0, [-2.0, -4.0]]
    assert other == [-4.0, []]


@pytest.mark.parametrize("where", ["fit", "a_loop"])
def test_another_optimizer_of_one_worker_is_an_error(reports, where):
    for momentum, report in zip(("0.0", "0.5"), reports, strict=True):
        error = report[f"another_optimizer_in_{where}"]
        assert "/job:worker/task:1 trains with another optimizer" in error
        assert f'"momentum": {momentum}' in error


@pytest.mark.parametrize("where", ["fit", "a_loop"])
def test_the_chiefs_rate_counts_from_the_first_step(reports, where):
    assert both(reports, f"another_rate_in_{where}") == -4.0


def test_a_plateau_of_another_worker_lasts_until_the_next_exchange(reports):
    # Of three steps of the chief and two of the other in each of four epochs
    # come six exchanges, each third of them of the chief's steps alone. The
    # other's callback halves its rate after the second and the third epoch,
    # and each exchange brings the chief's again.
    expected = -(2 + 2 + 2 + (2 + 1) / 2 + (2 + 1) / 2 + 2)
    assert both(reports, "rate_lowered_by_a_plateau") == [expected, 1.0]


def test_the_chiefs_rate_counts_after_each_exchange(reports):
    chief = 1 / 2 + 1 / 4, 1 / 8 + 1 / 8, 1 / 8 + 1 / 8
    # In its first, third and fifth step the chief's.
    other = 1 / 2 + 1 / 2, 1 / 4 + 1 / 16, 1 / 32 + 1 / 64
    expected = -(sum(chief) + sum(other)) / 2
    assert both(reports, "rate_set_by_one_worker") == expected


def test_after_an_exception_on_one_worker_the_next_fit_is_of_all(reports):
    # It raises after its third step, which counts; then six more of all.
    weight, _ = both(reports, "one_worker_raises")
    expected = -(2 + (2 * 2 + 1 * 1) / 3 + 2) - 6
    assert weight == pytest.approx(expected, rel=1e-6)


def test_weights_that_one_worker_sets_are_the_chiefs_after_fit(reports):
    # The chief has seen two exchanges of two steps.
    assert both(reports, "weights_set_by_one_worker") == -4.0


def test_the_chief_may_read_and_evaluate_while_others_train(reports):
    chief, other = (report["the_chief_reads_alone"] for report in reports)
    # What it was given last: an exchange follows two steps.
    assert chief == [[-2.0, -2.0, -4.0, -4.0], -6.0]
    assert other == [[], -6.0]


def test_optimizers_that_take_turns_are_refused(reports):
    error = both(reports, "two_optimizers_alternating")
    assert "one optimizer trains at a time" in error


def test_training_with_checkpoints_ends_and_is_found_again(cluster):
    running = cluster(num_ps=0, num_workers=2)
    target = "averaging.ring_programs:train_saved"
    for epochs, resumed in ((1, 0), (2, 1), (2, 2)):
        reports = reports_lib.trained(running, target, "saved", epochs)
        # Whoever has fewer batches follows the other's last period.
        assert both(reports, "weight") == -3.0 * epochs
        assert both(reports, "resumed") == resumed
