"""Clusters on this machine: their ports, and the `TF_CONFIG` of each task."""

import contextlib
import dataclasses
import json
import socket
import sys
from typing import Any

JOBS = ("ps", "helper", "chief", "worker", "evaluator")
"""The order in which tasks are started."""


@dataclasses.dataclass(frozen=True)
class LocalTask:
    """One task of a local cluster.

    Attributes:
        job: its job.
        index: its index in the job.
        address: its `host:port`.
        tf_config: the text of its `TF_CONFIG`.
        group: the group whose cluster it is in; `None` where there is one
            cluster alone.
    """

    job: str
    index: int
    address: str
    tf_config: str
    group: int | None = None

    @property
    def label(self) -> str:
        """The task's name for people: `worker 0`, or `group 1 worker 0`."""
        task = f"{self.job} {self.index}"
        return task if self.group is None else f"group {self.group} {task}"


class LocalCluster(contextlib.AbstractContextManager):
    """Loopback ports for a number of tasks, held while the context lasts.

    Each port is held by a socket that is bound, with `SO_REUSEADDR`, and
    never listens. While it is, the system hands the port to nobody who asks
    for a free one, neither between its choice and the task's start nor
    between a task's death and its restart; but Linux lets a task bind it
    that sets `SO_REUSEADDR` too, as gRPC's servers and most others do.
    Elsewhere the ports are let go before the tasks start, and a collision
    is merely unlikely.

    Groups that codistil have a cluster each, all of the same size.
    """

    def __init__(
        self,
        counts: dict[str, int],
        num_groups: int = 1,
        initial_workers: int | None = None,
    ):
        """Chooses the ports.

        Args:
            counts: job -> number of tasks of a cluster.
            num_groups: the number of groups; 1 for one cluster that knows
                of no groups.
            initial_workers: how many of the workers, the chief included, are
                started at first; `None` for all.
        """
        self._sockets = contextlib.ExitStack()
        clusters = [
            {
                job: [self._free_address() for _ in range(counts[job])]
                for job in JOBS
                if counts.get(job)
            }
            for _ in range(num_groups)
        ]
        if sys.platform != "linux":
            self._sockets.close()
        self.tasks = [
            task
            for group in range(num_groups)
            for task in _tasks(clusters, group, initial_workers)
        ]

    def __exit__(self, *exc_info):
        self._sockets.close()

    @property
    def listeners(self) -> list[str]:
        """The addresses at which tasks listen: alone in a cluster, none."""
        alone = len(self.tasks) == len({task.group for task in self.tasks})
        return [] if alone else [task.address for task in self.tasks]

    def _free_address(self) -> str:
        holder = self._sockets.enter_context(socket.socket())
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        host, port = holder.getsockname()
        return f"{host}:{port}"


def _tasks(
    clusters: list[dict[str, list[str]]],
    group: int,
    initial_workers: int | None,
) -> list[LocalTask]:
    """Returns the tasks of one group's cluster."""
    cluster = clusters[group]
    config: dict[str, Any] = {"cluster": cluster}
    if initial_workers is not None:
        config["initial_workers"] = initial_workers
    if len(clusters) > 1:
        config["codistillation"] = {
            "group": group,
            "num_groups": len(clusters),
        }
        if "ps" in cluster:
            servers = [other["ps"] for other in clusters]
            config["codistillation"]["servers"] = servers
    return [
        LocalTask(
            job=job,
            index=index,
            address=address,
            tf_config=json.dumps(
                {**config, "task": {"type": job, "index": index}}
            ),
            group=group if len(clusters) > 1 else None,
        )
        for job, addresses in cluster.items()
        for index, address in enumerate(addresses)
    ]
