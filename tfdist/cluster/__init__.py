"""Who is in the cluster, and how its tasks find each other."""

from tfdist.cluster.config import ClusterConfig
from tfdist.cluster.config import ClusterConfigError

__all__ = ["ClusterConfig", "ClusterConfigError"]
