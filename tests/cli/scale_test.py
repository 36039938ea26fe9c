"""`tfdist scale`: workers of a running launcher come and go."""

import contextlib
import os
import socket
import subprocess
import sys
import tempfile

import pytest

from tests import waits
from tests.cli.launched import ROOT
from tests.cli.launched import Launched
from tests.waits import wait_for_exit
from tfdist.cli import control_socket
from tfdist.cli import usage


@pytest.fixture(autouse=True)
def own_directory(monkeypatch):
    """No launcher but that of the test is found."""
    # Not pytest's: the path of a socket has at most 107 characters.
    with tempfile.TemporaryDirectory() as directory:
        monkeypatch.setenv("XDG_RUNTIME_DIR", directory)
        monkeypatch.setenv("TMPDIR", directory)
        monkeypatch.setattr(tempfile, "tempdir", directory)
        yield


def test_a_launcher_is_found_whatever_started_it(monkeypatch):
    """A job of cron has no $XDG_RUNTIME_DIR, and a login shell has."""
    runtime = os.environ["XDG_RUNTIME_DIR"]
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    with control_socket.ControlSocket():
        monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
        assert control_socket.launchers() == [os.getpid()]
        assert control_socket.only_launcher(None) == os.getpid()
        assert control_socket._path_of(os.getpid()).exists()
    places = f"{runtime}/tfdist or {runtime}/tfdist-{os.getuid()}"
    with pytest.raises(usage.UsageError, match=f"socket in {places}"):
        control_socket.only_launcher(None)


def test_only_sockets_of_dead_launchers_of_this_host_are_removed(monkeypatch):
    (directory, _) = control_socket._directories()
    dead = subprocess.Popen(["true"])
    dead.wait()
    # One that lives has not begun to listen yet.
    own = [control_socket._name(pid) for pid in (dead.pid, os.getpid())]
    with monkeypatch.context() as patched:
        patched.setattr(socket, "gethostname", lambda: "another")
        names = [*own, control_socket._name(dead.pid)]
    with contextlib.ExitStack() as stack:
        for name in names:
            one = stack.enter_context(socket.socket(socket.AF_UNIX))
            one.bind(str(directory / name))
        assert control_socket.launchers() == []
    left = {path.name for path in directory.iterdir()}
    assert left == set(names[1:])


def scale(*flags):
    """Runs the command; returns its status and output."""
    done = waits.run(
        [sys.executable, "-m", "tfdist", "scale", *flags],
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        text=True,
    )
    return done.returncode, done.stdout + done.stderr


# Leaves as a worker of tfdist does, or not at all.
WORKER = """
if job == "ps":
    wait_for("done")
    sys.exit()
def leave(*_):
    print("leaving", flush=True)
    sys.exit(0)
deaf = (tmp / "deaf").exists()
signal.signal(signal.SIGTERM, signal.SIG_IGN if deaf else leave)
print("initially", place.get("initial_workers"), flush=True)
wait_for("done")
"""


@pytest.mark.smoke
def test_workers_are_added_and_told_to_leave_and_the_run_goes_on(script):
    path = script(WORKER)
    flags = ["--num_workers=1", "--max_workers=3", "--leave_seconds=60"]
    with Launched(*flags, path) as run:
        run.expect(r"\[worker 0\] initially 1")
        status, text = scale("--workers=3")
        assert (status, text) == (0, "worker 1 started; worker 2 started\n")
        for _ in range(2):
            run.expect(r"\[worker \d\] initially 1")
        assert scale("--workers=3") == (0, "3 workers already\n")
        status, text = scale("--workers=1", f"--pid={run.process.pid}")
        assert (status, text) == (0, "worker 1 leaves; worker 2 leaves\n")
        for _ in range(2):
            run.expect(r"worker \d has left$")
        (path.parent / "done").touch()
        status, text = run.finish()
    assert status == 0, text
    assert "worker 2: pid" not in text.partition("has left")[2]


@pytest.mark.nightly
def test_a_worker_that_does_not_leave_is_killed_and_can_come_back(script):
    path = script(WORKER)
    (path.parent / "deaf").touch()
    with Launched("--num_workers=2", "--leave_seconds=0.5", path) as run:
        for _ in range(2):
            run.expect(r"\[worker \d\] initially")
        pid = run.process.pid
        assert control_socket.ask(pid, {"workers": 1}) == "worker 1 leaves"
        run.expect("worker 1 has not left: killing it")
        run.expect("worker 1 was ended by SIGKILL .* as it left")
        assert control_socket.ask(pid, {"workers": 2}) == "worker 1 started"
        run.expect(r"\[worker 1\] initially")
        (path.parent / "done").touch()
        assert run.finish()[0] == 0


@pytest.mark.nightly
def test_what_cannot_be_is_refused_with_what_can(script):
    status, text = scale("--workers=2")
    assert status == 2 and "No `tfdist launch` of this user runs" in text
    path = script(WORKER)
    with (
        Launched("--num_workers=2", path) as run,
        Launched("--num_workers=1", path) as other,
    ):
        for one in (run, other):
            one.expect(r"\[worker 0\] initially None")
        pids = sorted([run.process.pid, other.process.pid])
        assert control_socket.launchers() == pids
        status, text = scale("--workers=2")
        assert status == 2
        several = ", ".join(map(str, pids))
        assert (
            f"--pid must say which launcher is meant: several run, {several}"
            in (text)
        )
        flag = f"--pid={run.process.pid}"
        for number in (0, 3):
            status, text = scale(f"--workers={number}", flag)
            assert status == 2
            assert "Flag --workers must be from 1 to 2" in text
            assert f"Received: --workers={number}." in text
        other.process.kill()
        wait_for_exit(other.process)
        # What a killed launcher leaves behind is no launcher.
        assert control_socket.launchers() == [run.process.pid]
        (path.parent / "done").touch()
        assert run.finish()[0] == 0
    assert control_socket.launchers() == []
