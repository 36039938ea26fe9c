"""Each optimizer and each setting of Keras, on two workers, is Keras's own."""

import pytest

from tests.all_reduce import optimizer_table
from tests.all_reduce import reports as reports_lib

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def reports(zygote, tmp_path_factory):
    """Of both workers, by name."""
    return reports_lib.of_two_workers(
        zygote,
        tmp_path_factory,
        "optimizer_table:run",
        names=optimizer_table.NAMES,
    )


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", optimizer_table.NAMES)
def test_three_uneven_fits_are_those_of_one_process(reports, name):
    # In float64, and all workers hold the same bits: `fit` compares them.
    assert reports_lib.both(reports, name) < 1e-12
