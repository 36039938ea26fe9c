"""What a user sees of a run: output, environment, statuses, restarts."""

import json
import os
import pty
import re

import pytest

from tests.cli.launched import Launched
from tests.waits import wait_for_exit
from tfdist.cluster import ClusterConfig
from tfdist.cluster import environment


@pytest.mark.smoke
def test_every_task_knows_its_place_and_has_a_log(script, tmp_path):
    path = script(
        """
        print(json.dumps([os.environ["TF_CONFIG"], sys.argv[1:]]))
        print("to stderr", file=sys.stderr)
        print("caf\\xe9 \\x1b[1mbold\\x1b[0m", job)
        sys.stderr.write("no end")
        sys.stdout.flush()
        sys.stdout.buffer.write(b"raw \\xff\\n")
        """
    )
    logs = tmp_path / "logs" / "here"
    arguments = ["--num_ps=2", "--num_workers=2", "--chief", "--evaluator"]
    arguments += [f"--log_dir={logs}", path, "--", "--epochs=3", "--", "-x"]
    with Launched(*arguments) as run:
        status, text = run.finish()
    assert status == 0, text
    configs = {}
    for label, line in re.findall(r"(?m)^\[(\w+ \d)\] (\[.*)$", text):
        tf_config, argv = json.loads(line)
        assert argv == ["--epochs=3", "--", "-x"]
        configs[label] = ClusterConfig.from_tf_config({"TF_CONFIG": tf_config})
        assert f"[{label}] to stderr" in text
        assert configs[label].task_type == label.split()[0]
    assert sorted(configs) == [
        "chief 0",
        "evaluator 0",
        "ps 0",
        "ps 1",
        "worker 0",
        "worker 1",
    ]
    assert len({config.fingerprint for config in configs.values()}) == 1
    assert len({config.address for config in configs.values()}) == 6
    assert {config.num_workers for config in configs.values()} == {3}
    assert sorted(os.listdir(logs)) == sorted(
        f"{label.replace(' ', '-')}.log" for label in configs
    )
    _, *found = sorted((logs / "worker-1.log").read_bytes().splitlines())
    assert found == sorted(
        ["café bold worker".encode(), b"no end", b"raw \xff", b"to stderr"]
    )
    assert "[worker 1] no end" in text and "\x1b" not in text


@pytest.mark.smoke
def test_workers_without_servers(script):
    path = script('print(os.environ["TF_CONFIG"])')
    with Launched("--num_ps=0", "--num_workers=2", path) as run:
        status, text = run.finish()
    assert status == 0, text
    configs = [
        ClusterConfig.from_tf_config({"TF_CONFIG": line}, needs_servers=False)
        for line in re.findall(r"(?m)^\[worker \d\] (\{.*)$", text)
    ]
    assert sorted(config.worker_id for config in configs) == [0, 1]
    assert all(config.spec.keys() == {"worker"} for config in configs)


@pytest.mark.nightly
def test_environment_of_the_tasks(script):
    path = script(
        """
        if job == "worker":
            print(json.dumps(dict(os.environ)))
        """
    )
    given = {"GRPC_FAIL_FAST": "false", "TF_CONFIG": "not for the tasks"}
    flags = ["--num_workers=1", "--env=A=1=2", "--env=PYTHONUNBUFFERED=x"]
    with Launched(*flags, path, env=given) as run:
        found = json.loads(run.expect(r"\[worker 0\] (\{.*\})")[1])
        assert run.finish()[0] == 0
    assert found["A"] == "1=2" and found["PYTHONUNBUFFERED"] == "x"
    # What the user has set stays; what is missing is added.
    expected = {**environment.RUNTIME_ENVIRONMENT, "GRPC_FAIL_FAST": "false"}
    assert {name: found[name] for name in expected} == expected
    assert json.loads(found["TF_CONFIG"])["task"]["type"] == "worker"


