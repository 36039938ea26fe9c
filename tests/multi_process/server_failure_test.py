"""Servers that are late, killed or stopped: bounded waits that name them."""

import contextlib
import re
import signal
import socket

import pytest

from tests.multi_process import elections

pytestmark = pytest.mark.nightly


def names(task_index):
    """A pattern that is found in what names a server."""
    return rf"/job:ps/(replica:0/)?task:{task_index}\b"


@contextlib.contextmanager
def held(address):
    """Listens on an address and never answers."""
    host, port = address.rsplit(":", 1)
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, int(port)))
        listener.listen()
        yield


def start_training(made, **arguments):
    """Starts servers and workers; returns them when all have made steps."""
    servers = made.start_servers()
    workers = made.start_workers(
        "failure_tasks:train", value=1.0, until="stop", **arguments
    )
    for worker in workers:
        worker.wait_for_steps(5)
    return servers, workers


def test_workers_wait_for_a_server_and_say_for_which(cluster):
    made = cluster(num_ps=2, num_workers=2)
    workers = made.start_workers("failure_tasks:train", value=1.0, until=5)
    made.start("ps", 0, "tasks:serve")
    missing = f"parameter server /job:ps/task:1 at {made.address('ps', 1)}"
    for worker in workers:
        # Every few seconds; the first may come before server 0 is there.
        worker.expect(rf"Waiting for {re.escape(missing)} \(\d+ s of at most")
    made.start("ps", 1, "tasks:serve")
    made.finish()
    assert workers[0].report()["updates"] == [10, 10]


def test_a_server_that_never_comes_is_named_in_the_error(cluster):
    made = cluster(num_ps=2, num_workers=1)
    made.start("ps", 0, "tasks:serve").expect("serves on port")
    worker = made.start(
        "worker",
        0,
        "failure_tasks:train",
        value=1.0,
        until=1,
        start_timeout=15.0,
    )
    assert worker.wait() == 1
    last = worker.output().splitlines()[-1]
    assert last == (
        "TimeoutError: Gave up after 15 s waiting for parameter server "
        f"/job:ps/task:1 at {made.address('ps', 1)}. Is it running, and is "
        "its address in TF_CONFIG right?"
    )


@pytest.mark.parametrize("job", ["ps", "worker"])
def test_a_port_in_use_is_named_in_the_error(cluster, job):
    made = cluster(num_ps=1, num_workers=1)
    address = made.address(job, 0)
    made.start_servers()
    if job == "worker":
        # Of another user: what takes the port of a server is one, too.
        with held(address):
            task = made.start(
                "worker", 0, "failure_tasks:train", value=1.0, until=1
            )
            assert task.wait() == 1
    else:
        made.tasks[0].expect("serves on port")
        task = made.start("ps", 0, "tasks:serve")
        assert task.wait() == 1
    assert task.output().splitlines()[-1] == (
        f"OSError: /job:{job}/task:0 cannot serve on its address in TF_CONFIG, "
        f"{address} (Could not start gRPC server). Is the port in use?"
    )


def test_a_second_cluster_on_the_same_ports_is_refused(cluster):
    # Nobody waits for the second worker, which is never started.
    made = cluster(num_ps=1, num_workers=2, initial_workers=1)
    made.start_servers()
    first = made.start(
        "worker", 0, "failure_tasks:train", value=1.0, until="stop"
    )
    first.wait_for_steps(5)
    # Another run: its own worker's address, the servers' of this one.
    other = made.start_of_another_cluster(
        "worker", 0, "failure_tasks:train", value=1.0, until="stop"
    )
    assert other.wait() == 1
    last = other.output().splitlines()[-1]
    assert "ClusterConfigError: Parameter server /job:ps/task:0 at " in last
    assert "is one of another cluster" in last
    made.tell("stop")
    assert first.wait() == 0
    steps = first.steps()
    assert first.report()["updates"] == [steps]


