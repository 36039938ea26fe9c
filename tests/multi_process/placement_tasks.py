"""Workers whose model is on several devices of their own."""

import keras
import numpy as np
import tensorflow as tf

from tests.multi_process import handshake
from tests.placement import zoo
import tfdist
from tfdist import placement
from tfdist.placement import devices

EPOCHS = 2
PLACEMENT = {"conv": "CPU:1", "normal": "CPU:2", "head": "CPU:2"}


def compiled(model):
    model.compile(
        keras.optimizers.SGD(0.1, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    return model


def train(placed):
    """Trains in lock-step, each worker with the same data.

    Args:
        placed: whether this worker's layers are on several devices, a list by
            worker.
    """
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration()] * 3,
    )
    strategy = tfdist.ParameterServerStrategy(
        synchronization=tfdist.synchronization.Sync(), start_timeout=60.0
    )
    x, y = zoo.data("convnet", 64)
    whole = tf.data.Options()
    whole.experimental_distribute.auto_shard_policy = (
        tf.data.experimental.AutoShardPolicy.OFF
    )
    batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(16)
    batches = batches.with_options(whole)
    with strategy.scope():
        model, _ = zoo.build("convnet")
        if placed[strategy.cluster.worker_id]:
            placement.place(model, PLACEMENT)
        compiled(model)
    model.fit(batches.repeat(), epochs=EPOCHS, steps_per_epoch=4, verbose=0)

    # Two equal gradients have the mean that one has.
    alone, _ = zoo.build("convnet")
    compiled(alone).fit(x, y, 16, epochs=EPOCHS, shuffle=False, verbose=0)
    handshake.report(
        difference=max(
            float(np.abs(a - b).max())
            for a, b in zip(
                model.get_weights()[:1] + model.get_weights()[-2:],
                alone.get_weights()[:1] + alone.get_weights()[-2:],
                strict=True,
            )
        ),
        devices={
            v.path.partition("/")[2]: v.value.device for v in model.variables
        },
        crossings=[
            (devices.short(c.source), devices.short(c.target))
            for c in placement.report(model, batch_size=4).crossings
        ],
        iterations=int(model.optimizer.iterations.numpy()),
    )
