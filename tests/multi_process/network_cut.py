"""A cluster whose network is cut and healed, in a namespace of its own.

    python -m tests.multi_process.network_cut DIRECTORY

Ends with `REFUSED` where the system allows no network namespace.
"""

import json
import pathlib
import socket
import struct
import sys

from tests.multi_process.real_cluster import ClusterUnderTest
from tests.multi_process.real_cluster import Zygote
from tfdist.cli import namespace

REFUSED = 77
_SET_FLAGS = 0x8914  # SIOCSIFFLAGS
_IFF_UP = 0x1


def set_loopback(up):
    """Switches the only interface that there is on or off."""
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sH22x", b"lo", _IFF_UP if up else 0)
        fcntl.ioctl(any_socket, _SET_FLAGS, request)


def main(directory):
    """Trains over a cut of the network; prints the workers' reports."""
    try:
        namespace.enter()
    except OSError as error:
        print(error)
        return REFUSED
    with Zygote() as zygote:
        with ClusterUnderTest(
            zygote, pathlib.Path(directory), num_ps=2, num_workers=2
        ) as made:
            made.start_servers()
            workers = made.start_workers(
                "failure_tasks:train", value=1.0, until="stop"
            )
            for worker in workers:
                worker.wait_for_steps(10)
            set_loopback(False)
            for worker in workers:
                worker.expect("No answer from parameter server")
            set_loopback(True)
            for worker in workers:
                worker.expect(r"goes on after [\d.]+ s\.")
                worker.wait_for_steps(worker.steps() + 10)
            made.tell("stop")
            made.finish()
            print(json.dumps([worker.report() for worker in workers]))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
