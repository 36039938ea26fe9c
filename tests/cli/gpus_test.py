"""GPUs of a machine that has some, which this one need not."""

import os
import types

import pytest

from tfdist.cli import gpus
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
        ("1,0", ["1", "0"]),
        ("GPU-8932f937, MIG-1", ["GPU-8932f937", "MIG-1"]),
        ("1,-1,0", ["1"]),
        # There are two.
        ("0,7,1", ["0"]),
        # Of Slurm, for a job without GPUs.
        ("NoDevFiles", []),
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
    # Where no GPU is known, neither is their number.
    assert gpus.visible({gpus.VARIABLE: "7"}, tmp_path) == ["7"]
    (tmp_path / "proc/driver/nvidia/gpus/0000:01:00.0").mkdir(parents=True)
    assert gpus.visible({}, tmp_path) == ["0"]
    assert gpus.visible({gpus.VARIABLE: "7"}, tmp_path) == []


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
    found = gpus.shares(tasks(ps=1, helper=1, worker=2), names, 2)
    assert found == {"ps 0": [], **{k: list(v) for k, v in expected.items()}}


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (2, ["0", "1", "0", "1"]),
        (3, ["0", "1", "2", "0"]),
        (4, ["01", "23", "01", "23"]),
        (5, ["01", "23", "40", "12"]),
    ],
)
def test_workers_who_may_come_later_and_the_evaluator_take_none_away(
    number, expected
):
    """All run the same program, and need as many GPUs."""
    names = [str(k) for k in range(number)]
    found = gpus.shares(tasks(worker=3, evaluator=1), names, 2)
    of_tasks = ["worker 0", "worker 1", "evaluator 0", "worker 2"]
    assert ["".join(found[label]) for label in of_tasks] == expected


@pytest.mark.parametrize("extra", [{}, {gpus.VARIABLE: "0"}])
def test_the_launcher_divides_them_unless_the_user_has(monkeypatch, extra):
    said = []
    report = types.SimpleNamespace(say=said.append)
    monkeypatch.setattr(gpus, "visible", lambda environ: ["4", "5"])
    found = gpus.environments(
        os.environ, extra, tasks(ps=1, worker=2), 2, report
    )
    hidden = dict.fromkeys(gpus.VARIABLES, "")
    if extra:
        # What is for all tasks is for servers, too.
        del hidden[gpus.VARIABLE]
        assert (found, said) == ({"ps 0": hidden}, [])
        return
    assert found == {
        "ps 0": hidden,
        "worker 0": {gpus.VARIABLE: "4"},
        "worker 1": {gpus.VARIABLE: "5"},
    }
    assert "of worker 0: 4; worker 1: 5; of other tasks, none" in said[0]


def test_servers_see_none_where_the_launcher_has_found_none(monkeypatch):
    monkeypatch.setattr(gpus, "visible", lambda environ: [])
    found = gpus.environments({}, {}, tasks(ps=1, worker=2), 2, None)
    assert found == {"ps 0": dict.fromkeys(gpus.VARIABLES, "")}
