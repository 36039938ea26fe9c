"""Two workers whose replicas end at the exact sum of all updates."""

import pytest

from tests.all_reduce import reports as reports_lib
from tests.peers import programs

pytestmark = pytest.mark.smoke

PROGRAMS = ("constant_gradients",)
STEPS = 40


@pytest.fixture(scope="module")
def reports(zygote, tmp_path_factory):
    """Of both workers, by program."""
    return reports_lib.of_two_workers(
        zygote,
        tmp_path_factory,
        "tests.peers.main:run",
        modules={"peers.programs": PROGRAMS},
        compression="threshold(tau=0.0625)",
    )


def test_each_replica_ends_at_the_sum_of_what_all_have_sent(reports):
    found = [report["constant_gradients"] for report in reports]
    total = sum(
        STEPS * programs.gradient(worker).ravel() - one["residual"]
        for worker, one in enumerate(found)
    )
    for one in found:
        assert one["replica"] == (-programs.RATE * total).tolist()
        assert one["after"] == one["replica"]
    for worker, one in enumerate(found):
        counts, other = one["counts"], f"/job:worker/task:{1 - worker}"
        assert counts["sent"] == counts["delivered"][other]
        theirs = found[1 - worker]["counts"]
        assert counts["applied"][other] == theirs["sent"]
        assert counts["lost"][other] == counts["missed"][other] == 0
