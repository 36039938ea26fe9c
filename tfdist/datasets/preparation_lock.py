"""One process at a time prepares a data set; the others wait for it.

TFDS writes a data set into a temporary directory and renames it, which is not
enough for a cluster's first start. The name of that directory comes from
Python's global random generator, so workers that were all seeded alike (as
`keras.utils.set_random_seed` does) write into the same one, and whoever comes
second fails or destroys the other's files.
"""

from collections.abc import Iterator
import contextlib
import os
import pathlib
import random
import time

from absl import logging

try:
    import fcntl
except ImportError:  # Windows, where only the rename protects.
    fcntl = None

_POLL_SECONDS = 0.1
_REPORT_SECONDS = 5.0


@contextlib.contextmanager
def preparation_lock(version_dir: str | os.PathLike) -> Iterator[None]:
    """Holds the lock of one version of a data set.

    The lock is a file beside `version_dir`. The operating system frees it when
    its holder ends, however that happens, so a killed process blocks nobody.
    Waiting is unbounded, because a download may take hours, but is reported
    every 5 seconds. A directory that is not local (`gs://...`) is not locked.

    Args:
        version_dir: the directory that is to be prepared, such as
            `~/tensorflow_datasets/digits/1.0.0`. Need not exist.
    """
    directory = os.fspath(version_dir)
    if fcntl is None or "://" in directory:
        yield
        return
    version_dir = pathlib.Path(directory)
    version_dir.parent.mkdir(parents=True, exist_ok=True)
    lock_path = version_dir.with_name(f".{version_dir.name}.lock")
    with open(lock_path, "a", encoding="ascii") as lock_file:
        _wait_for_lock(lock_file, version_dir)
        yield  # Closing the file frees the lock.


@contextlib.contextmanager
def private_random_state() -> Iterator[None]:
    """Gives the block a random generator of its own, freshly seeded.

    Afterwards the global generator is as it was before, so that the process
    that prepares the data draws the same numbers as the ones that find it
    ready.
    """
    state = random.getstate()
    random.seed()
    try:
        yield
    finally:
        random.setstate(state)


def _wait_for_lock(lock_file, version_dir: pathlib.Path) -> None:
    """Blocks until this process holds the lock, and says that it waits."""
    start = time.monotonic()
    next_report = start + _REPORT_SECONDS
    while True:
        try:
            fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            pass
        now = time.monotonic()
        if now >= next_report:
            logging.warning(
                "Waiting since %.0f s for another process to prepare %s.",
                now - start,
                version_dir,
            )
            next_report = now + _REPORT_SECONDS
        time.sleep(_POLL_SECONDS)
