"""`tfdist top` looks at workers that train, from outside of their cluster."""

import pytest

from tests.waits import wait_until
from tfdist.cli import top
from tfdist.cluster import member_reader
from tfdist.cluster.member_table import MemberState

pytestmark = pytest.mark.nightly


def test_a_server_says_what_its_workers_do(cluster, capsys):
    cluster = cluster(num_ps=1, num_workers=2)
    address = cluster.address("ps", 0)
    with pytest.raises(member_reader.ReadError, match="nobody listens"):
        member_reader.read(address, 60.0)
    assert top.main(["--once", f"--ps={address}"]) == 1
    assert "nobody listens there" in capsys.readouterr().err

    cluster.start("ps", 0, "tasks:serve")
    workers = [
        cluster.start(
            "worker",
            k,
            "tasks:push_constants",
            steps=3,
            values=[1.0, 2.0],
            wait=True,
        )
        for k in range(2)
    ]
    for worker in workers:
        worker.expect("has made one step")
    found = []

    def have_told_their_first_step():
        found[:] = member_reader.read(address, 60.0)
        return [one.figures.steps for one in found] == [1, 1]

    wait_until(have_told_their_first_step, lambda: f"one step each: {found}")
    assert [one.state for one in found] == 2 * [MemberState.ALIVE]
    # The gradient of one weight, and the weight.
    assert all(one.figures.bytes_sent >= 4 for one in found)
    assert all(one.figures.bytes_received >= 4 for one in found)
    assert [one.word.epoch for one in found] == [0, 0]

    assert top.main(["--once", "--seconds=1.5", f"--ps={address}"]) == 0
    summary, _, *rows = capsys.readouterr().out.splitlines()
    assert summary.startswith("2 of 2 workers run; no step for ")
    for k, row in enumerate(rows):
        assert row.split()[:4] == ["worker", str(k), "runs", "1"]
    for worker in workers:
        cluster.tell(f"go on {worker.label}")
    cluster.finish()
