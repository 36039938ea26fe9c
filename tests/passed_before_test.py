"""What has passed is not run again; what has failed or is new is."""

import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
PROGRAM = """
import os
import pytest

@pytest.fixture
def ends_badly():
    yield
    assert os.path.exists("mended")

def test_good():
    pass

def test_bad():
    assert os.path.exists("mended")

def test_bad_at_its_end(ends_badly):
    pass

def test_skipped():
    pytest.skip("here")
"""


@pytest.mark.parametrize(
    "more", [[], ["--numprocesses=2"]], ids=["", "two processes"]
)
def test_only_what_has_not_passed_runs_again(tmp_path, more):
    path = tmp_path / "one_test.py"
    path.write_text(PROGRAM)

    def run():
        options = ["-p", "tests.passed_before", "--passed_before=list", *more]
        return subprocess.run(
            [sys.executable, "-m", "pytest", f"--rootdir={tmp_path}"]
            + [str(path), *options],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
            timeout=120,
        )

    ended = run()
    assert "1 failed, 2 passed, 1 skipped, 1 error" in ended.stdout
    (tmp_path / "mended").touch()
    ended = run()
    assert ended.returncode == 0
    assert "2 passed, 1 skipped" in ended.stdout
    path.write_text(PROGRAM.partition("def test_skipped")[0])
    # Nothing is left, which is no failure.
    ended = run()
    assert ended.returncode == 0, ended.stdout
    assert "1 passed" not in ended.stdout
    path.write_text("def test_new(): pass\n")
    assert "1 passed" in run().stdout
