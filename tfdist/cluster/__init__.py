"""Clusters: the tasks, and their ways to find each other."""

from tfdist.cluster.config import ClusterConfig
from tfdist.cluster.config import ClusterConfigError
from tfdist.cluster.groups import Group

__all__ = ["ClusterConfig", "ClusterConfigError", "Group"]
