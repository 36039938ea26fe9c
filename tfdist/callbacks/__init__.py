"""Keras callbacks for training on a cluster."""

from tfdist.callbacks.cluster_checkpoint import ClusterCheckpoint
from tfdist.callbacks.cluster_monitor import ClusterMonitor

__all__ = ["ClusterCheckpoint", "ClusterMonitor"]
