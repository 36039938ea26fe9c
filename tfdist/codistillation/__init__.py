"""Codistillation: groups that teach each other while they train."""

from tfdist.cluster.groups import Group
from tfdist.codistillation.callback import Codistillation
from tfdist.codistillation.exchange import Checkpoint
from tfdist.codistillation.exchange import Exchange
from tfdist.codistillation.exchange import PeerUnavailableError
from tfdist.codistillation.exchange import UnusableCheckpointError
from tfdist.codistillation.loss import CodistillationLoss
from tfdist.codistillation.model import CodistillationMixin
from tfdist.codistillation.model import Codistilled
from tfdist.codistillation.peer_servers import PeerServers
from tfdist.codistillation.shared_directory import SharedDirectory

__all__ = [
    "Checkpoint",
    "Codistillation",
    "CodistillationLoss",
    "CodistillationMixin",
    "Codistilled",
    "Exchange",
    "Group",
    "PeerServers",
    "PeerUnavailableError",
    "SharedDirectory",
    "UnusableCheckpointError",
]
