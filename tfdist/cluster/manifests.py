"""Manifests: what the members of a cluster tell a server to keep.

Only workers' graphs know the names of what a server holds.
"""

import collections
import contextlib
import dataclasses
import json
import threading

import tensorflow as tf

from tfdist.cluster import reports

_MANIFEST = "tfdist/manifest"
# What a counter is called that counts assignments, after the name of the one
# that counts updates.
WRITES = "/writes"
# How the name of a counter ends that counts a worker's own updates of rows,
# which it carries out after an update that all of a step have made.
ROW_GRADIENTS = "/row_gradients"
# By device: what `own_groups` gives.
_own_groups = collections.defaultdict(dict)
_telling = collections.defaultdict(threading.Lock)


@contextlib.contextmanager
def own_groups(device):
    """Scope in which one strategy of this process tells a server what to keep.

    A member has one text on each server, with the groups of all its strategies.

    Args:
      device: The server's device.

    Yields:
      A dict of lock to group, see `text_of`, to be added to.
    """
    with _telling[device]:
        yield _own_groups[device]


def text_of(groups):
    """Returns the variables that a member knows of, as a text.

    Args:
      groups: List of dicts: `lock`, the name of a lock, `counter`, the name of
        an int64 that changes with what is kept, `variables`, a dict of name to
        the name of a dtype, and `tables`, a dict of the names of those that
        are tables to the names of what says that a table is whole.
    """
    return json.dumps(groups)


@dataclasses.dataclass
class VariableGroup:
    """Variables that are changed under one lock.

    Attributes:
      counter: Name of an int64 that changes with them. If `variables` has one
        of this name with `WRITES` after it, that one does as well, as do those
        whose names end with `ROW_GRADIENTS`.
      variables: Dict of name to the name of a dtype.
      tables: Of those that are tables, dict of name to the name of the bool
        that is there when the table is whole.
    """

    counter: str
    variables: dict = dataclasses.field(default_factory=dict)
    tables: dict = dataclasses.field(default_factory=dict)

    def counters(self, known):
        """Names of the int64 that change with the variables, a list.

        Args:
          known: Names of those that the server holds.
        """
        names = (self.counter, self.counter + WRITES)
        return [n for n in known if n in names or n.endswith(ROW_GRADIENTS)]

    def add(self, other):
        """Adds what another member knows, a `VariableGroup`."""
        self.variables.update(other.variables)
        self.tables.update(other.tables)


class Manifest:
    """The variables that members say one server has to keep.

    Args:
      device: The server's device.
      num_members: Number of rows of its table of members.
    """

    def __init__(self, device, num_members):
        self._device = device
        self._num_members = num_members
        self._read = tf.function(self._build_read, autograph=False)

    def build_write(self, row, text):
        """Builds, in the scope's device: leaves what one member knows of.

        Args:
          row: Number of the member.
          text: What `text_of` has made, a string tensor.
        """
        tf.raw_ops.AssignVariableOp(resource=self._handle(row), value=text)

    def read(self):
        """Reads all members' variables: a dict of lock to `VariableGroup`."""
        merged = {}
        for text in self._read().numpy():
            for found in json.loads(text) if text else []:
                lock = found.pop("lock")
                group = VariableGroup(**found)
                merged.setdefault(lock, VariableGroup(group.counter)).add(group)
        return merged

    def _handle(self, row):
        return tf.raw_ops.VarHandleOp(
            dtype=tf.string, shape=[], shared_name=f"{_MANIFEST}/{row}"
        )

    def _build_read(self):
        with tf.device(self._device):
            return reports.build_texts(
                [self._handle(row) for row in range(self._num_members)]
            )
