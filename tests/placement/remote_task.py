"""Trains a model with a layer in another process; prints what came of it."""

import json
import multiprocessing
import socket
import time

import keras
import numpy as np
import tensorflow as tf

from tests.placement import zoo
from tfdist import placement
from tfdist.cli import local_cluster


def serve(addresses):
    tf.distribute.Server(
        tf.train.ClusterSpec({"worker": addresses}),
        job_name="worker",
        task_index=1,
    ).join()


def wait_for(address, seconds=120):
    """Waits until somebody listens there."""
    host, port = address.split(":")
    until = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
            return
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


def train(model):
    x, y = zoo.data("mlp")
    model.compile(
        keras.optimizers.SGD(0.1, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    model.fit(x, y, batch_size=8, epochs=4, verbose=0, shuffle=False)
    return [v.numpy() for v in model.trainable_variables]


def main():
    with local_cluster.LocalCluster({"worker": 2}) as cluster:
        compare([task.address for task in cluster.tasks])


def compare(addresses):
    """Trains the model, with and without the layer in another process."""
    other = multiprocessing.get_context("spawn").Process(
        target=serve, args=(addresses,), daemon=True
    )
    other.start()
    wait_for(addresses[1])
    tf.config.experimental_connect_to_cluster(
        tf.train.ClusterSpec({"worker": addresses}),
        job_name="worker",
        task_index=0,
    )
    plain, _ = zoo.build("mlp")
    placed, _ = zoo.build("mlp")
    placement.place(
        placed, {"last": "/job:worker/task:1/CPU:0", "first": "CPU:0"}
    )
    expected, came = train(plain), train(placed)
    print(
        json.dumps(
            {
                "difference": max(
                    float(np.abs(a - b).max())
                    for a, b in zip(expected, came, strict=True)
                ),
                "devices": [
                    v.value.device
                    for v in [*placed.variables, *placed.optimizer.variables]
                ],
                "paths": [
                    v.path
                    for v in [*placed.variables, *placed.optimizer.variables]
                ],
                "report": str(placement.report(placed, batch_size=4)),
            }
        )
    )
    other.kill()


if __name__ == "__main__":
    main()
