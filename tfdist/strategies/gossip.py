"""Asynchronous averaging in pairs without servers, as users construct it."""

from typing import Any

import tensorflow as tf
from typing_extensions import Unpack

from tfdist.peers import gossip_engine
from tfdist.strategies import among_peers
from tfdist.strategies import options
from tfdist.strategies import strategy as strategy_lib
from tfdist.strategies.method import Method


class GossipStrategy(among_peers.StrategyAmongPeers):
    """AD-PSGD: after a step, a worker averages with one random other worker.

    Each worker holds all parameters and an optimizer of its own. After each
    step of its own gradients it sends half of its parameters to a random other
    worker and gets half of that one's, so that both have the mean; at the end
    of `fit` all take the mean of all workers. No worker waits for the steps of
    another one. On average a worker sends at most two messages for each step,
    however many workers there are. `TF_CONFIG` has workers alone. A worker that
    has died is left out after `worker_timeout`, and the others go on. What
    holds and what does not: docs/peers.md.

    Args:
      **kwargs: Arguments of `ParameterServerStrategy`, documented there, that
        are not about servers. `seed` is also that of the neighbours that
        workers draw. Of `fault_tolerance`: `start_timeout`, `worker_timeout`,
        the seconds without an answer after which a worker is left out for
        good, and `stall_timeout`, those without any progress.

    References:
      Lian, Zhang, Zhang and Liu, "Asynchronous decentralized parallel
      stochastic gradient descent", ICML 2018.
    """

    def __init__(self, **kwargs: Unpack[options.WithoutServers]):
        if "compression" in kwargs:
            raise TypeError(
                "GossipStrategy has no argument `compression`: workers send "
                "each other parameters, and codecs are for updates. Use "
                "PeerToPeerStrategy(compression=...). Received: "
                f"compression={kwargs['compression']!r}"
            )
        self._construct(**kwargs)

    def _make_engine(self, *args, **kwargs):
        # `_construct` has seeded all generators, alike on all workers.
        seed, _ = tf.compat.v1.get_seed(None)
        return gossip_engine.GossipEngine(*args, seed=seed or 0, **kwargs)

    @property
    def method(self) -> Method:
        """The `Method`."""
        return Method(communication="gossip", name="gossip")

    def exchange_counts(self) -> dict[str, dict[str, Any]]:
        """Returns what this worker has exchanged with each other one.

        Returns:
          A dict of the other's name to a dict: `begun`, exchanges that this
          worker has asked it for, of which `ended` have come back, and
          `given_up` have not, as the other was lost; `served`, those that the
          other has begun; `declined`, those of either kind that have changed
          nothing, as values were not finite; `repeated`, messages to it that
          were sent again, as nobody answered in time; `duplicates`, messages
          that came twice, and were dropped; `foreign`, messages of a process
          that does not count; and `gained`, the sum of all elements of what
          came minus what was given for it, a float: the other worker's is
          minus this, but for exchanges that its loss has cut in two.
        """
        return self._engine.accounts()

    def consensus_distance(self) -> float:
        """Returns the Euclidean distance between two workers' parameters.

        Of this worker and the one of its last exchange that was not declined,
        at that moment, and of the parameters that its last step has trained;
        0.0 before the first.
        """
        return self._engine.distance


options.write_out(GossipStrategy, strategy_lib.ParameterServerStrategy)
