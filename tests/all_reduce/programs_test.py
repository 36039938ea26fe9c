"""Fine-tuning and mixed precision on two workers: equal bits, nobody dies."""

import pytest

from tests.all_reduce import reports as reports_lib

pytestmark = pytest.mark.nightly

PROGRAMS = ("fine_tuning", "one_worker_overflows_in_float16")


@pytest.fixture(scope="module")
def reports(zygote, tmp_path_factory):
    """Of both workers, by program."""
    return reports_lib.of_two_workers(
        zygote,
        tmp_path_factory,
        "main:run",
        modules={"all_reduce.programs": PROGRAMS},
    )


def test_layers_are_unfrozen_and_models_loaded_between_fits(reports):
    # Of 7 and 5 examples 3 and 2 whole batches: 3 steps of the frozen model,
    # then 6 of another optimizer, and 3 of the loaded one, which goes on.
    report = reports_lib.both(reports, "fine_tuning")
    assert report["iterations"] == 9
    assert all(report["moved"])


def test_an_overflow_of_one_worker_halves_the_scale_of_all(reports):
    # One of four steps, which is no update.
    report = reports_lib.both(reports, "one_worker_overflows_in_float16")
    assert report["scale"] == 512.0
    assert report["iterations"] == 3
    assert report["finite"]
