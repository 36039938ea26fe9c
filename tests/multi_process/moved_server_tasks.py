"""Tasks that read in a file, again and again, where the servers are."""

import json
import os
import pathlib

import tensorflow as tf

from tests.multi_process import elections
from tests.multi_process import failure_tasks
from tests.multi_process import handshake
from tests.multi_process import tasks
import tfdist

CLUSTER_FILE = "cluster.json"


class FileResolver(tf.distribute.cluster_resolver.ClusterResolver):
    """The cluster as a file says, the task as `TF_CONFIG` does."""

    rpc_layer = "grpc"

    def __init__(self):
        """Reads `TF_CONFIG`."""
        task = json.loads(os.environ["TF_CONFIG"])["task"]
        self.task_type, self.task_id = task["type"], task["index"]

    def cluster_spec(self):
        """Reads the file."""
        return tf.train.ClusterSpec(
            json.loads(pathlib.Path(CLUSTER_FILE).read_text())
        )

    def master(self, task_type=None, task_id=None, rpc_layer=None):
        """Returns nothing: no session is opened."""
        del task_type, task_id, rpc_layer
        return ""


def _strategy():
    return tfdist.AsyncStrategy(
        cluster_resolver=FileResolver(),
        fault_tolerance=tfdist.FaultTolerance(
            start_timeout=60.0, server_timeout=60.0
        ),
    )


def serve():
    """Is a parameter server."""
    _strategy()


def train():
    """Pushes ones until told to stop."""
    strategy = _strategy()
    elections.watch(strategy)
    model = tasks.build_sum_of_weights(strategy)
    model.fit(
        tasks.own_data(1.0),
        steps_per_epoch=10**6,
        verbose=0,
        callbacks=[failure_tasks.TellProgress("stop")],
    )
    strategy.barrier()
    handshake.report(
        elections=elections.noted(strategy),
        **failure_tasks.outcome(strategy, model),
    )
