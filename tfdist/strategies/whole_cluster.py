"""A strategy's cluster, as every strategy shows it."""

import tensorflow as tf

from tfdist.cluster import config as cluster_config


class ClusterMixin:
    """A mixin of strategies that keep `_cluster` and `_resolver`."""

    @property
    def cluster(self) -> cluster_config.ClusterConfig:
        """The `ClusterConfig`: who this task is, who the others are."""
        return self._cluster

    @property
    def cluster_resolver(
        self,
    ) -> tf.distribute.cluster_resolver.ClusterResolver:
        """The resolver that was given, else one of `TF_CONFIG`.

        In one process without either, its `task_type` is None.
        """
        return self._resolver
