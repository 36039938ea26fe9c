"""A worker's own server, of which nobody else needs to be there."""

from absl import logging
import tensorflow as tf

from tfdist import quiet
from tfdist.cluster import connection
from tfdist.cluster import tf_config
from tfdist.cluster import versions

# A process starts its server once.
_started = []


def start(config, timeout):
    """Starts this process's server, and waits until the others listen.

    Args:
      config: The `ClusterConfig`, of workers alone.
      timeout: Seconds to wait for workers that are not up yet.

    Raises:
      ClusterConfigError: This process is part of another cluster already.
      OSError: This process's own server does not start.
      TimeoutError: A worker could not be reached; the message names it.
    """
    if _started and _started != [config]:
        (other,) = _started
        raise tf_config.ClusterConfigError(
            f"This process must stay {other.task_name} of a cluster of "
            f"{other.num_workers} workers, and cannot take part in another "
            f"one. Received: {config.task_name} of {config.num_workers}"
        )
    if not _started:
        spec = {config.task_type: {config.task_index: config.address}}
        with quiet.quietly():  # It logs its session configuration.
            tf.config.experimental_connect_to_cluster(
                tf.train.ClusterSpec(spec),
                job_name=config.task_type,
                task_index=config.task_index,
                protocol=config.rpc_layer,
            )
        connection.start_runtime(config)
        versions.leave(config)
        logging.warning(
            "%s serves on port %s of every network interface, without "
            "authentication or encryption: keep it in a private network.",
            config.task_name,
            config.address.rsplit(":", 1)[1],
        )
        _started.append(config)
    addresses = *config.spec.get("chief", ()), *config.spec.get("worker", ())
    others = dict(zip(config.worker_names, addresses, strict=True))
    del others[config.task_name]
    connection.wait_for_listeners("worker", others, timeout)
