"""Workers whose model is on several devices of their own."""

import keras
import numpy as np
import tensorflow as tf

from tests.multi_process import handshake
from tests.multi_process import tasks
from tests.placement import zoo
import tfdist
from tfdist import placement
from tfdist.placement import devices

EPOCHS = 2
PLACEMENT = {"a": "CPU:1", "b": "CPU:2", "c": "CPU:2", "d": "CPU:1"}


def compiled(model):
    model.compile(
        keras.optimizers.SGD(0.1, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    return model


def train(how):
    """Trains in lock-step, each worker with the same data.

    Args:
        how: whether the layers of a worker are "placed" on several devices or
            "pipelined" over them, a list by worker.
    """
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration()] * 3,
    )
    strategy = tfdist.ParameterServerStrategy(
        synchronization=tfdist.synchronization.Sync(),
        fault_tolerance=tfdist.FaultTolerance(start_timeout=60.0),
    )
    x, y = zoo.data("skips", 64)
    batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(16)
    batches = tasks.unshared(batches)
    with strategy.scope():
        model, _ = zoo.build("skips")
        if how[strategy.cluster.worker_id] == "placed":
            placement.place(model, PLACEMENT)
        else:
            tfdist.pipeline.pipeline(
                model, ["c"], ["CPU:1", "CPU:2"], micro_batches=4
            )
        compiled(model)
    model.fit(batches.repeat(), epochs=EPOCHS, steps_per_epoch=4, verbose=0)

    # Two equal gradients have the mean that one has.
    with tf.distribute.OneDeviceStrategy("/cpu:0").scope():
        alone, _ = zoo.build("skips")
        compiled(alone)
    alone.fit(x, y, 16, epochs=EPOCHS, shuffle=False, verbose=0)
    handshake.report(
        difference=max(
            float(np.abs(a - b).max())
            for a, b in zip(
                model.get_weights(), alone.get_weights(), strict=True
            )
        ),
        devices={v.path: v.value.device for v in model.variables},
        crossings=[
            (devices.short(c.source), devices.short(c.target))
            for c in placement.report(model, batch_size=4).crossings
        ],
        iterations=int(model.optimizer.iterations.numpy()),
    )
