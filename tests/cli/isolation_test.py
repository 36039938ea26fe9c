"""Other machines are kept from the ports of a cluster, or a user is told."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys

import pytest

from tests.cli.launched import Launched
from tests.waits import SECONDS
from tests.waits import wait_until
from tfdist.cli import firewall
from tfdist.cli import isolation
from tfdist.cli import namespace

# Root of a namespace of one's own, which is gone with the process.
_NAMESPACE = ("unshare", "--user", "--map-root-user", "--net")


def allowed(*command):
    try:
        return subprocess.run(command, capture_output=True).returncode == 0
    except OSError:
        return False


needs_namespaces = pytest.mark.skipif(
    not allowed(*_NAMESPACE, "true"),
    reason="the system does not allow network namespaces",
)
_LISTEN = """
import socket
host, port = place["cluster"]["ps"][0].split(":")
if job == "ps":
    with socket.create_server(("0.0.0.0", int(port))) as server:
        (tmp / "listens").touch()
        server.accept()
        wait_for("go")
else:
    wait_for("listens")
    names = [name for _, name in socket.if_nameindex()]
    socket.create_connection((host, int(port))).close()
    print(os.getuid(), "reached", port, "by", names)
    wait_for("go")
"""


@pytest.fixture
def nft(tmp_path, monkeypatch):
    """Makes a stand-in for `nft`, as a program of the shell."""

    def make(body):
        path = tmp_path / "nft"
        path.write_text(f"#!/bin/sh\ncd {tmp_path}\n{body}\n")
        path.chmod(0o755)
        # In front: a real one would change this machine's firewall.
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
        monkeypatch.setattr(namespace, "outside_interfaces", lambda: ["eth7"])

    return make


@needs_namespaces
@pytest.mark.nightly
def test_a_cluster_in_a_network_of_its_own(script, tmp_path):
    path = script(_LISTEN)
    with Launched("--num_workers=1", "--isolate=always", path) as run:
        run.expect("in a network of their own")
        match = run.expect(r"(\d+) reached (\d+) by (.*)")
        assert match[1] == str(os.getuid())
        assert match[3] == "['lo']"
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", int(match[2])), SECONDS)
        (tmp_path / "go").touch()
        assert run.finish()[0] == 0


@needs_namespaces
def test_a_user_without_rights_stays_who_he_is(tmp_path):
    script = (
        "import os, socket; from tfdist.cli import namespace; "
        "namespace.enter(); print(os.getuid(), namespace.outside_interfaces());"
        "socket.create_connection("
        "socket.create_server(('127.0.0.1', 0)).getsockname())"
    )
    run = subprocess.run(
        # A user of another number than 0, who has no capability.
        ["unshare", "--user", "--map-user=4321", "--map-group=4321"]
        + [sys.executable, "-c", script],
        capture_output=True,
        text=True,
    )
    assert run.stdout == "4321 []\n", run.stderr


@needs_namespaces
def test_a_system_that_allows_no_namespace_is_told_of(script, tmp_path):
    path = script("(tmp / 'ran').touch()")
    forbid = "echo 0 > /proc/sys/user/max_user_namespaces; exec "
    drop = "setpriv --bounding-set=-all --inh-caps=-all "
    launch = f"{sys.executable} -m tfdist launch --isolate=always {path}"
    run = subprocess.run(
        ["unshare", "--user", "--map-root-user", "sh", "-c"]
        + [forbid + drop + launch],
        capture_output=True,
        text=True,
    )
    assert run.returncode == 2, run.stderr
    assert re.search(
        r"Flag --isolate=always needs a network namespace, which the system "
        r"does not allow here: unshare\(CLONE_NEWUSER \| CLONE_NEWNET\): \w+",
        run.stderr,
    )
    assert not (tmp_path / "ran").exists()


def test_the_warning_names_the_ports_and_the_reason(nft):
    # As `nft` does, with what it was told below.
    nft(r"printf 'Error: Operation not permitted\ndrop;\n'; cat > /dev/null")
    told = []
    addresses = ["127.0.0.1:2222", "127.0.0.1:1111"]
    with isolation.keep_others_out("auto", addresses, told.append):
        pass
    (text,) = told
    assert "warning: " in text and "ports 1111, 2222 " in text
    assert "eth7" in text and "nft: Error: Operation not permitted" in text


@pytest.mark.parametrize(
    ("isolate", "ports", "interfaces"),
    [
        ("never", ["h:1"], ["eth7"]),
        ("auto", [], ["eth7"]),
        ("auto", ["h:1"], []),
    ],
)
def test_nothing_is_said_where_nothing_is_open(
    nft, monkeypatch, isolate, ports, interfaces
):
    nft("touch was_run")
    monkeypatch.setattr(namespace, "outside_interfaces", lambda: interfaces)
    told = []
    with isolation.keep_others_out(isolate, ports, told.append):
        assert not told


def test_the_rule_ends_with_a_launcher_that_is_killed(nft, tmp_path):
    # It takes what it is told line by line, and ends when nobody is there.
    nft("read rule; echo $rule > rule; read list; echo drop; cat; touch gone")
    program = (
        "import sys, time; from tfdist.cli import firewall; "
        "firewall.PortRule([7, 8]); print('made', flush=True); time.sleep(100)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE
    ) as launcher:
        assert launcher.stdout.readline() == b"made\n"
        rule = (tmp_path / "rule").read_text()
        assert not (tmp_path / "gone").exists()
        launcher.send_signal(signal.SIGKILL)
    assert re.search(r"flags owner;.*lo.* tcp dport { 7, 8 } drop;", rule)
    wait_until((tmp_path / "gone").exists, "the rule is gone")


def test_a_firewall_that_does_not_answer_is_given_up_on(nft, monkeypatch):
    nft("cat > /dev/null")
    monkeypatch.setattr(firewall, "_SECONDS", 0.2)
    with pytest.raises(firewall.FirewallError, match="not answer in 0.2 s"):
        firewall.PortRule([7])


@needs_namespaces
@pytest.mark.skipif(shutil.which("nft") is None, reason="nft is not there")
def test_a_real_rule_keeps_others_out_and_nobody_else():
    program = """
