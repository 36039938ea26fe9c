"""A stage that fails or hangs ends neither the night nor its table."""

import itertools
import json
import subprocess

from absl import app
from absl.testing import flagsaver
import pytest

from tests import nightly_run
from tests.keras_programs import columns


def test_a_failure_and_a_hang_are_told_apart(tmp_path):
    # A background job of a shell ignores SIGINT.
    program = (
        "import signal, sys, time;"
        "signal.signal(signal.SIGINT, signal.default_int_handler);"
        "print('began', flush=True); {}"
    )

    def run(body, minutes):
        arguments = ["-c", program.format(body)]
        return nightly_run.run(arguments, minutes, tmp_path / "log")

    failed = run("print('== 1 failed =='); sys.exit(3)", 1)
    assert (failed.status, failed.last) == (3, "1 failed")
    hung = run("time.sleep(100)", 2 / 60)
    # It is asked to end, and tells where it was.
    assert (hung.status, hung.last) == (None, "KeyboardInterrupt")


def test_every_stage_that_runs_beside_another_is_one():
    named = [
        *nightly_run._FIRST,
        *itertools.chain(*nightly_run._SIDE_BY_SIDE),
    ]
    assert len(set(named)) == len(named)
    assert set(nightly_run._STAGES) > set(named)
    assert nightly_run.stages_of(["chaos"]) == ["chaos"]
    tests = nightly_run.stages_of(["tests", "chaos"])
    assert tests[0] == "tests/in_process" and tests[-1] == "chaos"


def test_every_nightly_test_is_in_one_stage():
    in_process, _ = nightly_run._STAGES["tests/in_process"]
    for rooms, _ in nightly_run._WITH_PROCESSES.values():
        for room in rooms:
            assert (nightly_run._ROOT / "tests" / room).exists(), room
            assert f"--ignore=tests/{room}" in in_process


def test_every_column_of_programs_is_a_stage():
    assert set(nightly_run._COLUMNS) == set(columns.COLUMNS)


@pytest.fixture
def tree(tmp_path):
    """A work tree of git with one commit."""
    root = tmp_path / "tree"
    root.mkdir()
    (root / "code").write_text("1")
    for arguments in (["init", "-q"], ["add", "code"], ["commit", "-qm", "1"]):
        commit(root, *arguments)
    return root


def commit(root, *arguments):
    own = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", *own, *arguments], cwd=root, check=True)


def test_a_run_that_was_cut_off_goes_on(tree, tmp_path, capsys):
    passed = nightly_run.Outcome(0, 60.0, "3 passed")
    path = tmp_path / "outcomes.json"

    def record():
        return nightly_run.Record(path, tree)

    first = record()
    first.add("one", passed)
    first.add("two", nightly_run.Outcome(3, 30.0, "1 failed"))
    first.add("three", passed)
    # What is asked for and has passed; what failed runs again.
    assert nightly_run.kept(record(), ["one", "two"]) == {"one": passed}
    assert "Passed before" in capsys.readouterr().out
    # A stage that fails later has not passed.
    record().add("three", nightly_run.Outcome(None, 30.0, "began"))
    assert record().passed == {"one": passed}

    # Of a tree with changes nothing is kept, and nothing written.
    (tree / "code").write_text("2")
    first.add("four", passed)
    with pytest.raises(app.UsageError, match="without changes"):
        nightly_run.kept(record(), ["one"])
    commit(tree, "checkout", "-q", "code")
    assert record().passed == {"one": passed}
    (tree / "new").touch()
    assert record().commit is None
    # Nor is it of another commit.
    commit(tree, "add", "new")
    commit(tree, "commit", "-qm", "2")
    assert nightly_run.kept(record(), ["one"]) == {}
    # And a directory that is none of git's has no commit.
    assert nightly_run.commit_of(tmp_path) is None


def test_what_has_failed_runs_again(tree, tmp_path, monkeypatch, capsys):
    fails = f"import os, sys; sys.exit(not os.path.exists('{tmp_path}/mended'))"
    stages = {"a/1": "pass", "a/2": fails, "b": "pass"}
    made = {name: (["-c", code], 1) for name, code in stages.items()}
    for name, value in {
        "_ROOT": tree,
        "_STAGES": made,
        "_FIRST": ["b"],
        "_SIDE_BY_SIDE": [["a/1"]],
    }.items():
        monkeypatch.setattr(nightly_run, name, value)

    def run(stages="all", resume="false"):
        with flagsaver.as_parsed(
            directory=str(tmp_path / "out"), stages=stages, resume=resume
        ):
            status = nightly_run.main(["nightly_run"])
        lines = capsys.readouterr().out.splitlines()
        return status, [line.split(":")[0] for line in lines if "out/" in line]

    assert run() == (1, ["b", "a/1", "a/2"])
    (tmp_path / "mended").touch()
    assert run(stages="a", resume="true") == (0, ["a/2"])
    assert run(resume="true") == (0, [])
    # Without the flag what is asked for runs again.
    assert run(stages="b") == (0, ["b"])


def test_tests_that_have_passed_are_kept_for_their_commit(tmp_path):
    log = tmp_path / "tests_servers.log"
    arguments, _ = nightly_run._STAGES["tests/servers"]

    def options(commit, resume):
        with_them = nightly_run.with_tests_left_out(
            arguments, commit, log, resume
        )
        return [one for one in with_them if one not in arguments]

    path = tmp_path / "tests_servers.abc.passed"
    assert options("abc", False) == [f"--passed_before={path}"]
    path.touch()
    assert options("abc", True) and path.exists()
    assert options("abc", False) and not path.exists()
    # Of changes that are not committed nothing is known.
    assert options(None, False) == []
    column, _ = nightly_run._STAGES["keras_programs/async"]
    assert nightly_run.with_tests_left_out(column, "abc", log, True) == column


def test_the_last_line_names_all_that_failed(capsys):
    outcomes = {
        "one": nightly_run.Outcome(0, 60.0, "3 passed"),
        "two": nightly_run.Outcome(3, 30.0, "1 failed"),
        "three": nightly_run.Outcome(None, 30.0, "began"),
    }
    assert nightly_run.report(outcomes) == 1
    *table, last = capsys.readouterr().out.splitlines()
    assert json.loads(last)["failed"] == ["two", "three"]
    assert any("too long" in line for line in table)
    del outcomes["two"], outcomes["three"]
    assert nightly_run.report(outcomes) == 0
