"""The lock on a server's directory of snapshots: one process writes there.

Servers of two clusters that share a directory would remove each other's drafts,
and begin with each other's values.
"""

import fcntl
import os
import time

from absl import logging

from tfdist.cluster.refusal import ClusterConfigError

# What the end of a killed process may take.
_MOST_SECONDS = 10.0
_POLL_SECONDS = 0.1


def hold(directory, name):
    """Takes the lock, which ends with this process.

    Args:
      directory: `pathlib.Path` of one server's snapshots; made if need be.
      name: Name of the server.

    Returns:
      A file descriptor, which has to stay open; None where the directory cannot
      be made, or its file system has no locks.

    Raises:
      ClusterConfigError: Another process has held the lock for 10 s.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(directory, os.O_RDONLY)
    except OSError:
        return None  # The first snapshot fails, and says why.
    end = time.monotonic() + _MOST_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except BlockingIOError:
            if time.monotonic() > end:
                os.close(descriptor)
                raise ClusterConfigError(
                    "Argument `snapshot_dir` of FaultTolerance must be a "
                    "directory of one cluster alone. Received: snapshot_dir="
                    f"{str(directory.parent)!r}, where another process keeps "
                    f"the snapshots of {name}."
                ) from None
        except OSError as error:
            logging.info("No lock on %s: %s", directory, error)
            os.close(descriptor)
            return None
        time.sleep(_POLL_SECONDS)
