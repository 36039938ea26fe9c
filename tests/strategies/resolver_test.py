"""`strategy.cluster_resolver` is what TensorFlow's programs expect."""

import dataclasses
import json

import pytest
import tensorflow as tf

import tfdist
from tfdist.cluster import ClusterConfig
from tfdist.cluster import incarnation
from tfdist.strategies import construction

CLUSTER = {"worker": ["localhost:1", "localhost:2"], "ps": ["localhost:3"]}
STRATEGIES = [
    tfdist.AsyncStrategy,
    tfdist.AllReduceStrategy,
    tfdist.BackupWorkersStrategy,
    tfdist.GossipStrategy,
    tfdist.ParameterAveragingStrategy,
    tfdist.ParameterServerStrategy,
    tfdist.PeerToPeerStrategy,
]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_resolver_that_was_given_is_shown(strategy):
    alone = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({})
    )
    assert strategy(cluster_resolver=alone).cluster_resolver is alone
    found = strategy().cluster_resolver
    assert (found.task_type, found.task_id) == (None, None)
    assert not found.cluster_spec()


def test_a_cluster_of_the_environment_has_one(monkeypatch):
    task = {"type": "worker", "index": 1}
    monkeypatch.setenv(
        "TF_CONFIG", json.dumps({"cluster": CLUSTER, "task": task})
    )
    config = ClusterConfig.from_tf_config()
    found = construction.resolver_of(None)
    assert (found.task_type, found.task_id) == ("worker", 1)
    assert found.cluster_spec().as_dict() == CLUSTER
    assert ClusterConfig.from_resolver(found) == config


def test_a_worker_finds_a_server_that_moves_before_it_has_connected(
    monkeypatch,
):
    before = ClusterConfig(spec=CLUSTER, task_type="worker", task_index=1)
    now = dataclasses.replace(before, spec={**CLUSTER, "ps": ["localhost:4"]})
    monkeypatch.setattr(
        incarnation,
        "read_all",
        lambda config: [7 if config == now else None],
    )
    with monkeypatch.context() as patched:
        patched.setattr(
            construction.preemption, "install", lambda **options: None
        )
        patched.setattr(
            construction.connection,
            "connect",
            lambda config, timeout: (config, [config]),
        )
        patched.setattr(
            construction.registration,
            "join",
            lambda config, devices, timeout: config,
        )
        found = construction.connect(
            before, lambda: now, True, tfdist.FaultTolerance(start_timeout=5.0)
        )
    assert found.config == found.worker_device == found.membership == now
