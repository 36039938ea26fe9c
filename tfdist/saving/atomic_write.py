"""Files that are there as a whole or not at all."""

import contextlib
import os
import shutil

_DRAFT = ".draft-"


@contextlib.contextmanager
def written(path, writer):
    """Scope in which a file is written beside its place, then moved there.

    Whoever reads the file meanwhile, or kills the process, finds the one
    before.

    Args:
      path: Of the file, in a directory that is there.
      writer: Who writes, part of a name. A draft that a killed process has
        left is written over by the next one of the same name.

    Yields:
      The path to write to: in the same directory, with the same ending.
    """
    # What a link names is replaced, not the link.
    target = os.path.realpath(path)
    directory, name = os.path.split(target)
    draft = os.path.join(directory, f"{_DRAFT}{writer}-{name}")
    try:
        yield draft
        with contextlib.suppress(FileNotFoundError):
            shutil.copymode(target, draft)
        bring_to_disk(draft)
        os.replace(draft, target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(draft)
        raise


def can_be_written(path):
    """Whether `path` can be written so: a local file, there or not."""
    path = os.fspath(path)
    if "://" in path or os.path.basename(path).startswith(_DRAFT):
        return False
    directory = os.path.dirname(os.path.realpath(path))
    return os.access(directory, os.W_OK) and (
        os.path.isfile(path) or not os.path.exists(path)
    )


def drafts(directory, name):
    """Returns drafts that killed processes have left, a list of paths.

    Args:
      directory: A `pathlib.Path`.
      name: Pattern of the names of the files that they were to become.
    """
    return list(directory.glob(f"{_DRAFT}*-{name}"))


def bring_to_disk(path):
    """Waits until a file, or the names in a directory, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
