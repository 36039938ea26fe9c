"""The way of messages that go to one worker each."""

from tfdist.peers import backlog
from tfdist.peers import messages
from tfdist.peers import transport


class GossipTransport(transport.Transport):
    """A `Transport` of messages whose headers say to whom they go.

    A worker has at most one request under way and replies to at most one of
    each other worker, so that two messages wait for a receiver at most.
    """

    def _make_backlog(self, holds):
        return backlog.UnmergedBacklog(*self._vector, holds)

    def release(self, worker, seen):
        """Drops nothing that waits for a joiner, which has none of it."""

    def receivers(self, update):
        """The `PeerSender` of the receiver, a list."""
        to = int(update.header[messages.SEEN])
        return [one for one in self.senders if one.worker == to]
