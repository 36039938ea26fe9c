"""What editors and type checkers make of tfdist."""

import ast
import json
import pathlib
import shutil
import subprocess
import sys

import pytest

import tfdist

HERE = pathlib.Path(__file__).parent
ROOT = pathlib.Path(tfdist.__file__).parents[1]


def complaints_of_pyright(path):
    """Line numbers of errors."""
    config = path.parent / "pyrightconfig.json"
    config.write_text(
        json.dumps({"extraPaths": [str(ROOT)], "include": [path.name]})
    )
    result = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", "-p", str(config)]
        + ["--pythonpath", sys.executable],
        capture_output=True,
        text=True,
        timeout=250,
    )
    found = json.loads(result.stdout)["generalDiagnostics"]
    return [
        (one["range"]["start"]["line"] + 1, one["message"])
        for one in found
        if one["severity"] == "error" and one["file"] == str(path)
    ]


def complaints_of_mypy(path):
    """Line numbers of errors."""
    result = subprocess.run(
        [sys.executable, "-m", "mypy", "--ignore-missing-imports"]
        + ["--check-untyped-defs", "--no-error-summary", "--output=json"]
        + [f"--cache-dir={path.parent}/cache", path.name],
        capture_output=True,
        text=True,
        timeout=250,
        cwd=path.parent,
        env={"MYPYPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
    )
    assert not result.stderr, result.stderr
    found = [json.loads(line) for line in result.stdout.splitlines()]
    return [
        (one["line"], one["message"])
        for one in found
        if one["severity"] == "error" and one["file"] == path.name
    ]


CHECKERS = {"pyright": complaints_of_pyright, "mypy": complaints_of_mypy}


@pytest.fixture
def copy_of(tmp_path):
    """Copies a file of this folder to where nothing else configures it."""
    return lambda name: pathlib.Path(shutil.copy(HERE / name, tmp_path))


@pytest.mark.parametrize("checker", CHECKERS)
def test_right_uses_are_accepted(checker, copy_of):
    assert CHECKERS[checker](copy_of("right_uses.py")) == []


@pytest.mark.parametrize("checker", CHECKERS)
def test_each_wrong_use_is_caught(checker, copy_of):
    path = copy_of("wrong_uses.py")
    lines = path.read_text().splitlines()
    wrong = {k for k, line in enumerate(lines, 1) if "# wrong" in line}
    assert len(wrong) == 11
    caught = {number for number, _ in CHECKERS[checker](path)}
    assert caught == wrong


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
