"""Two workers whose replicas end at the exact sum of all updates."""

import pytest

from tests.all_reduce import reports as reports_lib
from tests.peers import programs

pytestmark = pytest.mark.smoke

PROGRAMS = ("constant_gradients", "repaired")
STEPS = {"constant_gradients": 40, "repaired": 12}


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


def sum_of(name, found):
    """The sum of what both workers have sent."""
    total = sum(
        STEPS[name] * programs.gradient(worker).ravel() - one["residual"]
        for worker, one in enumerate(found)
    )
    return (-programs.RATE * total).tolist()


def test_a_replica_that_is_not_the_sum_of_its_updates_is_repaired(reports):
    found = [report["repaired"] for report in reports]
    for one in found:
        assert one["replica"] == sum_of("repaired", found)
    assert not found[0]["logs"]
    off, repairs, done = found[1]["logs"]
    assert "not the sum of its updates" in off
    assert "Repairing this replica from that of /job:worker/task:0" in repairs
    assert "has differed by at most 0.5." in done
    # What was in the other's parameters has come from it as well.
    for worker, one in enumerate(found):
        counts, other = one["counts"], f"/job:worker/task:{1 - worker}"
        assert counts["fetched"][other] == counts["missed"][other] == 0


def test_each_replica_ends_at_the_sum_of_what_all_have_sent(reports):
    found = [report["constant_gradients"] for report in reports]
    for one in found:
        assert one["replica"] == sum_of("constant_gradients", found)
        assert one["after"] == one["replica"]
    for worker, one in enumerate(found):
        counts, other = one["counts"], f"/job:worker/task:{1 - worker}"
        assert counts["sent"] == counts["delivered"][other]
        theirs = found[1 - worker]["counts"]
        assert counts["applied"][other] == theirs["sent"]
        assert counts["lost"][other] == counts["missed"][other] == 0
