"""Two workers that average in pairs, and end at the mean of all updates."""

import numpy as np
import pytest

from tests.all_reduce import reports as reports_lib
from tests.peers import programs

pytestmark = pytest.mark.smoke

STEPS = 40


@pytest.fixture(scope="module")
def reports(zygote, tmp_path_factory):
    """Of both workers, by program."""
    return reports_lib.of_two_workers(
        zygote,
        tmp_path_factory,
        "tests.peers.gossip_main:run",
        modules={"peers.gossip_programs": ("constant_gradients",)},
    )


def test_all_end_at_the_mean_of_all_updates(reports):
    found = [report["constant_gradients"] for report in reports]
    total = sum(STEPS * programs.gradient(worker).ravel() for worker in (0, 1))
    assert found[0]["after"] == found[1]["after"]
    for one in found:
        assert one["after"] == one["replica"]
        np.testing.assert_allclose(
            one["after"], -programs.RATE * total / 2, rtol=1e-12
        )
    mine, theirs = (
        one["counts"][f"/job:worker/task:{1 - worker}"]
        for worker, one in enumerate(found)
    )
    for one, other in ((mine, theirs), (theirs, mine)):
        assert one["begun"] == one["ended"] == other["served"] > 0
        assert one["given_up"] == one["declined"] == one["foreign"] == 0
    assert mine["gained"] == pytest.approx(-theirs["gained"], rel=1e-9)
