"""`tfdist top` and the launcher's lines about workers that train."""

import os
import sys
import tempfile

import pytest

from tests import waits
from tests.cli.launched import ROOT
from tests.cli.launched import Launched
from tfdist.cli import top
from tfdist.cli import usage
from tfdist.cluster import member_table


@pytest.fixture(autouse=True)
def own_directory(monkeypatch, tmp_path):
    """No launcher but that of the test is found."""
    directory = tmp_path / "runtime"
    directory.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(directory))
    monkeypatch.setenv("TMPDIR", str(directory))
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    monkeypatch.delenv("TF_CONFIG", raising=False)


def shown(*flags, **environ):
    """Runs the command; returns its status and output."""
    done = waits.run(
        [sys.executable, "-m", "tfdist", "top", "--once", *flags],
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environ},
        text=True,
    )
    return done.returncode, done.stdout + done.stderr


# Tells that it makes 100 steps per second, as a worker of tfdist does.
WORKER = """
path = os.environ["TFDIST_STATUS_FILE"]
assert bool(path) == (job == "worker")
began = time.monotonic()
while path and not (tmp / "done").exists():
    steps = int(100 * (time.monotonic() - began))
    figures = {"steps": steps, "staleness": 4, "idle_seconds": 0.0}
    told = {"figures": figures, "word": [0.0] * 13}
    pathlib.Path(f"{path}.draft").write_text(json.dumps(told))
    os.replace(f"{path}.draft", path)
    time.sleep(0.05)
wait_for("done")
"""


@pytest.mark.smoke
def test_lines_and_top_show_what_workers_tell(script):
    path = script(WORKER)
    with Launched("--status_seconds=0.3", "--num_workers=2", path) as run:
        line = run.expect(r"2 of 2 workers run; (\S+) steps/s; staleness p95 4")
        assert float(line[1]) > 0
        status, text = shown("--seconds=0.3")
        assert status == 0, text
        lines = text.splitlines()
        assert lines[0].startswith("2 of 2 workers run; ")
        assert [one.split()[:3] for one in lines[2:]] == [
            ["worker", "0", "runs"],
            ["worker", "1", "runs"],
        ]
        (path.parent / "done").touch()
        status, text = run.finish()
    assert status == 0, text


@pytest.mark.nightly
def test_without_a_terminal_there_are_no_lines_unless_they_are_wanted(script):
    path = script(WORKER)
    with Launched("--num_workers=1", path) as run:
        run.expect("worker 0: pid")
        status, text = shown("--seconds=0.5", f"--pid={run.process.pid}")
        assert status == 0, text
        (path.parent / "done").touch()
        assert "workers run" not in run.finish()[1]


def test_an_evaluator_is_no_worker():
    names = [f"/job:{job}/task:0" for job in ("chief", "worker", "evaluator")]

    class Servers:
        ReadError = OSError

        @staticmethod
        def read(address, timeout):
            alive = member_table.MemberState.ALIVE
            return [member_table.Member(name, alive, 0.0, 0) for name in names]

    (group,) = top._ask_server(Servers, "", 1.0)
    assert [one.name for one in group] == ["chief 0", "worker 0"]


def test_sockets_that_cannot_be_reached_are_said(monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/proc")
    status, text = shown()
    assert status == 2 and "Traceback" not in text
    assert "XDG_RUNTIME_DIR" in text and "/proc/tfdist" in text


def test_who_is_asked_must_be_there():
    with pytest.raises(usage.UsageError, match="No `tfdist launch`"):
        top.main(["--once"])
    with pytest.raises(usage.UsageError, match="Flag --ps must be addresses"):
        top.main(["--once", "--ps=somewhere"])


def test_a_cluster_without_servers_has_nobody_to_ask(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", '{"cluster": {"worker": ["here:1"]}}')
    with pytest.raises(usage.UsageError, match="only its `tfdist launch`"):
        top.main(["--once"])
