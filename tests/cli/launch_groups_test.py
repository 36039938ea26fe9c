"""Groups that codistil on one machine: nobody's end is another's."""

import os
import re
import signal
import time

import psutil
import pytest

from tests.cli.launched import Launched
from tests.cli.launched import assert_gone
from tests.cli.launched import runs
from tests.waits import wait_for_exit
from tfdist.cli import supervisor
from tfdist.cluster import ClusterConfig
from tfdist.cluster import Group


def processes(run, *labels):
    """Returns the tasks' processes, which start in the order of labels."""
    return [
        psutil.Process(int(run.expect(rf"{label}: pid (\d+)")[1]))
        for label in labels
    ]


@pytest.mark.smoke
def test_every_task_of_every_group_knows_its_place(script, tmp_path):
    path = script('print(os.environ["TF_CONFIG"])')
    flags = ["--num_groups=2", "--num_ps=1", "--num_workers=1", "--chief"]
    with Launched(*flags, f"--log_dir={tmp_path}/logs", path) as run:
        status, text = run.finish()
    assert status == 0, text
    labels = {}
    fingerprints = set()
    for label, group, job, line in re.findall(
        r"(?m)^\[(group (\d) (\w+) 0)\] (\{.*)$", text
    ):
        environ = {"TF_CONFIG": line}
        config = ClusterConfig.from_tf_config(environ)
        told = Group.from_tf_config(environ)
        assert (told.index, told.num_groups) == (int(group), 2)
        assert told.servers[told.index] == config.ps_addresses
        assert config.task_type == job
        labels[label] = config.address, told.servers
        fingerprints.add((group, config.fingerprint))
        log = tmp_path / "logs" / f"{label.replace(' ', '-')}.log"
        assert log.read_text() == f"{line}\n"
    assert sorted(labels) == [
        f"group {group} {job} 0"
        for group in (0, 1)
        for job in ("chief", "ps", "worker")
    ]
    assert len(os.listdir(tmp_path / "logs")) == 6
    assert len({address for address, _ in labels.values()}) == 6
    assert len({servers for _, servers in labels.values()}) == 1
    assert len(fingerprints) == 2  # One per cluster, which seeds its workers.


@pytest.mark.nightly
def test_a_group_that_fails_leaves_the_others_to_their_end(script):
    path = script(
        """
        if group == 1:
            wait_for("go")
            print("trained to the end")
        elif job == "worker" and index == 0:
            wait_for("fail")
            sys.exit(3)
        else:
            forever()
        """
    )
    flags = ["--num_groups=2", "--fail_fast", "--grace_seconds=0"]
    with Launched(*flags, path) as run:
        labels = "ps 0", "worker 0", "worker 1"
        first = processes(run, *(f"group 0 {label}" for label in labels))
        second = processes(run, *(f"group 1 {label}" for label in labels))
        (path.parent / "fail").touch()
        run.expect("terminating group 0 worker 1")
        run.expect("terminating group 0 ps 0")
        assert_gone(first)
        assert all(map(runs, second))
        (path.parent / "go").touch()
        status, text = run.finish()
    assert status == 3
    assert "group 0 worker 0 exited with status 3" in text
    # The server is ended with its workers, perhaps before it says so.
    for label in ("worker 0", "worker 1"):
        assert f"[group 1 {label}] trained to the end" in text
        assert f"group 1 {label} is done" in text
    assert "killing" not in text


@pytest.mark.nightly
def test_restarts_are_the_groups_and_the_first_failure_is_the_status(script):
    path = script(
        """
        if group == 0:
            wait_for("go")
            sys.exit(0 if (tmp / "second").exists() else 1)
        print("try", os.environ["TF_CONFIG"], flush=True)
        if (tmp / "first").exists():
            (tmp / "second").touch()
            sys.exit(8)
        (tmp / "first").touch()
        sys.exit(7)
        """
    )
    flags = ["--num_groups=2", "--num_ps=0", "--num_workers=1"]
    with Launched(*flags, "--max_restarts=1", path) as run:
        run.expect("group 1 worker 0 exited with status 7; restart 1 of 1")
        run.expect("group 1 worker 0 exited with status 8$")
        (path.parent / "go").touch()
        status, text = run.finish()
    assert status == 8
    assert "group 0 worker 0 is done" in text
    tries = re.findall(r"(?m)^\[group 1 worker 0\] try (.*)$", text)
    assert len(tries) == 2 and tries[0] == tries[1]
    assert text.count("group 0 worker 0: pid") == 1


