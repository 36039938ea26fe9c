"""The base of strategies whose workers send to each other, without waiting."""

import atexit
import weakref

from tfdist.all_reduce import collectives as collectives_lib
from tfdist.peers import meetings as meetings_lib
from tfdist.peers import roster as roster_lib
from tfdist.peers import serving
from tfdist.peers import transport
from tfdist.saving import files
from tfdist.strategies import construction
from tfdist.strategies import without_servers
from tfdist.synchronization import Async


class StrategyAmongPeers(without_servers.StrategyWithoutServers):
    """A base: each worker has a server of its own, for messages of others.

    A class that derives from it has `_make_engine`.
    """

    def _connect(self, look_up, tolerance):
        config = self._cluster
        if config.num_workers > 1:
            name = f"{construction.coming_namespace(config)}/peers"
            timeout = tolerance.start_timeout
            serving.start(config, timeout, self._first, name)
            # Runs after what is registered later.
            atexit.register(transport.end_all)
        return construction.connect(config, look_up, True, tolerance)

    @property
    def _first(self):
        """Number of the workers that begin."""
        return self._cluster.num_workers

    def _make_engine(self, *args, **kwargs):
        """Makes a `PeerEngine`.

        Args:
          *args: Its first arguments.
          **kwargs: Those that all engines of peers have.
        """
        raise NotImplementedError

    def _engine_of(self, connections, tolerance, check):
        config, device = self._cluster, connections.worker_device
        name = f"{construction.namespace(config)}/peers"
        roster = roster_lib.Roster(config, name)
        later = set(range(self._first, config.num_workers))
        roster.comes_later = roster.worker_id in later
        roster.await_later(later - {roster.worker_id})

        def make_meetings(engine):
            if config.num_workers == 1:
                return collectives_lib.NoCollectives()
            made = meetings_lib.Meetings(
                roster, name, device, tolerance, weakref.ref(engine)
            )
            atexit.register(made.leave)
            return made

        def make(strategy):
            return self._make_engine(
                strategy,
                config,
                make_meetings,
                check,
                files.of(config),
                roster=roster,
                name=name,
                device=device,
                tolerance=tolerance,
            )

        return make

    @property
    def synchronization(self) -> Async:
        """`Async()`: nobody waits."""
        return Async()
