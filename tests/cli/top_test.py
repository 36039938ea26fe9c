"""`tfdist top` and the launcher's lines about workers that train."""

import dataclasses
import json
import os
import re
import select
import sys
import tempfile
import threading
import time
import types

import pytest

from tests import waits
from tests.cli.launched import ROOT
from tests.cli.launched import Launched
from tfdist.cli import control_socket
from tfdist.cli import launched_status
from tfdist.cli import top
from tfdist.cli import usage
from tfdist.cli import worker_rates
from tfdist.cluster import member_table


@pytest.fixture(autouse=True)
def own_directory(monkeypatch):
    """No launcher but that of the test is found."""
    # Not pytest's: the path of a socket has at most 107 characters.
    with tempfile.TemporaryDirectory() as directory:
        monkeypatch.setenv("XDG_RUNTIME_DIR", directory)
        monkeypatch.setenv("TMPDIR", directory)
        monkeypatch.setattr(tempfile, "tempdir", directory)
        monkeypatch.delenv("TF_CONFIG", raising=False)
        yield


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


def hung(path):
    """A task that runs, and has told nothing for a minute."""
    told = {"figures": {"steps": 7, "idle_seconds": 0.0}, "word": [0.0] * 13}
    path.write_text(json.dumps(told))
    then = time.time() - 60.0
    os.utime(path, (then, then))
    return types.SimpleNamespace(
        label="worker 0",
        status_path=str(path),
        is_running=True,
        is_done=False,
        is_wanted=True,
    )


def test_a_launched_worker_that_hangs_is_silent(tmp_path):
    task = hung(tmp_path / "worker-0")
    (reading,) = launched_status.readings([task])
    assert re.fullmatch(r"silent for 6\d s", reading.state)
    assert not reading.is_alive and reading.figures.steps == 7
    task.is_running = False
    (reading,) = launched_status.readings([task])
    assert reading.state == "is down"
    task.is_running = True
    os.utime(task.status_path)
    (reading,) = launched_status.readings([task])
    assert (reading.state, reading.is_alive) == ("runs", True)


def test_lines_go_on_when_all_workers_hang(tmp_path):
    said = []
    lines = launched_status.StatusLines(
        [[hung(tmp_path / "worker-0")]], 1e-12, said.append
    )
    for _ in range(2):
        lines.look_at_time()
    assert re.match(
        r"0 of 1 workers run; no step for 6\d s; worker 0 silent for 6\d s",
        said[-1],
    )


def test_top_ends_when_the_launcher_has(monkeypatch, capsys):
    reading = dataclasses.asdict(worker_rates.Reading("worker 0", "runs", True))
    opened, looks = threading.Event(), []

    def handle(question):
        looks.extend(["looked"] if question.get("status") else [])
        return json.dumps([[reading]])

    def launch():
        with control_socket.ControlSocket() as control:
            opened.set()
            while len(looks) < 2:
                select.select([control], [], [])
                control.answer(handle)

    pauses = iter(range(10))
    monkeypatch.setattr(
        top, "time", types.SimpleNamespace(sleep=lambda _: next(pauses))
    )
    launcher = threading.Thread(target=launch, daemon=True)
    launcher.start()
    opened.wait(waits.SECONDS)
    assert top.main([]) == 1
    launcher.join(waits.SECONDS)
    shown = capsys.readouterr()
    assert shown.out.startswith("1 of 1 workers run")
    assert shown.err == f"tfdist top: The launcher {os.getpid()} has ended.\n"


@pytest.mark.nightly
def test_what_a_worker_told_before_its_restart_is_forgotten(script):
    path = script(
        """
        told = pathlib.Path(os.environ["TFDIST_STATUS_FILE"])
        print("told already:", told.exists(), flush=True)
        told.write_text("{}")
        if not (tmp / "once").exists():
            (tmp / "once").touch()
            sys.exit(7)
        """
    )
    with Launched("--num_ps=0", "--num_workers=1", path) as run:
        status, text = run.finish()
    assert status == 0, text
    assert text.count("told already: False") == 2


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