@pytest.mark.nightly
def test_a_later_failure_does_not_change_the_status(script):
    path = script(
        """
        if group == 0:
            wait_for("go")
        sys.exit(4 + group)
        """
    )
    flags = ["--num_groups=2", "--num_ps=0", "--num_workers=1"]
    with Launched(*flags, "--fail_fast", path) as run:
        run.expect("group 1 worker 0 exited with status 5")
        (path.parent / "go").touch()
        status, text = run.finish()
    assert "group 0 worker 0 exited with status 4" in text
    assert status == 5


@pytest.mark.nightly
def test_the_training_of_one_group_is_over_before_that_of_another(script):
    path = script(
        """
        if job == "ps":
            forever()
        wait_for(f"over{group}")
        """
    )
    flags = ["--num_groups=2", "--num_workers=1", "--grace_seconds=0.1"]
    with Launched(*flags, path) as run:
        first = processes(run, "group 0 ps 0", "group 0 worker 0")
        second = processes(run, "group 1 ps 0", "group 1 worker 0")
        (path.parent / "over0").touch()
        run.expect("group 0 ps 0: not ended by itself in 0.1 s")
        run.expect("terminating group 0 ps 0$")
        assert_gone(first)
        assert all(map(runs, second))
        (path.parent / "over1").touch()
        run.expect("group 1 worker 0 is done")
        run.expect("terminating group 1 ps 0$")
        assert run.finish()[0] == 0


@pytest.mark.nightly
def test_a_group_that_is_over_is_neither_waited_for_nor_spoken_of(script):
    path = script("if group == 1:\n    wait_for('go')")
    flags = ["--num_groups=2", "--num_ps=0", "--num_workers=1"]
    with Launched(*flags, "--grace_seconds=0", path) as run:
        run.expect("group 0 worker 0 is done")
        (path.parent / "go").touch()
        status, text = run.finish()
    assert status == 0
    said = re.findall(r"(?m)^\[tfdist\] (.*)$", text)
    assert [message.split(" pid ")[0] for message in said] == [
        "group 0 worker 0:",
        "group 1 worker 0:",
        "group 0 worker 0 is done",
        "group 1 worker 0 is done",
    ]


@pytest.mark.nightly
def test_signals_end_all_groups_however_far_they_are(script):
    path = script(
        """
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if group == 0 and job == "worker":
            for name in ("0ps", "1ps", "1worker"):
                wait_for(name)
            sys.exit(6)
        (tmp / f"{group}{job}").touch()
        forever()
        """
    )
    flags = ["--num_groups=2", "--num_workers=1", "--grace_seconds=0"]
    flags += ["--fail_fast", "--terminate_seconds=1000"]
    with Launched(*flags, path) as run:
        # The first group has failed, and waits for what is deaf.
        run.expect("terminating group 0 ps 0$")
        everything = run.descendants()
        run.process.send_signal(signal.SIGTERM)
        run.expect("got SIGTERM$")
        run.expect("terminating group 1 worker 0$")
        time.sleep(supervisor.SECONDS_TOGETHER)
        run.process.send_signal(signal.SIGTERM)
        status, text = run.finish()
    assert status == 6
    assert text.count("terminating group 0") == 1
    assert "got SIGTERM again" in text
    assert "killing group 0 ps 0\n" in text
    assert "killing group 1 ps 0, group 1 worker 0" in text
    assert_gone(everything)


@pytest.mark.nightly
def test_time_is_up_for_all_groups_at_once(script):
    path = script(
        """
        if group == 1 and job == "worker":
            sys.exit()  # Its server has the grace, were it not for the time.
        forever()
        """
    )
    flags = ["--num_groups=3", "--num_workers=1", "--grace_seconds=1000"]
    with Launched(*flags, "--timeout=1", path) as run:
        status, text = run.finish()
    assert status == 124
    assert text.count("not done after 1 s\n") == 1
    for group in range(3):
        assert text.count(f"terminating group {group} ps 0") == 1
    assert "by itself" not in text


@pytest.mark.nightly
def test_a_reader_that_goes_away_ends_all_groups(script):
    path = script("while True:\n    print('more')")
    reader, writer = os.pipe()
    flags = ["--num_groups=2", "--num_ps=0", "--num_workers=1"]
    with Launched(*flags, path, stdout=writer) as run:
        os.close(writer)
        assert os.read(reader, 10)
        everything = run.descendants()
        os.close(reader)
        assert wait_for_exit(run.process) == 128 + signal.SIGPIPE
        assert_gone(everything)