import socket, subprocess
from tfdist.cli import firewall
def ip(command):
    subprocess.run(["ip", *command.split()], check=True)
other = subprocess.Popen(["unshare", "--net", "cat"], stdin=subprocess.PIPE)
ip("link set lo up")
# Until the other one has its namespace.
import os, time
own = os.readlink("/proc/self/ns/net")
while os.readlink(f"/proc/{other.pid}/ns/net") == own:
    time.sleep(0.01)
ip(f"link add here type veth peer name there netns {other.pid}")
ip("addr add 10.9.8.1/24 dev here")
ip("link set here up")
inside = ["nsenter", f"--target={other.pid}", "--net"]
for command in ("addr add 10.9.8.2/24 dev there", "link set there up"):
    subprocess.run([*inside, "ip", *command.split()], check=True)
servers = [socket.create_server(("0.0.0.0", 0)) for _ in range(2)]
ports = [server.getsockname()[1] for server in servers]
def reached(port):
    code = f"import socket; socket.create_connection(('10.9.8.1', {port}), 1)"
    run = subprocess.run(
        [*inside, "%s", "-c", code], stderr=subprocess.DEVNULL
    )
    return run.returncode == 0
print(reached(ports[0]))
with firewall.PortRule(ports[:1]):
    print(reached(ports[0]), reached(ports[1]))
    socket.create_connection(("10.9.8.1", ports[0]))
print(reached(ports[0]))
other.stdin.close()
"""
    run = subprocess.run(
        [*_NAMESPACE, sys.executable, "-c", program % sys.executable],
        capture_output=True,
        text=True,
    )
    assert run.stdout == "True\nFalse True\nTrue\n", run.stderr