@pytest.mark.nightly
def test_tasks_have_groups_of_their_own_in_the_session_of_the_launcher(script):
    path = script(
        """
        print("is in session", os.getsid(0))
        print("leads its group:", os.getpgrp() == os.getpid())
        # It cannot have the terminal, and is not stopped if it tries.
        for number in signal.SIGTTIN, signal.SIGTTOU:
            print("ignores:", signal.getsignal(number) == signal.SIG_IGN)
        """
    )
    with Launched("--num_ps=0", "--num_workers=1", path) as run:
        status, text = run.finish()
    assert status == 0, text
    # Linux shares processors out among sessions before it does among threads.
    assert f"is in session {os.getsid(0)}\n" in text
    assert "leads its group: True" in text
    assert text.count("ignores: True") == 2


def test_environment_is_only_completed():
    environ = {"TF_CPP_MIN_LOG_LEVEL": "0"}
    environment.apply(environ)
    assert environ == {
        **environment.RUNTIME_ENVIRONMENT,
        "TF_CPP_MIN_LOG_LEVEL": "0",
    }
    # glibc refuses a larger threshold (DEFAULT_MMAP_THRESHOLD_MAX).
    assert int(environ["MALLOC_MMAP_THRESHOLD_"]) == 4 * 1024 * 1024 * 8


@pytest.mark.nightly
def test_module_runs_as_python_m_does(tmp_path):
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "train.py").write_text(
        "import sys; print(__name__, __package__, sys.argv[1:])"
    )
    flags = ["--num_ps=0", "--num_workers=1", "--module=pack.train"]
    with Launched(*flags, "--", "--a", cwd=tmp_path) as run:
        run.expect(re.escape("[worker 0] __main__ pack ['--a']"))
        assert run.finish()[0] == 0


@pytest.mark.smoke
def test_first_failure_is_the_status(script):
    path = script(
        """
        if job == "worker" and index == 1:
            sys.exit(3)
        forever()
        """
    )
    with Launched("--fail_fast", "--grace_seconds=0", path) as run:
        status, text = run.finish()
    assert status == 3
    assert "worker 1 exited with status 3" in text
    assert text.index("terminating worker 0") < text.index("terminating ps 0")
    assert "killing" not in text


@pytest.mark.nightly
def test_the_others_may_end_by_themselves_after_a_failure(script):
    path = script(
        """
        if job == "worker" and index == 1:
            sys.exit(4)
        wait_for("failed")
        print("ends by itself")
        """
    )
    with Launched("--fail_fast", "--grace_seconds=1000", path) as run:
        run.expect("ps 0, worker 0: 1000 s left to end")
        (path.parent / "failed").touch()
        status, text = run.finish()
    assert status == 4
    assert "[worker 0] ends by itself" in text
    assert "[tfdist] worker 0 is done" in text


@pytest.mark.nightly
def test_servers_go_at_once_when_a_run_that_has_failed_is_over(script):
    path = script("sys.exit(4) if job == 'worker' else forever()")
    flags = ["--fail_fast", "--grace_seconds=1000", "--num_workers=1"]
    with Launched(*flags, path) as run:
        status, text = run.finish()
    assert status == 4
    assert "terminating ps 0" in text and "left to end" not in text


@pytest.mark.nightly
def test_what_cannot_be_imported_is_not_started_again(script):
    path = script("import no_such_module")
    flags = ["--num_ps=0", "--num_workers=1", "--max_restarts=3"]
    with Launched(*flags, path) as run:
        status, text = run.finish()
    assert status == 1
    assert text.count("worker 0: pid") == 1
    assert "No module named 'no_such_module'" in text.splitlines()[-1]
    assert "which no restart would change" in text.splitlines()[-1]


