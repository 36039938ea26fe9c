"""A server of which nobody else needs to be there."""

import time

from absl import logging
import tensorflow as tf

from tfdist import quiet
from tfdist.cluster import connection
from tfdist.cluster import gpus
from tfdist.cluster import versions


def start(config):
    """Starts TensorFlow's server at this task's address.

    Args:
      config: The `ClusterConfig` of any task that has an address.

    Raises:
      OSError: The address cannot be served on.
    """
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


def serve(config, seconds):
    """Runs a server for others to measure the way to it.

    Args:
      config: As of `start`.
      seconds: How long.

    Raises:
      OSError: The address cannot be served on.
    """
    gpus.hide(config)
    start(config)
    logging.info("Ends in %g s.", seconds)
    time.sleep(seconds)
