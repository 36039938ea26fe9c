"""The checkpoints that this process has saved or restored itself.

A later `fit` of the process takes from them nothing but the epoch: what its
servers and workers hold is as new, or newer.
"""

import pathlib
import weakref

_of_states = weakref.WeakKeyDictionary()


def of(state):
    """Returns the `KnownCheckpoints` of a strategy's state."""
    return _of_states.setdefault(state, KnownCheckpoints())


class KnownCheckpoints:
    """The newest checkpoint of each directory that a process knows."""

    def __init__(self):
        self._newest = {}

    def add(self, path, header):
        """Takes note of a checkpoint that has been saved or restored.

        Args:
          path: Path of the file, a `pathlib.Path`.
          header: The header of its state, a dict.
        """
        self._newest[_resolved(path.parent)] = path.name, header

    @property
    def headers(self):
        """Headers of the newest known checkpoints of all directories."""
        return [header for _, header in self._newest.values() if header]

    def use(self, directory):
        """Takes note of a `fit` that saves to a directory."""
        self._newest.setdefault(_resolved(directory), (None, None))

    def header(self, path):
        """Returns the header if a checkpoint is the newest known, or None.

        Args:
          path: Path of the file.
        """
        name, header = self._newest.get(_resolved(path.parent), (None, None))
        return header if name == path.name else None

    def has_used(self, directory):
        """Whether an earlier `fit` of this process has saved to a directory."""
        return _resolved(directory) in self._newest

    def forget(self, directory):
        """Called when the checkpoints of a directory are removed."""
        self._newest.pop(_resolved(directory), None)


def _resolved(directory):
    return pathlib.Path(directory).resolve()