@pytest.mark.smoke
def test_the_last_line_names_what_failed_first(script):
    path = script(
        """
        def load(shard):
            raise RuntimeError(f"bad shard {shard}")
        if index == 1:
            print("not shown")
            load(17)
        wait_for("failed")
        raise ValueError("a consequence")
        """
    )
    flags = ["--num_ps=0", "--fail_fast", "--grace_seconds=1000"]
    with Launched(*flags, "--show=chief", path) as run:
        run.expect("worker 1 exited with status 1: RuntimeError: bad shard 17")
        (path.parent / "failed").touch()
        status, text = run.finish()
        last = re.fullmatch(
            r"\[tfdist\] ended: worker 1 exited with status 1: "
            r"RuntimeError: bad shard 17 \((.*):(\d+), in load\); "
            r"output: (.*/worker-1.log)",
            text.splitlines()[-1],
        )
        assert last, text
        assert last[1] == str(path)
        line = path.read_text().splitlines()[int(last[2]) - 1]
        assert "raise RuntimeError" in line
        with open(last[3], encoding="utf-8") as log:
            assert "not shown\n" in log.readlines()
    assert status == 1
    assert "ValueError: a consequence" in text and "] not shown" not in text


@pytest.mark.nightly
def test_files_of_a_run_that_succeeds_are_not_left(script):
    with Launched("--num_ps=0", "--num_workers=1", script("")) as run:
        assert run.finish()[0] == 0
        assert not [name for name in os.listdir(run.tmp) if "output" in name]


@pytest.mark.smoke
def test_a_signal_counts_as_128_plus_n(script):
    path = script(
        """
        if job == "worker":
            os.kill(os.getpid(), signal.SIGSEGV)
        forever()
        """
    )
    flags = ["--num_workers=1", "--fail_fast", "--grace_seconds=0"]
    with Launched(*flags, path) as run:
        status, text = run.finish()
    assert status == 128 + 11
    assert "worker 0 was ended by SIGSEGV (status 139)" in text


@pytest.mark.nightly
def test_what_ignores_sigterm_is_killed(script):
    path = script(
        """
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if job == "ps":
            (tmp / "deaf").touch()
            forever()
        wait_for("deaf")
        sys.exit(1)
        """
    )
    flags = ["--num_workers=1", "--grace_seconds=0", "--terminate_seconds=0.1"]
    with Launched("--fail_fast", *flags, path) as run:
        status, text = run.finish()
    assert status == 1
    assert "terminating ps 0" in text and "killing ps 0" in text


@pytest.mark.nightly
@pytest.mark.parametrize("seconds", [0.2, 50])
def test_servers_have_some_time_after_the_last_worker(script, seconds):
    path = script(
        """
        if job == "ps":
            wait_for("worker1")
            time.sleep(0 if sys.argv[1] == "50" else 1000)
        else:
            (tmp / f"worker{index}").touch()
        """
    )
    flags = [f"--grace_seconds={seconds}", path, "--", seconds]
    with Launched(*flags) as run:
        status, text = run.finish()
    assert status == 0, text
    late = "ps 0: not ended by itself in 0.2 s" in text
    assert late == ("terminating ps 0" in text) == (seconds == 0.2)
    assert late or "ps 0 is done" in text


@pytest.mark.nightly
def test_a_server_that_fails_at_the_end_is_a_failure(script):
    path = script(
        """
        if job == "ps":
            wait_for("done")
            sys.exit(9)
        (tmp / "done").touch()
        """
    )
    with Launched("--num_workers=1", "--fail_fast", path) as run:
        assert run.finish()[0] == 9


@pytest.mark.smoke
def test_a_failing_task_is_started_again_as_the_same_task(script):
    path = script(
        """
        import socket
        if job == "ps":
            wait_for("done")
            sys.exit()
        config = json.loads(os.environ["TF_CONFIG"])
        host, port = config["cluster"][job][index].split(":")
        listener = socket.create_server((host, int(port)))
        if index == 1:
            print("try", os.environ["TF_CONFIG"], flush=True)
            if not (tmp / "once").exists():
                (tmp / "once").touch()
                sys.exit(7)
            (tmp / "done").touch()
        """
    )
    with Launched("--max_restarts=1", path) as run:
        status, text = run.finish()
    assert status == 0, text
    assert "worker 1 exited with status 7; restart 1 of 1" in text
    tries = re.findall(r"(?m)^\[worker 1\] try (.*)$", text)
    assert len(tries) == 2 and tries[0] == tries[1]


