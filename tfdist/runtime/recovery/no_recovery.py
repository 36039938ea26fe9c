"""No recovery: there are no servers that could be lost."""


class NoRecovery:
    """See `Recovery`, whose part it takes in one process and in a ring.

    Args:
      num_servers: How many stand in for servers.
      call: Callable of a function and its arguments that calls it, and
        explains its errors; None without other workers.
    """

    events = ()

    def __init__(self, num_servers, call=None):
        self.incarnations = [0] * num_servers
        self._call = call
        # The calls of `fit` go through `call`.
        self.is_needed = call is not None

    def call(self, function, *args):
        """Calls a function, once."""
        if self._call is None:
            return function(*args)
        return self._call(function, *args)

    def wait_until_settled(self, is_chief, timeout):
        """See `ServerReadiness.wait`."""
        return False
