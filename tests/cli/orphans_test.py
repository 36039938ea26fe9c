"""No process outlives the launcher, however it ends."""

import os
import select
import signal
import sys
import time

import psutil
import pytest

from tests import waits
from tests.cli.launched import Launched
from tests.cli.launched import assert_gone
from tests.cli.launched import runs
from tests.waits import wait_for_exit
from tests.waits import wait_until
from tfdist.cli import parent_death
from tfdist.cli import supervisor

_WITH_CHILD = """
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(999)"])
print("child", child.pid)
forever()
"""


def start(path, *flags, **popen):
    """Returns a launcher whose three tasks run and have a child each."""
    run = Launched(*flags, path, **popen)
    for _ in range(3):
        run.expect(r"child (\d+)")
    processes = run.descendants()
    # The guard, three tasks, three children.
    assert len(processes) == 7 and all(map(runs, processes))
    return run, processes


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP"])
def test_a_signal_to_the_launcher_ends_everything(script, name):
    run, processes = start(script(_WITH_CHILD))
    with run:
        number = getattr(signal, name)
        run.process.send_signal(number)
        status, text = run.finish()
        assert status == 128 + number
        assert f"got {name}" in text
        # They have no time to end by themselves.
        assert "left to end" not in text
        assert_gone(processes)


@pytest.mark.smoke
def test_kill_9_of_the_launcher_ends_everything(script):
    run, processes = start(script(_WITH_CHILD))
    with run:
        run.process.kill()
        assert wait_for_exit(run.process) == -signal.SIGKILL
        assert_gone(processes)


@pytest.mark.nightly
def test_kill_9_of_launcher_and_guard_ends_the_tasks(script):
    run = Launched(script("print('up')\nforever()"))
    for _ in range(3):
        run.expect(r"\] up")
    processes = run.descendants()
    with run:
        guards = [p for p in processes if "guard" in p.cmdline()]
        assert len(guards) == 1
        guards[0].kill()
        run.process.kill()
        assert_gone(processes)


@pytest.mark.nightly
def test_a_second_signal_kills_at_once(script):
    path = script(
        """
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("up")
        forever()
        """
    )
    with Launched("--terminate_seconds=1000", path) as run:
        for _ in range(3):
            run.expect(r"\] up")
        processes = run.descendants()
        run.process.send_signal(signal.SIGTERM)
        run.expect("terminating")
        time.sleep(supervisor.SECONDS_TOGETHER)
        run.process.send_signal(signal.SIGTERM)
        status, text = run.finish()
        assert status == 143 and "killing" in text
        assert_gone(processes)


@pytest.mark.nightly
def test_what_a_task_leaves_behind_ends_with_it(script):
    path = script(
        """
        child = subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(999)"]
        )
        print("child", child.pid)
        wait_for("seen")
        os._exit(0)
        """
    )
    with Launched("--num_ps=0", "--num_workers=1", path) as run:
        child = psutil.Process(int(run.expect(r"child (\d+)")[1]))
        (path.parent / "seen").touch()
        assert run.finish()[0] == 0
        assert_gone([child])


# A child that is nobody's any more, in a session of its own, and one whose
# parent is the task; both do as they like about signals.
_DETACHED = """
program = (
    "import os, signal, sys, time;"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    "sys.argv[1] == 'orphan' and os.fork() and os._exit(0);"
    "os.setsid();"
    "print(sys.argv[1], os.getpid(), flush=True);"
    "time.sleep(999)"
)
for kind in ("child", "orphan"):
    subprocess.Popen([sys.executable, "-c", program, kind], env={environ})
wait_for("go")
"""


def start_detached(path):
    run = Launched("--num_ps=0", "--num_workers=1", path)
    lines = [run.expect(r"(child|orphan) (\d+)") for _ in range(2)]
    assert {line[1] for line in lines} == {"child", "orphan"}
    return run, [psutil.Process(int(line[2])) for line in lines]


@pytest.mark.nightly
def test_a_session_of_its_own_does_not_outlive_a_launcher_that_ends(script):
    # Nothing tells whose they are but their place in the tree.
    path = script(_DETACHED.replace("{environ}", "{}"))
    run, processes = start_detached(path)
    with run:
        (path.parent / "go").touch()
        assert run.finish()[0] == 0
        assert_gone(processes)


@pytest.mark.nightly
def test_a_session_of_its_own_does_not_outlive_a_launcher_that_is_killed(
    script,
):
    path = script(_DETACHED.replace("{environ}", "None"))
    run, processes = start_detached(path)
    with run:
        run.process.kill()
        assert_gone(processes)


@pytest.mark.nightly
def test_adopted_processes_that_end_are_no_zombies(script):
    path = script(
        """
        program = "import os, sys; os.fork() and os._exit(0); os.setsid()"
        pipe = subprocess.run(
            [sys.executable, "-c", program + "; print(os.getpid())"],
            stdout=subprocess.PIPE,
        )
        print("orphan", int(pipe.stdout))
        wait_for("go")
        """
    )
    with Launched("--num_ps=0", "--num_workers=1", path) as run:
        pid = int(run.expect(r"orphan (\d+)")[1])
        wait_until(
            lambda: not psutil.pid_exists(pid), f"{pid} has ended and is reaped"
        )
        (path.parent / "go").touch()
        assert run.finish()[0] == 0


@pytest.mark.nightly
def test_a_stopped_task_does_not_keep_the_launcher(script):
    path = script("print('up')\nos.kill(os.getpid(), signal.SIGSTOP)")
    with Launched("--terminate_seconds=0.1", path) as run:
        for _ in range(3):
            run.expect(r"\] up")
        processes = run.descendants()
        run.process.send_signal(signal.SIGTERM)
        assert run.finish()[0] == 143
        assert_gone(processes)


@pytest.mark.nightly
def test_a_reader_that_stops_reading_does_not_keep_the_launcher(script):
    path = script(
        """
        while True:
            print("x" * 1000)
        """
    )
    reader, writer = os.pipe()
    with Launched(path, stdout=writer) as run:
        wait_until_full(writer)
        processes = run.descendants()
        assert len(processes) == 4
        run.process.send_signal(signal.SIGTERM)
        assert wait_for_exit(run.process) == 143
        assert_gone(processes)
    os.close(reader)
    os.close(writer)


def wait_until_full(writer):
    """Waits until a pipe takes no more."""
    wait_until(
        lambda: not select.select((), (writer,), (), 0)[1], "the pipe is full"
    )


@pytest.mark.nightly
def test_what_the_launcher_inherits_as_ignored_stays_so(script):
    numbers = signal.SIGHUP, signal.SIGINT, signal.SIGTERM
    path = script(
        """
        print("up")
        wait_for("go")
        """
    )

    def ignore():
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)

    with Launched(path, preexec_fn=ignore) as run:
        for _ in range(3):
            run.expect(r"\] up")
        for number in numbers:
            run.process.send_signal(number)
        (path.parent / "go").touch()
        assert run.finish()[0] == 0


@pytest.mark.nightly
def test_the_tests_may_run_in_the_background(script):
    # As a shell without job control starts `make test &`.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Launched("--num_workers=1", script("forever()")) as run:
            run.expect("worker 0: pid")
            run.process.send_signal(signal.SIGINT)
            assert run.finish()[0] == 128 + signal.SIGINT
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.nightly
def test_the_shim_refuses_to_outlive_a_parent_that_is_gone():
    program = [sys.executable, parent_death.__file__, "exec", "1", "/bin/true"]
    # Its parent is this process, not process 1.
    assert waits.run(program).returncode == 137
