"""`tfdist doctor` looks at real servers, some of which are not well."""

import json
import re
import signal
import socket
import time

import pytest

from tests.multi_process import doctor_tasks
from tfdist.cli import doctor
from tfdist.cluster import versions

pytestmark = pytest.mark.nightly


def examine(capsys, spec, *flags):
    """Returns the exit status, and the figures."""
    text = json.dumps({"cluster": spec})
    status = doctor.main(
        # Healthy tasks may be starved.
        [f"--tf_config={text}", "--json=-", "--timeout=60", *flags]
    )
    return status, json.loads(capsys.readouterr().out)


def spec_of(cluster, *, num_ps=2, num_workers=2):
    return {
        "ps": [cluster.address("ps", k) for k in range(num_ps)],
        "worker": [cluster.address("worker", k) for k in range(num_workers)],
    }


def test_a_cluster_in_the_midst_of_a_training(cluster, capsys, monkeypatch):
    cluster = cluster(num_ps=2, num_workers=2)
    servers = [
        cluster.start("ps", 0, "tasks:serve"),
        cluster.start("ps", 1, "doctor_tasks:serve_older"),
    ]
    worker = cluster.start("worker", 0, "doctor_tasks:stay")
    worker.wait_for_report()
    # The worker has seen it by itself.
    (warning,) = re.findall(r"Parameter server .* runs .*", worker.output())
    assert warning.startswith(
        f"Parameter server /job:ps/task:1 runs tfdist {doctor_tasks.OLDER} "
        f"(here {versions.own()['tfdist']}):"
    )
    spec = spec_of(cluster)

    status, figures = examine(capsys, spec, "--bandwidth_mb=2")
    assert status == 1
    (wrong,) = figures["wrong"]
    assert wrong.startswith(f"ps 1 at {spec['ps'][1]}: runs tfdist 0.0.9 (here")
    (note,) = figures["to_know"]
    assert note.startswith(f"worker 1 at {spec['worker'][1]}: nothing listens")
    assert figures["here"] == versions.own()
    ports = [task["port"] for task in figures["tasks"]]
    assert ports == ["open", "open", "open", "closed"]
    for task in figures["tasks"][:3]:
        found = task["measured"]
        # There is one clock, and an answer is between its two readings.
        assert abs(found["clock_seconds"]) <= found["round_trip_seconds"]
        assert found["round_trip_seconds"] > 0
        # Two megabytes within the minute of --timeout, by the second.
        assert found["bytes_to"] > 3e4 and found["bytes_from"] > 3e4
        assert found["versions"]["tensorflow"] == versions.own()["tensorflow"]

    # The clock here is put back: the others are ahead.
    with monkeypatch.context() as patched:
        now = time.time
        patched.setattr(time, "time", lambda: now() - 100)
        _, figures = examine(capsys, spec | {"ps": spec["ps"][:1]})
    ahead = [text for text in figures["wrong"] if "s ahead of" in text]
    assert len(ahead) == 2 and "its clock is 100 s ahead" in ahead[0]
    # Without the second server that is another cluster.
    assert any("another TF_CONFIG" in text for text in figures["wrong"])

    swapped = spec | {"ps": spec["ps"][::-1]}
    _, figures = examine(capsys, swapped)
    assert "the server there is /job:ps/task:1" in figures["wrong"][0]
    assert "the server there is /job:ps/task:0" in figures["wrong"][1]

    servers[1].send(signal.SIGSTOP)
    try:
        _, figures = examine(capsys, spec, "--timeout=15", "--bandwidth_mb=1")
    finally:
        servers[1].send(signal.SIGCONT)
    assert "no answer within 15 s" in figures["wrong"][0]
    assert [task["measured"] is None for task in figures["tasks"]] == [
        False,
        True,
        False,
        True,
    ]
    # Nobody has noticed: all end as they should.
    cluster.start("worker", 1, "doctor_tasks:stay").wait_for_report()
    cluster.tell("go")
    cluster.finish()


def test_a_task_is_measured_before_a_run(cluster, capsys):
    cluster = cluster(num_ps=1, num_workers=1)
    spec = spec_of(cluster, num_ps=1, num_workers=1)
    task = cluster.start("ps", 0, "doctor_tasks:serve_bare", seconds=600.0)
    task.expect("serves on port")
    status, figures = examine(capsys, spec)
    assert status == 0 and not figures["wrong"]
    assert figures["tasks"][0]["measured"]["versions"]["cluster"]
    task.kill()
    with socket.socket() as silent:
        # In the port's place: whoever connects is never answered.
        silent.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        silent.bind(("127.0.0.1", int(spec["ps"][0].rpartition(":")[2])))
        silent.listen()
        status, figures = examine(capsys, spec, "--timeout=1")
    assert status == 1
    assert "no answer within 1 s" in figures["wrong"][0]
