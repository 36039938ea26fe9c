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

    It is on a file beside the directory: on NFS directories have no locks, and
    files only for who may write to them.

    Args:
      directory: `pathlib.Path` of one server's snapshots; the one above it is
        made if need be.
      name: Name of the server.

    Returns:
      A file descriptor, which has to stay open; None where the file cannot be
      made, or its file system has no locks.

    Raises:
      ClusterConfigError: Another process has held the lock for 10 s.
    """
    path = _path(directory)
    end = time.monotonic() + _MOST_SECONDS
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
            if _took(descriptor, path):
                return descriptor
            os.close(descriptor)
            if time.monotonic() > end:
                break
            time.sleep(_POLL_SECONDS)
    except OSError as error:
        logging.warning(
            "%s has no lock on %s, and would not notice a server of another "
            "cluster that keeps its snapshots there, too: %s",
            name,
            directory,
            error,
        )
        return None
    raise ClusterConfigError(
        "Argument `snapshot_dir` of FaultTolerance must be a directory of one "
        f"cluster alone. Received: snapshot_dir={str(directory.parent)!r}, "
        f"where another process keeps the snapshots of {name}."
    )


def remove(directory):
    """Removes the file of a lock that this process holds.

    Args:
      directory: As for `hold`; gone already.
    """
    _path(directory).unlink(missing_ok=True)


def _path(directory):
    return directory.with_name(f"{directory.name}.lock")


def _took(descriptor, path):
    """Whether an open file is locked now, and is still the one at `path`."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except (BlockingIOError, FileNotFoundError):
        return False
    except OSError:
        os.close(descriptor)
        raise
