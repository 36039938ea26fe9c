"""A layer may be in another process, on another machine."""

import json
import sys

import pytest

from tests import waits

pytestmark = pytest.mark.nightly


def test_a_layer_in_another_process():
    done = waits.run(
        [sys.executable, "-m", "tests.placement.remote_task"],
        capture_output=True,
        text=True,
        seconds=240,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.strip().splitlines()[-1])
    assert found["difference"] < 1e-6
    homes = dict(zip(found["paths"], found["devices"], strict=True))
    there = "/job:worker/replica:0/task:1/device:CPU:0"
    assert {d for p, d in homes.items() if "last" in p} == {there}
    assert len([p for p in homes if "last" in p]) == 4
    here = there.replace("task:1", "task:0")
    assert {d for p, d in homes.items() if "first" in p} == {here}
    assert "worker:1/CPU:0" in found["report"]
