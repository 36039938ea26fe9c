"""Tries the WireGuard recipe of docs/security.md between two hosts.

    unshare --mount --net python examples/secure_tunnel.py

The hosts are network namespaces of this machine, joined by a cable (a veth
pair). A parameter server trains on one of them with a worker on the other,
first over the bare cable, then through a tunnel with the firewall of the
recipe; somebody listens on the cable all the while. Needs the rights of root,
and the programs ip, nsenter, nft, wg, and wireguard-go where the kernel has
no WireGuard.
"""

from collections.abc import Sequence
import contextlib
import json
import pathlib
import re
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import time

from absl import app
from absl import flags

FLAGS = flags.FLAGS
flags.DEFINE_integer("port", 2222, "Of the tasks.", lower_bound=1)
flags.DEFINE_float("timeout", 180.0, "Seconds for each run.")
flags.DEFINE_string("listen", None, "Not for users: the cable's interface.")

SCRIPT = pathlib.Path(__file__).with_name("train_image_classifier.py")
CABLE = ("10.77.0.1", "10.77.0.2")
TUNNEL = ("10.88.0.1", "10.88.0.2")
WIREGUARD_PORT = 51820
# What gRPC and TensorFlow say in the clear: HTTP/2's first words, and the
# name of a device.
PLAIN = (b"PRI * HTTP/2.0", b"/job:ps/replica:0")
_ALL_PROTOCOLS = 3  # ETH_P_ALL


