"""Single training steps of synchronous pipelines, and what they change."""

import keras
from keras import layers
import numpy as np
import tensorflow as tf

from tfdist.pipeline import stages as stages_lib
from tfdist.pipeline.synchronous import SynchronousPipeline

DEVICES = ["CPU:0", "CPU:1", "CPU:2"]


def compiled(model, loss, optimizer=None, **arguments):
    """The model, of which one step subtracts the gradient."""
    optimizer = optimizer or keras.optimizers.SGD(1.0)
    model.compile(optimizer, loss, run_eagerly=True, **arguments)
    return model


def tensors(data):
    return tf.nest.map_structure(
        lambda leaf: None if leaf is None else tf.convert_to_tensor(leaf), data
    )


def step(model, train_step, data):
    """(gradients, logs) of one step; all variables stay as they were."""
    before = [variable.numpy() for variable in model.variables]
    model.reset_metrics()
    logs = train_step(tensors(data))
    after = [variable.numpy() for variable in model.variables]
    for variable, value in zip(model.variables, before, strict=True):
        variable.assign(value)
    gradients = {
        "/".join(variable.path.split("/")[-2:]): old - new
        for variable, old, new in zip(
            model.variables, before, after, strict=True
        )
    }
    assert len(gradients) == len(before)
    logs = {name: float(value) for name, value in logs.items()}
    return gradients, logs


def assert_close(found, expected, tolerance=1e-12):
    for name in expected:
        np.testing.assert_allclose(
            found[name], expected[name], rtol=0, atol=tolerance, err_msg=name
        )


def executor(model, stages, schedule, micro_batches, **options):
    cut = stages_lib.split(model, stages, DEVICES[: stages_lib.count(stages)])
    return SynchronousPipeline(model, cut, schedule, micro_batches, **options)


def small(*middle):
    return keras.Sequential(
        [keras.Input((4,)), *middle, layers.Dense(3, name="out")]
    )
