"""A cluster on this machine: its ports, and the `TF_CONFIG` of each task."""

import contextlib
import dataclasses
import json
import socket
import sys

JOBS = ("ps", "chief", "worker", "evaluator")
"""The order in which tasks are started."""


@dataclasses.dataclass(frozen=True)
class LocalTask:
    """One task of a local cluster.

    Attributes:
        job: its job.
        index: its index in the job.
        address: its `host:port`.
        tf_config: the text of its `TF_CONFIG`.
    """

    job: str
    index: int
    address: str
    tf_config: str

    @property
    def label(self) -> str:
        """What people call the task, as `worker 0`."""
        return f"{self.job} {self.index}"


class LocalCluster(contextlib.AbstractContextManager):
    """Loopback ports for a number of tasks, held while the context lasts.

    Each port is held by a socket that is bound, with `SO_REUSEADDR`, and
    never listens. While it is, the system hands the port to nobody who asks
    for a free one, neither between its choice and the task's start nor
    between a task's death and its restart; but Linux lets a task bind it
    that sets `SO_REUSEADDR` too, as gRPC's servers and most others do.
    Elsewhere the ports are let go before the tasks start, and a collision
    is merely unlikely.
    """

    def __init__(self, counts: dict[str, int]):
        """Chooses the ports.

        Args:
            counts: job -> number of tasks.
        """
        self._sockets = contextlib.ExitStack()
        cluster = {
            job: [self._free_address() for _ in range(counts[job])]
            for job in JOBS
            if counts.get(job)
        }
        if sys.platform != "linux":
            self._sockets.close()
        self.tasks = [
            LocalTask(
                job=job,
                index=index,
                address=address,
                tf_config=json.dumps(
                    {
                        "cluster": cluster,
                        "task": {"type": job, "index": index},
                    }
                ),
            )
            for job, addresses in cluster.items()
            for index, address in enumerate(addresses)
        ]

    def __exit__(self, *exc_info):
        self._sockets.close()

    def _free_address(self) -> str:
        holder = self._sockets.enter_context(socket.socket())
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        host, port = holder.getsockname()
        return f"{host}:{port}"
