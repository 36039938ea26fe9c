"""What the Makefile does, with an installation that shows its steps."""

import os
import pathlib
import re
import subprocess

import pytest

MAKEFILE = pathlib.Path(__file__).parents[2] / "Makefile"

# Stands for a Python: makes an "environment" of itself, and has a "pip".
PYTHON = """#!/bin/sh
case "$2" in
  venv)
    mkdir -p "$4/bin"
    cp "$0" "$4/bin/python"
    ;;
  pip)
    echo "Collecting tensorflow<2.22"
    echo "  Downloading tensorflow-2.21.0-cp311-x86_64.whl (620.7 MB)"
    echo "  Downloading six-1.17.0-py2.py3-none-any.whl (11 kB)"
    echo "  Using cached libclang-18.1.1-x86_64.whl (24 MB)"
    echo "  Using cached keras-3.10.0-py3-none-any.whl (1.4 MB)"
    echo "Installing collected packages: six, tensorflow"
    exit STATUS
    ;;
esac
"""


def install(directory, status):
    """Runs make's installation, whose pip ends with a status."""
    python = directory / "python"
    python.write_text(PYTHON.replace("STATUS", str(status)))
    python.chmod(0o755)
    stamp = directory / "env" / ".installed"
    # Not that of a `make test` that this may be a part of.
    environment = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(("MAKE", "MFLAGS"))
    }
    result = subprocess.run(
        [
            "make",
            f"--file={MAKEFILE}",
            f"PYTHON={python}",
            f"VENV={directory / 'env'}",
            str(stamp),
        ],
        cwd=MAKEFILE.parent,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return result, stamp


def test_the_installation_says_at_which_step_it_is(tmp_path):
    result, stamp = install(tmp_path, 0)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [
        f"Step 1 of 3: an environment for Python in {tmp_path / 'env'}",
        "Step 2 of 3: TensorFlow, Keras and others, about a minute",
        "  Downloading tensorflow-2.21.0-cp311-x86_64.whl (620.7 MB)",
        "  Using cached libclang-18.1.1-x86_64.whl (24 MB)",
        "Step 3 of 3: unpacking them",
    ]
    assert stamp.exists()


def test_smokes_are_where_make_looks_for_them():
    text = MAKEFILE.read_text("utf-8").replace("\\\n", " ")
    (listed,) = re.findall(r"^SMOKES = (.*)$", text, re.MULTILINE)
    tests = MAKEFILE.parent / "tests"
    assert {
        path.relative_to(tests).parts[0]
        for path in tests.rglob("*_test.py")
        if re.search(r"pytest\.mark\.smoke\b", path.read_text("utf-8"))
    } == set(listed.split())


@pytest.mark.parametrize("status", [1, 2])
def test_an_installation_that_fails_is_not_done(tmp_path, status):
    result, stamp = install(tmp_path, status)
    assert result.returncode == 2
    assert not stamp.exists()
