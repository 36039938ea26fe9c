"""Sessions that killed processes have left on a server.

TensorFlow's server keeps a session until it is closed. One of a worker whose
steps are coordinated takes about 5 MB.
"""

from absl import logging
import tensorflow as tf

from tfdist.cluster import sessions

# Lives of members after which all sessions are ended. Whoever has one opens
# another.
_LIVES = 16


class Remnants:
    """Ends sessions in a server's process, now and then.

    Args:
      address: The server's `host:port`.
    """

    def __init__(self, address):
        self._address = address
        # The life of each member, and how many others have begun since.
        self._known = {}
        self._lives = 0

    def look(self, members):
        """Ends all sessions if many members have begun another life.

        Args:
          members: List of `Member`, as they are now.
        """
        for member in members:
            before = self._known.get(member.name)
            self._known[member.name] = member.life
            if before and member.life != before:
                self._lives += 1
        if self._lives < _LIVES:
            return
        self._lives = 0
        try:
            sessions.end_all(self._address)
        except tf.errors.OpError as error:
            logging.warning(
                "Sessions of processes that have gone are left open: %s",
                sessions.reason(error),
            )
