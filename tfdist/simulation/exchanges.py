"""Exchanges that `simulate` takes in the place of a method."""

from tfdist.simulation.exchange import VirtualExchange
from tfdist.simulation.exchange_gossip import GossipExchange
from tfdist.simulation.exchange_peers import PeerExchange
from tfdist.simulation.exchange_server import ServerExchange
from tfdist.simulation.exchange_together import AveragingExchange
from tfdist.simulation.exchange_together import SynchronousExchange

__all__ = [
    "SynchronousExchange",
    "AveragingExchange",
    "VirtualExchange",
    "GossipExchange",
    "PeerExchange",
    "ServerExchange",
]
