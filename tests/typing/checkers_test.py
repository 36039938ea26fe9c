"""What editors and type checkers make of tfdist."""

import ast
import json
import pathlib
import shutil
import subprocess
import sys

import pytest

import tfdist

pytestmark = pytest.mark.nightly

HERE = pathlib.Path(__file__).parent
ROOT = pathlib.Path(tfdist.__file__).parents[1]


FILES = ("right_uses.py", "wrong_uses.py")


def complaints_of_pyright(folder):
    """Triples of file, line number and message of errors."""
    config = folder / "pyrightconfig.json"
    config.write_text(
        json.dumps({"extraPaths": [str(ROOT)], "include": list(FILES)})
    )
    result = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", "-p", str(config)]
        + ["--pythonpath", sys.executable],
        capture_output=True,
        text=True,
        timeout=250,
    )
    return [
        (
            pathlib.Path(one["file"]).name,
            one["range"]["start"]["line"] + 1,
            one["message"],
        )
        for one in json.loads(result.stdout)["generalDiagnostics"]
        if one["severity"] == "error" and one["file"].startswith(str(folder))
    ]


def complaints_of_mypy(folder):
    """Triples of file, line number and message of errors."""
    result = subprocess.run(
        [sys.executable, "-m", "mypy", "--ignore-missing-imports"]
        + ["--check-untyped-defs", "--no-error-summary", "--output=json"]
        + [f"--cache-dir={folder}/cache", *FILES],
        capture_output=True,
        text=True,
        timeout=250,
        cwd=folder,
        env={"MYPYPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
    )
    assert not result.stderr, result.stderr
    found = [json.loads(line) for line in result.stdout.splitlines()]
    return [
        (one["file"], one["line"], one["message"])
        for one in found
        if one["severity"] == "error" and one["file"] in FILES
    ]


CHECKERS = {"pyright": complaints_of_pyright, "mypy": complaints_of_mypy}


@pytest.fixture(scope="module", params=CHECKERS)
def complaints(request, tmp_path_factory):
    """By file, pairs of line number and message; where nothing configures."""
    folder = tmp_path_factory.mktemp(request.param)
    for name in FILES:
        shutil.copy(HERE / name, folder)
    found = CHECKERS[request.param](folder)
    return {
        name: [one[1:] for one in found if one[0] == name] for name in FILES
    }


def test_right_uses_are_accepted(complaints):
    assert complaints["right_uses.py"] == []


def test_each_wrong_use_is_caught(complaints):
    lines = (HERE / "wrong_uses.py").read_text().splitlines()
    wrong = {k for k, line in enumerate(lines, 1) if "# wrong" in line}
    assert len(wrong) == 11
    assert {number for number, _ in complaints["wrong_uses.py"]} == wrong


def test_right_uses_name_everything_public():
    used = (HERE / "right_uses.py").read_text()
    names = [name for name in tfdist.__all__ if not name.startswith("_")]
    for name in names:
        assert f"tfdist.{name}" in used or f"from tfdist import {name}" in used


def test_the_stub_says_what_is_there():
    stub = pathlib.Path(tfdist.__file__).with_suffix(".pyi")
    homes = {}
    for node in ast.parse(stub.read_text()).body:
        if isinstance(node, ast.ImportFrom):
            (name,) = node.names
            assert name.asname == name.name, "a stub exports what is renamed"
            homes[name.name] = node.module
        elif isinstance(node, ast.AnnAssign):
            homes[node.target.id] = "tfdist"
    assert set(homes) == set(tfdist.__all__)
    for name, home in homes.items():
        found = getattr(tfdist, name)
        if home != "tfdist":
            assert getattr(sys.modules[home], name) is found


def test_what_checkers_read_is_packed():
    package = pathlib.Path(tfdist.__file__).parent
    assert (package / "py.typed").exists()
    setup = (ROOT / "setup.py").read_text()
    assert '"tfdist": ["py.typed", "*.pyi"]' in setup
