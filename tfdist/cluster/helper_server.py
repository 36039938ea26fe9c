"""The life of a `helper` task: it serves one worker until training is over."""

import os
import signal
import time

from absl import logging

from tfdist.cluster import bare_server
from tfdist.cluster import environment
from tfdist.cluster import member_reader
from tfdist.cluster import member_table
from tfdist.cluster import preemption
from tfdist.cluster import server_discovery
from tfdist.cluster import termination
from tfdist.cluster import versions

_POLL_SECONDS = 0.25
_READ_SECONDS = 2.0
# What the worker takes to end its process, or its last step after SIGTERM.
_FAREWELL_SECONDS = 2.0
_TERMINATED_STATUS = 128 + signal.SIGTERM


def serve(config, timeout, look_up=None):
    """Runs TensorFlow's server until this helper's worker has finished.

    The first parameter server's table of members tells that; under `tfdist
    launch` the launcher does.

    Args:
      config: The `ClusterConfig` of a `helper` task.
      timeout: Seconds for which the helper waits for parameter servers, or for
        any worker, that it does not see.
      look_up: Callable without arguments that gives the `ClusterConfig` as it
        is now, where servers may come back at other addresses; or None.

    Returns:
      The exit status of the process: 0 when training has finished, 143 when
      SIGTERM has ended it before, 1 when there was nobody to wait for.
    """
    preemption.install(exits=False)
    environment.apply_to_server(os.environ)
    bare_server.start(config)
    servers = server_discovery.ServerDiscovery(config, look_up)
    began = answered = time.monotonic()
    while not preemption.received():
        time.sleep(_POLL_SECONDS)
        now = time.monotonic()
        says = termination.launcher_says()
        if says:
            return 0
        address = servers.config.ps_addresses[0]
        try:
            rows = member_reader.read(
                address, _READ_SECONDS, versions.checksum(servers.config)
            )
            answered = now
            if says is None and _is_over(config, rows, now - began, timeout):
                time.sleep(_FAREWELL_SECONDS)
                return 0
        except member_reader.ReadError as error:
            if now - answered > timeout:
                logging.error(
                    "%s: gave up after %g s without an answer of parameter "
                    "server %s at %s: %s.",
                    config.task_name,
                    timeout,
                    config.ps_names[0],
                    address,
                    error,
                )
                return 1
            servers.look()
        except TimeoutError as error:
            logging.error("%s: %s", config.task_name, error)
            return 1
    time.sleep(_FAREWELL_SECONDS)
    return _TERMINATED_STATUS


def _is_over(config, rows, known_for, timeout):
    """Whether this helper's worker has finished, or training is over."""
    return any(
        row.name == config.helped_worker
        and row.state == member_table.MemberState.FINISHED
        for row in rows
    ) or termination.is_over(
        rows,
        known_for=known_for,
        patience=timeout,
        lost_after=member_table.LOST_AFTER_SECONDS,
        initial_workers=config.initial_workers,
    )
