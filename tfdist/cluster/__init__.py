"""Who is in the cluster, and how its tasks find each other."""

from tfdist.cluster.config import ClusterConfig
from tfdist.cluster.config import ClusterConfigError
from tfdist.cluster.groups import Group

__all__ = ["ClusterConfig", "ClusterConfigError", "Group"]
