"""Calls to a stopped peer end, whatever is imported first.

Without a launcher, which would have set the environment.
"""

import os
import signal
import socket
import subprocess
import sys

import pytest

from tests import waits
from tfdist.cluster import environment

pytestmark = pytest.mark.nightly

SERVER = """
import sys
import tensorflow as tf

server = tf.distribute.Server(
    {"ps": [sys.argv[1]]}, job_name="ps", task_index=0, protocol="grpc"
)
print("serving", flush=True)
server.join()
"""
CLIENT = """
import sys
{imports}

tf.config.experimental_connect_to_host(sys.argv[1], job_name="ps")
device = "/job:ps/replica:0/task:0/device:CPU:0"


def add():
    with tf.device(device):
        return float(tf.constant(1.0) + tf.constant(2.0))


assert add() == 3.0
print("connected", flush=True)
input()
try:
    add()
except tf.errors.UnavailableError:
    print("unavailable", flush=True)
"""
IMPORTS = {
    "tfdist first": "import tfdist\nimport tensorflow as tf",
    "tfdist last": "import keras\nimport tensorflow as tf\nimport tfdist",
}


def started(code, address):
    environ = {
        name: value
        for name, value in os.environ.items()
        if name not in environment.RUNTIME_ENVIRONMENT
    }
    return subprocess.Popen(
        [sys.executable, "-c", code, address],
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("order", IMPORTS)
def test_a_call_to_a_stopped_peer_ends(order):
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        address = f"localhost:{probe.getsockname()[1]}"
    server = started(SERVER, address)
    client = None
    try:
        assert server.stdout.readline() == "serving\n"
        client = started(CLIENT.format(imports=IMPORTS[order]), address)
        assert client.stdout.readline() == "connected\n"
        server.send_signal(signal.SIGSTOP)
        client.stdin.write("\n")
        client.stdin.flush()
        waits.wait_for_exit(client)
        assert client.stdout.read() == "unavailable\n"
    finally:
        for process in (server, client):
            if process is not None:
                process.kill()
                process.wait()
