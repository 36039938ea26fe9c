"""A worker's own server, of which nobody else needs to be there."""

from tfdist.cluster import bare_server
from tfdist.cluster import connection

# A process starts its server once.
_started = []


def start(config, timeout, first):
    """Starts this process's server, and waits until the others listen.

    Args:
      config: The `ClusterConfig`, of workers alone.
      timeout: Seconds to wait for workers that are not up yet.
      first: Number of the first workers, which alone are waited for.

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
    for name in (config.task_name, *config.worker_names[first:]):
        others.pop(name, None)
    connection.wait_for_listeners("worker", others, timeout)
