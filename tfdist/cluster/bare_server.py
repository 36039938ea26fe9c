"""A server of which nobody else needs to be there."""

import time

from absl import logging

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
    connection.start_alone(config)
    versions.leave(config)
    connection.warn_of_port(config)


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