@pytest.mark.nightly
def test_restarts_end(script):
    path = script("sys.exit(6 if job == 'worker' else forever())")
    flags = ["--num_workers=1", "--max_restarts=2", "--grace_seconds=0"]
    with Launched(*flags, path) as run:
        # The second time it is given more time.
        run.expect("status 6; restart 1 of 2 in 0.5 s")
        run.expect("status 6; restart 2 of 2 in 1 s")
        status, text = run.finish()
    assert status == 6
    assert text.count("worker 0: pid") == 3


@pytest.mark.nightly
def test_the_others_go_on_without_a_worker_that_cannot_be_had(script):
    path = script(
        """
        if job == "worker" and index == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        # A server that has ended before would end the run.
        wait_for("gone")
        if job == "worker":
            print("trained to the end")
        """
    )
    with Launched("--max_restarts=0", path) as run:
        run.expect("worker 1 was ended .*; the others go on without it")
        (path.parent / "gone").touch()
        status, text = run.finish()
    assert "[worker 0] trained to the end" in text
    # A server that has not ended by itself yet is ended.
    assert "terminating worker" not in text and status == 137


@pytest.mark.nightly
@pytest.mark.parametrize("seconds", [0, 7])
def test_servers_have_a_place_for_snapshots_as_long_as_the_run(script, seconds):
    path = script(
        """
        if job == "ps":
            print("place", os.environ.get("TFDIST_SNAPSHOT_DIR"),
                  os.environ.get("TFDIST_SNAPSHOT_EVERY"), flush=True)
        """
    )
    with Launched(f"--snapshot_seconds={seconds}", path) as run:
        _, place, every = run.expect(r"place (\S+) (\S+)")[0].split()
        assert run.finish()[0] == 0
        if not seconds:
            assert place == every == "None"
            return
        assert float(every) == seconds
        assert place.startswith(os.path.join(run.tmp, "tfdist-snapshots-"))
        assert not os.path.exists(os.path.dirname(place))


@pytest.mark.nightly
def test_lines_of_tasks_do_not_mix(script):
    path = script(
        """
        letter = job[0].encode() * 100_003
        for _ in range(20):
            for start in range(0, len(letter), 777):
                os.write(1, letter[start : start + 777])
            os.write(1, b"\\n")
        """
    )
    with Launched("--num_workers=2", path) as run:
        status, text = run.finish()
    assert status == 0
    for label in ("ps 0", "worker 0", "worker 1"):
        lines = re.findall(rf"(?m)^\[{label}\] (.*)$", text)
        assert lines == [label[0] * 100_003] * 20


@pytest.mark.nightly
@pytest.mark.parametrize(
    "flag, env, colored",
    [
        ("auto", {}, True),
        ("auto", {"NO_COLOR": "1"}, False),
        ("auto", {"TERM": "dumb"}, False),
        ("always", {"NO_COLOR": "1"}, True),
        ("never", {}, False),
    ],
)
def test_colors_on_a_terminal(script, flag, env, colored):
    path = script("print('hello')")
    terminal, other_end = pty.openpty()
    flags = [f"--color={flag}", "--num_ps=0", "--num_workers=1", path]
    env = {"TERM": "xterm", **env}
    with Launched(*flags, env=env, stdout=other_end) as run:
        os.close(other_end)
        text = b""
        while b"is done" not in text:
            text += os.read(terminal, 4096)
        assert wait_for_exit(run.process) == 0
    os.close(terminal)
    assert b"hello" in text and b"pid" in text
    assert (b"\x1b[36m[worker 0]\x1b[0m hello" in text) == colored
    assert (b"\x1b" in text) == colored
