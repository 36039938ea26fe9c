"""Keras callbacks for training on a cluster."""

from tfdist.callbacks.cluster_monitor import ClusterMonitor

__all__ = ["ClusterMonitor"]
