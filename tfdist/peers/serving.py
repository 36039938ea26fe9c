"""A worker's own server, of which nobody else needs to be there."""

import contextlib

import tensorflow as tf

from tfdist.cluster import bare_server
from tfdist.cluster import connection
from tfdist.peers import board
from tfdist.peers import meetings

# A process starts its server once.
_started = []


def start(config, timeout, first, name):
    """Starts this process's server, and waits until the others listen.

    Or until one of them trains: then this worker joins those that are there.

    Args:
      config: The `ClusterConfig`, of workers alone.
      timeout: Seconds to wait for workers that are not up yet.
      first: Number of the first workers, which alone are waited for.
      name: As of `Roster`.

    Raises:
      ClusterConfigError: This process is part of another cluster already.
      OSError: This process's own server does not start.
      TimeoutError: A worker could not be reached; the message names it.
    """
    if _started and _started != [config]:
        (other,) = _started
        raise connection.another_cluster(config, other)
    if not _started:
        bare_server.start(config)
        _started.append(config)
    others = config.worker_addresses
    for one in (config.task_name, *config.worker_names[first:]):
        others.pop(one, None)
    readers = {}
    for one, address in others.items():
        job, _, task = one.removeprefix("/job:").partition("/task:")
        readers[one] = board.BoardReader(address, job, int(task))

    def somebody_trains(there):
        for one in there:
            with contextlib.suppress(tf.errors.OpError, OSError):
                status = meetings.status_of(readers[one], name)
                if status is not None and meetings.trains(status):
                    return True
        return False

    try:
        connection.wait_for_listeners(
            "worker", others, timeout, somebody_trains
        )
    finally:
        for reader in readers.values():
            reader.close()
