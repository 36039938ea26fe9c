"""A second try is for waits alone, and is never silent."""

import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
PROGRAM = """
import pytest

class Waited(AssertionError):
    pass

tries = {}

def first(name):
    tries[name] = tries.get(name, 0) + 1
    return tries[name] == 1

@pytest.fixture(scope="module")
def cluster():
    if first("cluster"):
        raise Waited("no report in 90 s")

def test_in_a_fixture(cluster):
    pass

def test_waited_once():
    print("of the first try")
    if first("once"):
        raise Waited("worker-0 runs after 90 s")

def test_waits_always():
    raise Waited("worker-1 runs after 90 s")

def test_wrong_number():
    assert not first("wrong"), "Waited: is no class"
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    def run(program):
        directory = tmp_path_factory.mktemp("reruns")
        path = directory / "one_test.py"
        path.write_text(program)
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "tests.reruns", str(path)]
            + ["--reruns=1", "--only-rerun=^Waited", f"--rootdir={directory}"],
            capture_output=True,
            text=True,
            env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
            timeout=120,
        )

    return run


def test_only_what_waited_is_tried_again(run):
    ended = run(PROGRAM)
    assert ended.returncode == 1
    assert "2 failed, 2 passed, 3 rerun" in ended.stdout
    for line in (
        "test_in_a_fixture: one_test.Waited: no report in 90 s; then passed",
        "test_waited_once: one_test.Waited: worker-0 runs after 90 s; then pas",
        "test_waits_always: one_test.Waited: worker-1 runs after 90 s; failed",
        "-- Captured stdout call --\nof the first try",
    ):
        assert line in ended.stdout, ended.stdout
    assert "FLAKY one_test.py::test_wrong_number" not in ended.stdout


@pytest.mark.parametrize(("number", "status"), [(3, 0), (4, 1)])
def test_four_second_tries_refuse(run, number, status):
    program = PROGRAM.partition("@pytest.fixture")[0] + (
        f"@pytest.mark.parametrize('n', range({number}))\n"
        "def test_waited_once(n):\n"
        "    if first(n):\n"
        "        raise Waited('no report in 90 s')\n"
    )
    ended = run(program)
    assert f"{number} passed, {number} rerun" in ended.stdout
    assert ended.returncode == status
