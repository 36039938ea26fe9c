"""What the tasks of clusters under test run, and the models that they train.

Every gradient of `SumOfWeights` is a constant that the data carries. With SGD
and a learning rate of one the weights are minus the sum of all that was
pushed, without rounding as long as it fits the 24 bits of a float32.
"""

import os
import time

import keras
import numpy as np
import tensorflow as tf

from tests.multi_process import handshake
import tfdist
from tfdist.cluster import ClusterConfig
from tfdist.cluster import connection
from tfdist.cluster import member_table
from tfdist.cluster import registration

SHAPES = ((), (7,), (3, 5), (129, 2))
# So that nobody is gone for being slow.
PATIENT = tfdist.FaultTolerance(start_timeout=60.0, worker_timeout=60.0)


def serve(start_timeout=60.0, lost_after=member_table.LOST_AFTER_SECONDS):
    """Is a parameter server."""
    member_table.LOST_AFTER_SECONDS = lost_after
    tfdist.AsyncStrategy(
        fault_tolerance=tfdist.FaultTolerance(start_timeout=start_timeout)
    )


class SumOfWeights(keras.layers.Layer):
    """The input times the mean of four sums, of weights of four shapes."""

    def __init__(self, shapes=SHAPES):
        """Makes the layer.

        Args:
            shapes: of the weights.
        """
        super().__init__()
        self._shapes = tuple(tuple(shape) for shape in shapes)

    def build(self, input_shape):
        """Makes the weights, and two counters of calls in training."""
        del input_shape
        self.parts = [
            self.add_weight(shape=shape, initializer="zeros", name=f"part{i}")
            for i, shape in enumerate(self._shapes)
        ]
        self.calls = [
            self.add_weight(
                shape=shape, initializer="zeros", trainable=False, name=name
            )
            for name, shape in (("calls", ()), ("calls_vector", (3,)))
        ]

    def call(self, inputs, training=False):
        """Returns `(batch, 1)`; its gradient is the input's mean."""
        if training:
            for counter in self.calls:
                counter.assign_add(keras.ops.ones_like(counter))
        sums = [keras.ops.sum(part) for part in self.parts]
        return inputs * sum(sums[1:], sums[0])


class ExamplesSeen(keras.metrics.Metric):
    """The number of examples."""

    def __init__(self, name="examples_seen", **kwargs):
        """Makes the counter."""
        super().__init__(name=name, **kwargs)
        self.total = self.add_variable((), "zeros", name="total")

    def update_state(self, y_true, y_pred, sample_weight=None):
        """Counts a batch."""
        del y_pred, sample_weight
        self.total.assign_add(
            keras.ops.cast(keras.ops.shape(y_true)[0], "float32")
        )

    def result(self):
        """Returns the number."""
        return self.total.value


def first_output(y_true, y_pred):
    """A loss: the output itself."""
    del y_true
    return y_pred[:, 0]


def build_sum_of_weights(
    strategy, optimizer=None, shapes=SHAPES, **compile_arguments
):
    """Compiles a `SumOfWeights`, by default with SGD at a rate of one."""
    with strategy.scope():
        model = keras.Sequential([keras.Input([1]), SumOfWeights(shapes)])
        model.compile(
            optimizer=optimizer or keras.optimizers.SGD(1.0),
            loss=first_output,
            **compile_arguments,
        )
    return model


def own_data(value, batch_size=1):
    """Endless batches, for one worker, whose gradient is `value`."""
    x = np.full([batch_size, 1], value, np.float32)
    return unshared(tf.data.Dataset.from_tensors((x, x)).repeat())


def unshared(data):
    """The data set, all of which each worker trains on."""
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = (
        tf.data.experimental.AutoShardPolicy.OFF
    )
    return data.with_options(options)


class WaitAfterFirstStep(keras.callbacks.Callback):
    """Goes on when the test says so.

    In its first step each worker traces its functions, for seconds: some
    might have done all their steps before others had begun.
    """

    _steps = 0

    def on_train_batch_begin(self, batch, logs=None):
        """Waits before the second step."""
        if self._steps == 1:
            print("has made one step", flush=True)
            handshake.wait_for(f"go on {label()}")
        self._steps += 1


def push_constants(
    steps,
    values,
    learning_rate=None,
    wait=False,
    worker_start="together",
    where=None,
):
    """Pushes this worker's value `steps` times and reports all there is.

    Args:
        steps: how often.
        values: by worker; multiples of a power of two.
        learning_rate: `None` for SGD at a rate of one, or three arguments of
            `PolynomialDecay` for Adam with a schedule.
        wait: whether to wait for the test after the first step.
        worker_start: of the strategy.
        where: devices of the model's layers, a dict as `placement.place` takes
            it; `None` for the worker's own.
    """
    strategy = tfdist.AsyncStrategy(
        worker_start=worker_start,
        fault_tolerance=tfdist.FaultTolerance(start_timeout=60.0),
    )
    with strategy.scope():
        optimizer = _optimizer(learning_rate)
        metrics = [ExamplesSeen()]
    model = build_sum_of_weights(strategy, optimizer, metrics=metrics)
    if where:
        with strategy.scope():
            tfdist.placement.place(model, where)
    worker = strategy.cluster.worker_id
    batch_size = worker + 1
    model.fit(
        own_data(values[worker], batch_size),
        steps_per_epoch=steps,
        verbose=0,
        callbacks=[WaitAfterFirstStep()] if wait else [],
    )
    strategy.publish_metrics(model)
    strategy.barrier()
    exchanges = strategy.journal.read_new()
    layer = model.layers[-1]
    handshake.report(
        updates=strategy.updates_applied(),
        iterations=int(model.optimizer.iterations.numpy()),
        learning_rate=float(model.optimizer.learning_rate.numpy()),
        parts=[part.numpy().ravel().tolist() for part in layer.parts],
        calls=[calls.numpy().ravel().tolist() for calls in layer.calls],
        placement=[part.value.shard for part in layer.parts],
        devices=[part.value.device for part in layer.parts],
        metrics=strategy.cluster_metrics(model),
        own_metrics=model.get_metrics_result()["examples_seen"].numpy().item(),
        versions=[e.version for e in exchanges],
        staleness=[e.staleness for e in exchanges],
    )


def _optimizer(learning_rate):
    if learning_rate is None:
        return keras.optimizers.SGD(1.0)
    return keras.optimizers.Adam(
        keras.optimizers.schedules.PolynomialDecay(*learning_rate)
    )


def connect_and_finish(delay):
    """Is a worker that connects, uses each server once, and is done.

    Args:
        delay: seconds after the test's word at which to connect.
    """
    config = ClusterConfig.from_tf_config()
    handshake.report(ready=True)
    handshake.wait_for("go")
    time.sleep(delay)
    _, devices = connection.connect(config, 60.0)
    # One operation on each server; another one when the process ends.
    registration.join(config, devices, 60.0)


def label():
    """The name of this task in its cluster."""
    return os.environ["TASK_LABEL"]
