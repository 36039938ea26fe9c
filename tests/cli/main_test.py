"""The command ends as programs do when nobody listens, or somebody is tired."""

import os
import signal
import subprocess
import sys

import pytest

from tests import waits
from tests.cli.launched import ROOT
from tests.cli.launched import default_signals

_WAITS = """\
import sys, time
print("importing", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("arguments", [["launch", "--help"], ["--help"]])
def test_a_reader_that_goes_away_is_no_traceback(arguments):
    reader, writer = os.pipe()
    os.close(reader)
    done = waits.run(
        [sys.executable, "-m", "tfdist", *arguments],
        stdout=writer,
        stderr=subprocess.PIPE,
        cwd=ROOT,
    )
    os.close(writer)
    assert done.returncode == 128 + signal.SIGPIPE
    assert done.stderr == b""


@pytest.mark.parametrize(
    "module, arguments",
    [
        ("absl", ["launch", "--help"]),
        ("tensorflow", ["simulate", "--model=own.py:f", "--data=own.py:f"]),
    ],
)
def test_ctrl_c_during_imports_is_no_traceback(module, arguments, tmp_path):
    (tmp_path / module).mkdir()
    (tmp_path / module / "__init__.py").write_text(_WAITS)
    (tmp_path / "own.py").write_text("")
    with default_signals():
        process = subprocess.Popen(
            [sys.executable, "-m", "tfdist", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"},
            cwd=tmp_path,
        )
    with process:
        assert process.stdout.readline() == b"importing\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGINT
    assert errors == b"tfdist: interrupted\n"


def closed(redirections, *arguments):
    """Runs the command with closed streams."""
    return waits.run(
        ["sh", "-c", f'exec "$@" {redirections}', "sh"]
        + [sys.executable, "-m", "tfdist", *map(str, arguments)],
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        text=True,
    )


def test_help_without_standard_output_is_no_traceback():
    done = closed(">&-", "launch", "--help")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.nightly
@pytest.mark.parametrize("redirections", ["<&- >&-", "2>&-", "<&- >&- 2>&-"])
def test_a_cluster_runs_though_streams_are_closed(script, redirections):
    path = script("print('a line'); (tmp / 'trained').touch()")
    flags = ["--num_ps=0", "--num_workers=1"]
    done = closed(redirections, "launch", *flags, path)
    assert done.returncode == 0, done.stderr
    assert (path.parent / "trained").exists()
    assert ("worker 0 is done" in done.stderr) == ("2>" not in redirections)
