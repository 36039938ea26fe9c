"""Asynchronous training without servers, as users construct it."""

from typing import Any

from typing_extensions import Unpack

from tfdist import checks
from tfdist import compression as compression_lib
from tfdist.cluster import ClusterConfigError
from tfdist.peers import engine as engine_lib
from tfdist.strategies import among_peers
from tfdist.strategies import options
from tfdist.strategies import strategy as strategy_lib
from tfdist.strategies.method import Method

# Each worker sends its updates to all others.
_MOST_WORKERS = 16


class PeerToPeerStrategy(among_peers.StrategyAmongPeers):
    """Asynchronous SGD without servers: workers send each other updates.

    Each worker holds all parameters and an optimizer of its own. It makes a
    step of its own gradients, encodes the update, applies what is decoded of
    it at once, and sends it to all others, which apply it when it comes. No
    step waits for another worker. `TF_CONFIG` has workers alone, at most 16. A
    worker that has died is left out after `worker_timeout`, and the others go
    on. At the end of each epoch, each worker checks that its replica is the
    sum of all updates, and repairs it otherwise. What holds and what does not:
    docs/peers.md.

    Args:
      compression: A codec of `tfdist.compression`, or a text such as
        "threshold(tau=0.03)". None sends all of an update as it is.
      warmup_peers: How many workers begin, the first ones; the others join
        later, as the paper advises: many workers are of little use, or
        harmful, while parameters change fast. Default: all.
      warmup_updates: Updates that each of those makes before others join.
      **kwargs: Arguments of `ParameterServerStrategy`, documented there, that
        are not about servers. Of `fault_tolerance`: `start_timeout`,
        `worker_timeout`, the seconds without an answer after which a worker
        is left out for good, and `stall_timeout`, those without any progress.

    References:
      Strom, "Scalable distributed DNN training using commodity GPU cloud
      computing", Interspeech 2015.
    """

    def __init__(
        self,
        compression: compression_lib.Codec | str | None = None,
        *,
        warmup_peers: int | None = None,
        warmup_updates: int = 100,
        **kwargs: Unpack[options.WithoutServers],
    ):
        self._compression = _codec(compression)
        if warmup_peers is not None:
            warmup_peers = checks.count("warmup_peers", warmup_peers, 1)
        self._warmup_peers = warmup_peers
        self._warmup_updates = checks.count("warmup_updates", warmup_updates, 1)
        self._construct(**kwargs)

    @property
    def _first(self):
        every = self._cluster.num_workers
        return min(self._warmup_peers or every, every)

    def _connect(self, look_up, tolerance):
        if self._cluster.num_workers > _MOST_WORKERS:
            raise ClusterConfigError(
                f"PeerToPeerStrategy allows at most {_MOST_WORKERS} workers, "
                "as each one sends its updates to all others. Use "
                "GossipStrategy, which sends at most two messages for each "
                "step, or AllReduceStrategy. Received: TF_CONFIG with "
                f"{self._cluster.num_workers} workers."
            )
        return super()._connect(look_up, tolerance)

    def _make_engine(self, *args, **kwargs):
        is_partial = self._first < self._cluster.num_workers
        return engine_lib.PeerEngine(
            *args,
            codec=self._compression,
            warmup_updates=self._warmup_updates * is_partial,
            **kwargs,
        )

    def _axes(self):
        return self.synchronization, self._compression

    @property
    def method(self) -> Method:
        """The `Method`, as it was given."""
        name = "peer_to_peer"
        if self._compression is not None:
            name += f":compression={self._compression!r}"
        return Method(
            communication="peers",
            name=name,
            compression=self._compression,
            warmup_peers=self._warmup_peers,
            warmup_updates=self._warmup_updates,
        )

    @property
    def compression(self) -> compression_lib.Codec | None:
        """The codec of updates, or None."""
        return self._compression

    def update_counts(self) -> dict[str, Any]:
        """Returns where this worker's updates are, and others' in here.

        Returns:
          A dict: `sent`, the number of updates that this worker has made; by
          the name of each other worker `delivered` (it has taken so many of
          them), `lost` (it was given up before it had), and `repeated`
          (messages that were sent again, as nobody answered in time); and of
          its updates `applied` here, `missed` (it had given up this worker),
          `duplicates` (messages that came twice, and were dropped) and
          `foreign` (messages of a process that was replaced). If one of both
          has joined: `before`, this worker's updates before that worker came;
          `fetched`, that worker's updates in the values that this worker
          began with, or took over to repair its replica; `earlier`, updates
          of that worker's earlier processes that are here.
        """
        return self._engine.accounts()


options.write_out(PeerToPeerStrategy, strategy_lib.ParameterServerStrategy)


def _codec(compression):
    """The codec of an argument."""
    if compression is None or isinstance(compression, compression_lib.Codec):
        return compression
    if isinstance(compression, str):
        return compression_lib.parse(compression)
    raise TypeError(
        "Argument `compression` must be a tfdist.compression.Codec, a text "
        "such as 'threshold(tau=0.03)', or None. Received: "
        f"compression={compression!r}"
    )
