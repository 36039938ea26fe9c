"""Memory of functions that this worker has forgotten, and servers have not.

Of a function that runs here and on a server, TensorFlow keeps the server's part
there, some 10 kB for each of its operations, for as long as the worker is
connected: of a small model's steps 4 MB. A worker that reconnects begins
with nothing there; what servers hold for all (variables, locks, gradients) is
not of a connection.
"""

import weakref

from tfdist.cluster import connection
from tfdist.null_methods import nothing

# Steps and models that are gone: of a search's trials two each, or three.
_ENOUGH = 8


class NoServerFunctions:
    """See `ServerFunctions`, whose part it takes where there are no servers."""

    note = forgot = tidy = nothing


class ServerFunctions:
    """Reconnects when enough was forgotten since it last did.

    Args:
      store: The `ParameterStore`.
      recovery: The `Recovery`, which knows the servers' addresses.
    """

    def __init__(self, store, recovery):
        self._store = store
        self._recovery = recovery
        self._forgotten = 0

    def note(self, graph):
        """Takes note of a graph that has a part on servers."""
        weakref.finalize(graph, self.forgot).atexit = False

    def forgot(self):
        """Takes note that something has gone."""
        self._forgotten += 1

    def tidy(self):
        """Has servers forget, if it is worth it."""
        if self._forgotten < _ENOUGH:
            return
        self._store.call(self._renew)
        self._forgotten = 0

    def _renew(self):
        connection.renew(self._recovery.config)