class Host(contextlib.AbstractContextManager):
    """A network namespace, which is there as long as its first process.

    Args:
      number: 0 for the server's host, 1 for the worker's.
    """

    def __init__(self, number: int):
        self.number = number
        self.tunnel = f"wg{number}"
        self._process = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", "echo; exec cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._process.stdout.readline()
        self.pid = self._process.pid

    def __exit__(self, *exc_info):
        self._process.stdin.close()
        self._process.wait(10)

    def start(self, *command: object, **popen) -> subprocess.Popen:
        """Starts a program on this host."""
        inside = ("nsenter", f"--target={self.pid}", "--net")
        return subprocess.Popen([*inside, *map(str, command)], **popen)

    def run(self, command: str, text: str | None = None) -> str:
        """Runs a program to its end; returns what it prints."""
        process = self.start(
            *command.split(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        output, _ = process.communicate(text, timeout=30)
        if process.returncode:
            raise RuntimeError(f"{command!r} ended with {process.returncode}")
        return output.strip()


def connect(hosts: Sequence[Host]) -> None:
    """Lays the cable between the two hosts."""
    a, b = hosts
    a.run(f"ip link add cable type veth peer name cable netns {b.pid}")
    for host in hosts:
        host.run("ip link set lo up")
        host.run(f"ip addr add {CABLE[host.number]}/24 dev cable")
        host.run("ip link set cable up")


def make_tunnel(hosts: Sequence[Host], stack: contextlib.ExitStack) -> str:
    """Makes the tunnel of the recipe; returns whose WireGuard it is."""
    keys = {host: host.run("wg genkey") for host in hosts}
    kind = "the kernel's"
    for host in hosts:
        if not has_kernel_wireguard(host):
            kind = "wireguard-go's"
            process = host.start(
                *("wireguard-go", "--foreground", host.tunnel),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            stack.callback(process.wait, 10)
            stack.callback(process.terminate)
            end = time.monotonic() + 10
            while host.tunnel not in host.run("wg show interfaces"):
                if time.monotonic() > end:
                    raise TimeoutError("no interface of wireguard-go in 10 s")
                time.sleep(0.05)
    for host, other in (hosts, hosts[::-1]):
        host.run(
            f"wg set {host.tunnel} listen-port {WIREGUARD_PORT} "
            f"private-key /dev/stdin peer {host.run('wg pubkey', keys[other])} "
            f"allowed-ips {TUNNEL[other.number]}/32 "
            f"endpoint {CABLE[other.number]}:{WIREGUARD_PORT}",
            keys[host],
        )
        host.run(f"ip addr add {TUNNEL[host.number]}/24 dev {host.tunnel}")
        host.run(f"ip link set {host.tunnel} up")
        # TensorFlow listens on the cable, too: nothing may come from there.
        host.run(
            "nft -f -",
            "table inet tfdist { chain input { type filter hook input priority "
            f'filter; policy accept; iifname != {{ "lo", "{host.tunnel}" }} '
            f"tcp dport {FLAGS.port} drop; }}; }}\n",
        )
    return kind


def has_kernel_wireguard(host: Host) -> bool:
    """Makes the interface if the kernel can; returns whether it can."""
    command = ("ip", "link", "add", host.tunnel, "type", "wireguard")
    return host.start(*command, stderr=subprocess.DEVNULL).wait(30) == 0


def try_out(
    hosts: Sequence[Host], addresses: Sequence[str], directory: pathlib.Path
) -> dict[str, object]:
    """Trains, and listens on the cable; returns what was found."""
    server, worker = hosts
    cluster = {
        "ps": [f"{addresses[0]}:{FLAGS.port}"],
        "worker": [f"{addresses[1]}:{FLAGS.port}"],
    }
    with contextlib.ExitStack() as stack:
        listener = worker.start(
            sys.executable,
            __file__,
            "--listen=cable",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        stack.callback(listener.kill)
        listener.stdout.readline()
        tasks = []
        for host, job in ((server, "ps"), (worker, "worker")):
            config = {"cluster": cluster, "task": {"type": job, "index": 0}}
            log = stack.enter_context(open(directory / f"{job}.log", "w+"))
            arguments = ["--epochs=2", f"--output_dir={directory}"]
            task = host.start(
                *("env", f"TF_CONFIG={json.dumps(config)}", sys.executable),
                *(SCRIPT, *arguments),
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            stack.callback(task.kill)
            tasks.append(task)
            if job == "ps":
                wait_for(directory / "ps.log", "serves on port")
                figures = doctor(worker, cluster)
                beside = reaches(worker, CABLE[0])
        statuses = [task.wait(FLAGS.timeout) for task in tasks]
        heard = json.loads(listener.communicate(b"", timeout=30)[0])
    return {
        "exit statuses of server and worker": statuses,
        "round trip (ms)": round(1e3 * figures["round_trip_seconds"], 2),
        "MB/s to the server": round(figures["bytes_to"] / 1e6),
        "MB/s from the server": round(figures["bytes_from"] / 1e6),
        "the server's port is open on the cable": beside,
        **heard,
    }


def wait_for(path: pathlib.Path, pattern: str) -> None:
    """Waits until a log has a line."""
    end = time.monotonic() + FLAGS.timeout
    while not re.search(pattern, path.read_text()):
        if time.monotonic() > end:
            raise TimeoutError(f"no {pattern!r} in {path.read_text()!r}")
        time.sleep(0.1)


def doctor(host: Host, cluster: dict[str, list[str]]) -> dict[str, float]:
    """What `tfdist doctor` measures of the server."""
    process = host.start(
        *(sys.executable, "-m", "tfdist", "doctor", "--json=-"),
        f"--tf_config={json.dumps({'cluster': cluster})}",
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    figures = json.loads(process.communicate(timeout=FLAGS.timeout)[0])
    if not figures["tasks"][0]["measured"]:
        raise RuntimeError(f"the doctor found: {figures['wrong']}")
    return figures["tasks"][0]["measured"]


def reaches(host: Host, address: str) -> bool:
    """Whether the server's port at an address can be reached from a host."""
    code = f"import socket; socket.create_connection({(address, FLAGS.port)},2)"
    process = host.start(sys.executable, "-c", code, stderr=subprocess.DEVNULL)
    return process.wait(30) == 0


def listen(interface: str) -> None:
    """Prints what is heard on an interface until standard input ends."""
    heard = {"megabytes of TCP": 0.0, "megabytes of UDP": 0.0}
    heard |= {f"packets with {word.decode()!r}": 0 for word in PLAIN}
    protocol = socket.htons(_ALL_PROTOCOLS)
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, protocol) as ear:
        ear.bind((interface, 0))
        print(flush=True)
        while True:
            ready, _, _ = select.select([ear, sys.stdin], [], [])
            if ear in ready:
                packet = ear.recv(1 << 17)
                # In Ethernet's and IPv4's headers.
                kind = {6: "TCP", 17: "UDP"}.get(packet[23])
                if packet[12:14] == b"\x08\x00" and kind:
                    heard[f"megabytes of {kind}"] += len(packet) / 1e6
                for word in PLAIN:
                    heard[f"packets with {word.decode()!r}"] += word in packet
            elif sys.stdin in ready:
                break
    print(json.dumps(heard))


def main(argv: Sequence[str]) -> None:
    """Tries both ways, and prints a table."""
    if len(argv) > 1:
        raise app.UsageError(f"Unknown arguments: {' '.join(argv[1:])}")
    if FLAGS.listen:
        listen(FLAGS.listen)
        return
    for program in ("ip", "nsenter", "nft", "wg"):
        if shutil.which(program) is None:
            raise app.UsageError(f"The program {program} is not there.")
    with contextlib.ExitStack() as stack:
        hosts = [stack.enter_context(Host(number)) for number in range(2)]
        temporary = stack.enter_context(tempfile.TemporaryDirectory())
        connect(hosts)
        found = {}
        for name in ("bare", "tunnel"):
            if name == "tunnel":
                print(f"WireGuard is {make_tunnel(hosts, stack)}.\n")
            directory = pathlib.Path(temporary, name)
            directory.mkdir()
            addresses = TUNNEL if name == "tunnel" else CABLE
            found[name] = try_out(hosts, addresses, directory)
    print("| | bare cable | WireGuard |\n| --- | --- | --- |")
    for what, bare in found["bare"].items():
        values = (bare, found["tunnel"][what])
        shown = [f"{v:.2f}" if isinstance(v, float) else str(v) for v in values]
        print(f"| {what} | {' | '.join(shown)} |")


if __name__ == "__main__":
    app.run(main)