def test_a_second_cluster_that_gets_a_lost_servers_port_is_left_alone(cluster):
    made = cluster(num_ps=1, num_workers=1)
    (server,), (worker,) = start_training(made)
    server.kill()
    other = made.start_of_another_cluster("ps", 0, "tasks:serve")
    other.expect("serves on port")
    for _ in range(2):
        worker.expect(r"\(a server of another cluster listens there\) to come")
    steps = worker.steps()
    other.kill()
    server = made.start("ps", 0, "tasks:serve")
    worker.expect("goes on after .* without /job:ps/task:0")
    worker.wait_for_steps(steps + 5)
    made.tell("stop")
    assert worker.wait() == server.wait() == 0
    # To the other one it has given nothing.
    assert len(re.findall("goes on after", worker.output())) == 1


def test_what_listens_and_is_no_server_is_named_in_the_error(cluster):
    made = cluster(num_ps=2, num_workers=1)
    made.start("ps", 0, "tasks:serve", start_timeout=60.0)
    with held(made.address("ps", 1)):
        worker = made.start(
            "worker",
            0,
            "failure_tasks:train",
            value=1.0,
            until=1,
            start_timeout=20.0,
        )
        # Connections succeed, as far as TCP goes, and nobody ever answers.
        assert worker.wait() == 1
    message = worker.output().splitlines()[-1]
    assert message.startswith(
        "TimeoutError: Gave up after 20 s waiting for parameter server "
        f"/job:ps/task:1 at {made.address('ps', 1)} to answer ("
    )


def test_a_server_that_is_slow_to_answer_is_connected_to(cluster):
    made = cluster(num_ps=2, num_workers=1)
    servers = made.start_servers()
    for server in servers:
        server.expect("serves on port")
    servers[1].send(signal.SIGSTOP)
    worker = made.start("worker", 0, "failure_tasks:train", value=1.0, until=5)
    worker.expect(rf"Waiting for parameter server {names(1)} .* to answer")
    servers[1].send(signal.SIGCONT)
    made.finish()


def check_exact(reports):
    """Every parameter is minus the updates that its server has applied."""
    updates = reports[0]["updates"]
    for report in reports:
        counts = report["counts"]
        assert report["updates"] == updates
        for part, server in zip(
            report["parts"], report["placement"], strict=True
        ):
            assert set(part) == {-1.0 * updates[server]}
        for applied, lost in zip(
            counts["applied"], counts["lost"], strict=True
        ):
            assert counts["pushed"] == applied + lost
            assert lost >= 0
    notes = [report["elections"] for report in reports]
    elections.check(notes)
    for server in range(len(updates)):
        for report, more in zip(
            reports, elections.most_lost(notes, server), strict=True
        ):
            # Of each recovery the one that was on its way when a call failed.
            most = len(report["recoveries"]) + more
            assert report["counts"]["lost"][server] <= most, notes
    for server, number in enumerate(updates):
        applied = [r["counts"]["applied"][server] for r in reports]
        assert sum(applied) == number


def test_a_server_that_does_not_come_back_ends_the_workers(cluster):
    made = cluster(num_ps=2, num_workers=2)
    servers, workers = start_training(made, server_timeout=4.0)
    servers[1].kill()
    for worker in workers:
        worker.expect(rf"No answer from parameter server {names(1)}")
        report = worker.wait_for_report()
        assert report["error"] == "TimeoutError"
        assert re.search(
            rf"waiting for parameter server {names(1)} at "
            rf"{made.address('ps', 1)} to come back",
            report["message"],
        )
        assert not re.search(names(0), report["message"])
        assert worker.wait() == 1


def test_a_server_that_is_stopped_for_long_loses_nothing(cluster):
    made = cluster(num_ps=2, num_workers=2)
    servers, workers = start_training(made)
    servers[1].send(signal.SIGSTOP)
    for worker in workers:
        # It counts as dead ...
        worker.expect(rf"No answer from parameter server {names(1)}")
    servers[1].send(signal.SIGCONT)
    for worker in workers:
        # ... until it answers, with what it held.
        worker.expect(r"goes on after [\d.]+ s\.")
        worker.wait_for_steps(worker.steps() + 10)
    made.tell("stop")
    made.finish()
    check_exact([worker.report() for worker in workers])
    for worker in workers:
        assert worker.report()["recoveries"] == [[[], []]]
