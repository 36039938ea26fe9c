"""GPUs of a machine that has some, which this one need not."""

import os
import types

import pytest

from tfdist.cli import gpus
from tfdist.cli import launch
from tfdist.cli.local_cluster import LocalTask


def tasks(**counts):
    return [
        LocalTask(job, index, "", "")
        for job, count in counts.items()
        for index in range(count)
    ]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("2,0", ["2", "0"]),
        ("GPU-8932f937, MIG-1", ["GPU-8932f937", "MIG-1"]),
        ("1,-1,0", ["1"]),
        ("", []),
        (None, ["0", "1"]),
    ],
)
def test_gpus_are_those_that_cuda_would_see(tmp_path, value, expected):
    (tmp_path / "dev").mkdir()
    for name in ("nvidia0", "nvidia3", "nvidiactl", "nvidia-uvm"):
        (tmp_path / "dev" / name).touch()
    environ = {} if value is None else {gpus.VARIABLE: value}
    assert gpus.visible(environ, tmp_path) == expected


def test_gpus_that_nobody_has_used_are_known_to_the_driver(tmp_path):
    assert gpus.visible({}, tmp_path) == []
    (tmp_path / "proc/driver/nvidia/gpus/0000:01:00.0").mkdir(parents=True)
    assert gpus.visible({}, tmp_path) == ["0"]


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (1, {"worker 0": "0", "worker 1": "0", "helper 0": "0"}),
        (2, {"worker 0": "0", "worker 1": "1", "helper 0": "0"}),
        (3, {"worker 0": "0", "worker 1": "1", "helper 0": "2"}),
        (7, {"worker 0": "01", "worker 1": "23", "helper 0": "45"}),
    ],
)
def test_tasks_that_compute_share_gpus(number, expected):
    names = [str(k) for k in range(number)]
    found = gpus.shares(tasks(ps=1, helper=1, worker=2), names)
    assert found == {"ps 0": [], **{k: list(v) for k, v in expected.items()}}


@pytest.mark.parametrize("extra", [{}, {gpus.VARIABLE: "0"}])
def test_the_launcher_divides_them_unless_the_user_has(monkeypatch, extra):
    said = []
    report = types.SimpleNamespace(say=said.append)
    monkeypatch.setenv(gpus.VARIABLE, "4,5")
    found = launch._gpus(os.environ, extra, tasks(ps=1, worker=2), report)
    if extra:
        assert (found, said) == ({}, [])
        return
    assert [each[gpus.VARIABLE] for each in found.values()] == ["", "4", "5"]
    assert "of worker 0: 4; worker 1: 5; of other tasks, none" in said[0]
