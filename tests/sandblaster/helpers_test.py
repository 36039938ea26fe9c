"""L-BFGS on models of which some layers lie on other machines."""

import json
import os
import re
import signal

import numpy as np
import pytest

from tests.cli.launched import Launched
from tests.sandblaster import helper_tasks
from tests.sandblaster import tasks

pytestmark = pytest.mark.nightly

TRAIN = "tests.sandblaster.helper_tasks:train"
PORTIONS = 16  # 8 for each of 2 workers.


def test_a_model_on_helpers_is_the_model_on_one_machine(cluster):
    made = cluster(num_ps=2, num_workers=2, num_helpers=4)
    made.start_servers()
    made.start_helpers()
    workers = made.start_workers(TRAIN)
    made.finish(240.0)
    plain = workers[0].report()["found"][0]
    losses = plain["numbers"][0]["loss"]
    assert losses == sorted(set(losses), reverse=True)
    for k, worker in enumerate(workers):
        report = worker.report()
        # To the bit.
        assert report["found"] == [plain] * 2
        np.testing.assert_allclose(report["eager"], losses[:3], rtol=1e-6)
        for where, devices in zip(
            helper_tasks.PLACEMENTS, report["devices"], strict=True
        ):
            for path, device in devices.items():
                home = f"/job:worker/replica:0/task:{k}"
                if where:
                    # Each worker has two of its own.
                    number = 2 * k + where[path.split("/")[0]]
                    home = f"/job:helper/replica:0/task:{number}"
                assert device == f"{home}/device:CPU:0", path


class Scene:
    """A launched cluster whose two workers hold in a portion.

    Worker 0 is the chief. Each has a helper.
    """

    def __init__(self, run, directory):
        self.run = run
        self._directory = directory
        self.pids = {
            label: int(run.expect(rf"{label}: pid (\d+)")[1])
            for label in ("ps 1", "helper 0", "helper 1")
        }
        self.wait_for_holding(0, 1)

    def wait_for_holding(self, *workers):
        """Waits until workers hold, which may be in any order."""
        waiting = set(workers)
        while waiting:
            waiting.discard(int(self.run.expect(r"\[worker (\d)\] holding")[1]))

    def hold(self, worker):
        """Lets a worker hold from now on."""
        (self._directory / f"hold-{worker}").touch()

    def go_on(self, worker):
        """Lets a worker go on."""
        (self._directory / f"hold-{worker}").unlink()

    def reports(self):
        """Waits for the end of the run; returns what each worker has found."""
        status, text = self.run.finish()
        assert status == 0, text
        found = [json.loads(one) for one in re.findall(r"found (.*)", text)]
        for label in ("helper 0", "helper 1"):
            assert f"{label} is done" in text
        return sorted(found, key=lambda report: report["worker"])


@pytest.fixture
def scene(tmp_path):
    """A `Scene`."""
    for worker in (0, 1):
        (tmp_path / f"hold-{worker}").touch()
    flags = ["--num_workers=2", "--helpers_per_worker=1", "--grace_seconds=120"]
    program = [helper_tasks.__file__, tmp_path]
    with Launched("--num_ps=2", *flags, *program) as run:
        yield Scene(run, tmp_path)


def check(reports):
    """Checks that both workers have ended where an undisturbed one does."""
    losses, weights = helper_tasks.undisturbed()
    assert len(reports) == 2
    for k, report in enumerate(reports):
        # It may have begun late, or again, or have left some out.
        assert report["losses"] == sorted(report["losses"], reverse=True)
        for loss in report["losses"]:
            assert np.isclose(losses, loss, rtol=1e-9).any()
        np.testing.assert_allclose(report["losses"][-1], losses[-1], rtol=1e-9)
        np.testing.assert_allclose(report["weights"], weights, atol=1e-6)
        assert set(report["examples"]) == {tasks.EXAMPLES}
        assert set(report["devices"][2:4]) == {
            f"/job:helper/replica:0/task:{k}/device:CPU:0"
        }
    assert reports[0]["weights"] == reports[1]["weights"]


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    ("victim", "number"),
    [(1, signal.SIGKILL), (1, signal.SIGSTOP), (0, signal.SIGKILL)],
)
def test_a_worker_whose_helper_is_gone_begins_again(scene, victim, number):
    pid = scene.pids[f"helper {victim}"]
    os.kill(pid, number)
    scene.go_on(victim)
    scene.run.expect(
        rf"worker {victim} exited with status 1: \S*HelperLostError: Helper "
        rf"/job:helper/task:{victim} at \S+ (is gone|was started again)"
    )
    if number == signal.SIGSTOP:
        os.kill(pid, signal.SIGCONT)
    # The other one still holds: it is the same evaluation.
    scene.hold(victim)
    scene.wait_for_holding(victim)
    for worker in (0, 1):
        scene.go_on(worker)
    reports = scene.reports()
    check(reports)
    if victim == 1:
        counted = [one["counted"] for one in reports[0]["counts"].values()]
        assert sum(counted) == PORTIONS * sum(reports[0]["evaluations"])
        assert counted[1] >= 2


@pytest.mark.usefixtures("float64")
def test_a_server_that_dies_takes_nothing_on_helpers_with_it(scene):
    os.kill(scene.pids["ps 1"], signal.SIGKILL)
    for worker in (0, 1):
        scene.go_on(worker)
    for _ in range(2):
        scene.run.expect(r"goes on after [\d.]+ s without /job:ps/task:1")
    check(scene.reports())
