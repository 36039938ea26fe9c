"""What is on its way in a pipeline without flushes: kept, counted, drained."""

import collections
import threading
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import nightly
from tests.pipeline import chains
from tests.pipeline import oracles
from tfdist.pipeline import pipelined
from tfdist.pipeline import schedules
from tfdist.pipeline import versions

pytestmark = pytest.mark.usefixtures("float64")


class Sum(keras.metrics.Metric):
    """The number of examples, and the sum of their targets."""

    def __init__(self):
        super().__init__(name="sum")
        self.total = self.add_weight(shape=(2,), initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        y = tf.cast(y_true, self.total.dtype)
        count = tf.cast(tf.shape(y)[0], y.dtype)
        self.total.assign_add(tf.stack([count, tf.reduce_sum(y)]))

    def result(self):
        return tf.reduce_sum(self.total.value * [1000.0, 1.0])

    def reset_state(self):
        self.total.assign([0.0, 0.0])


class Stop(keras.callbacks.Callback):
    """Breaks a fit off."""

    def on_train_batch_end(self, batch, logs=None):
        if batch == 2:
            raise KeyboardInterrupt


@pytest.mark.nightly
def test_every_epoch_of_fit_has_each_example_once():
    x = np.random.default_rng(0).normal(size=(17, 3))
    y = np.arange(17.0)[:, None] * [1.0, 0.0]
    model = chains.chain(
        chains.initial(3), chains.sgd(), micro_batches=2, schedule="pipedream"
    )
    model.compile(keras.optimizers.SGD(0.0), "mse", metrics=[Sum()])
    plain = np.mean((model.predict(x, verbose=0) - y) ** 2)
    with pytest.raises(KeyboardInterrupt):
        model.fit(x, y, 4, verbose=0, callbacks=[Stop()])
    assert chains.executor(model).in_flight == 2
    history = model.fit(
        x, y, 4, 3, verbose=0, validation_data=(x[:5], y[:5])
    ).history
    # Nothing of the fit that was broken off is in the metrics, but the six
    # units of its three batches were trained to the end; 17 examples are
    # four batches of two units, and one of a unit and an empty one.
    assert history["sum"] == [17136.0] * 3
    assert history["val_sum"] == [5010.0] * 3
    assert int(model.optimizer.iterations) == 6 + 3 * 9
    assert chains.executor(model).in_flight == 0
    np.testing.assert_allclose(history["loss"], plain, rtol=1e-12)
    # Here the last unit is one that is not at the last stage when the last
    # step ends.
    history = model.fit(x[:16], y[:16], 4, verbose=0).history
    assert history["sum"] == [16120.0]


@pytest.mark.parametrize(
    "look",
    [
        lambda model, x: model.compile("adam", "mse"),
        lambda model, x: model.predict(x, verbose=0),
    ],
    ids=["compile", "predict"],
)
def test_who_looks_at_a_model_sees_all_units_trained(look):
    weights, units = chains.initial(3), chains.units_of([2, 2, 2])
    model = chains.chain(
        weights, chains.sgd(), True, micro_batches=1, schedule="pipedream"
    )
    chains.feed(model, units)
    executor = chains.executor(model)
    assert executor.in_flight == 2
    look(model, units[0][0])
    # Before the weights are asked for, which drains as well.
    assert executor.in_flight == 0
    chains.assert_weights(
        model,
        oracles.train(
            weights, units, "pipedream", chains.RATE, chains.MOMENTUM
        ),
    )


@pytest.mark.nightly
def test_batches_of_other_sizes_may_follow_each_other():
    # In graphs that were made for 8 examples others wait that are 2, of which
    # TensorFlow's optimizer once believed that they were 8.
    sizes = [8, 8, 2, 8, 3, 8]
    weights, units = chains.initial(3), chains.units_of(sizes)
    model = chains.chain(
        weights, chains.sgd(), micro_batches=1, schedule="pipedream"
    )
    chains.feed(model, units)
    chains.executor(model).drain()
    chains.assert_weights(
        model,
        oracles.train(
            weights, units, "pipedream", chains.RATE, chains.MOMENTUM
        ),
    )


@pytest.mark.nightly
def test_data_of_another_kind_waits_until_the_pipeline_is_empty():
    # What is on its way of one kind could not follow the other's.
    x, y = chains.units_of([6])[0]
    model = chains.chain(
        chains.initial(3), chains.sgd(), micro_batches=1, schedule="pipedream"
    )
    model.compile(chains.sgd(), "mse", metrics=[Sum()])
    for _ in range(2):
        model.fit(x, y, verbose=0)
        # In a graph that was traced before, without weights.
        model.fit(x, y, sample_weight=np.ones(6), verbose=0)
    result = model.get_metrics_result()["sum"]
    np.testing.assert_allclose(result, 6000 + y.sum(), rtol=1e-6)
    assert int(model.optimizer.iterations) == 4
    model.train_on_batch(x, y)
    assert chains.executor(model).in_flight == 1
    for _ in range(2):
        with pytest.raises(tf.errors.InvalidArgumentError, match="another"):
            model.train_on_batch(x, y, sample_weight=np.ones(6))
    model.drain()
    model.train_on_batch(x, y, sample_weight=np.ones(6))
    model.drain()
    assert int(model.optimizer.iterations) == 6


@pytest.mark.nightly
@pytest.mark.parametrize("schedule", ["spectrain", "pipedream_2bw"])
def test_layers_frozen_or_loaded_while_units_are_in_flight(tmp_path, schedule):
    x, y = chains.units_of([6])[0]
    model = chains.chain(
        chains.initial(2), chains.sgd(), micro_batches=2, schedule=schedule
    )
    model.train_on_batch(x, y)
    model.layers[0].trainable = False
    model.compile(chains.sgd(), "mse")
    assert int(model.optimizer.iterations) == 0
    frozen = model.layers[0].kernel.numpy()
    model.train_on_batch(x, y)
    model.drain()
    np.testing.assert_array_equal(frozen, model.layers[0].kernel)
    model.save_weights(tmp_path / "model.weights.h5")
    saved = model.get_weights()
    model.train_on_batch(x, y)
    model.load_weights(tmp_path / "model.weights.h5")
    model.drain()
    for one, other in zip(saved, model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("sync", nightly.also([False], [True]))
def test_no_more_versions_of_weights_are_kept_than_the_paper_says(sync):
    depth = 4
    model = chains.chain(
        chains.initial(depth),
        chains.sgd(),
        True,
        micro_batches=1,
        schedule="pipedream",
        vertical_sync=sync,
    )
    chains.feed(model, chains.units_of([2] * 9))
    kept = versions.kept_versions(schedules.make("pipedream", depth, 9), sync)
    for stage, variable in enumerate(model.weights):
        found = {variable.numpy().tobytes()}
        for (key, _), slot in chains.ticks_of(model).staging.slots.items():
            own = key in [(age, ("weights", stage)) for age in range(depth)]
            if (own or key == ("memory", stage)) and slot.dtype.is_floating:
                found.add(slot.numpy().tobytes())
        # The last stage does a unit's forward and backward at once.
        assert len(found) <= kept[stage]
        if stage == 0:
            assert len(found) == depth


def test_without_stashing_no_weights_are_kept():
    for schedule in ("spectrain", "ftpipe"):
        model = chains.chain(
            chains.initial(3),
            chains.sgd(),
            True,
            micro_batches=1,
            schedule=schedule,
        )
        chains.feed(model, chains.units_of([2] * 4))
        for (key, _), slot in chains.ticks_of(model).staging.slots.items():
            kind = key[1][0] if key[0] != "memory" else key[0]
            assert kind != "weights"
            assert kind != "memory" or not slot.dtype.is_floating


class Watched(keras.layers.Layer):
    """Looks at what else runs while it does."""

    lock = threading.Lock()
    running = collections.Counter()
    most = collections.Counter()
    both = threading.Event()

    def __init__(self, number, **kwargs):
        super().__init__(**kwargs)
        self.device_number = number

    def build(self, shape):
        self.scale = self.add_weight(shape=(), initializer="ones")

    def call(self, x):
        @tf.custom_gradient
        def watched(x):
            return self._watch(x), self._watch

        return watched(x * self.scale)

    def compute_output_shape(self, shape):
        return shape

    def _watch(self, x):
        result = tf.numpy_function(self._run, [x], x.dtype, stateful=False)
        return tf.ensure_shape(result, x.shape)

    def _run(self, x):
        with self.lock:
            self.running[self.device_number] += 1
            for device, count in self.running.items():
                self.most[device] = max(self.most[device], count)
            if min(self.running[0], self.running[1]) > 0:
                self.both.set()
        # Once is enough; and where the pipeline is filled nobody comes.
        self.both.wait(0.5)
        with self.lock:
            self.running[self.device_number] -= 1
        return x


@pytest.mark.nightly
def test_blocks_of_one_device_take_turns_and_devices_work_together():
    model = keras.Sequential([keras.Input((3,))])
    for block in range(4):
        model.add(Watched(block % 2, name=f"d{block}"))
    devices = ["CPU:1", "CPU:2", "CPU:1", "CPU:2"]
    pipelined.pipeline(
        model,
        [[f"d{block}"] for block in range(4)],
        devices,
        micro_batches=4,
        schedule="ftpipe",
    )
    model.compile(chains.sgd(), "mse")
    chains.feed(model, [(np.ones((4, 3)), np.zeros((4, 3)))] * 2)
    chains.executor(model).drain()
    assert Watched.both.is_set()
    assert Watched.most == {0: 1, 1: 1}


class Slow(Watched):
    """Is long enough at work to be met by another that should wait."""

    running = collections.Counter()
    most = collections.Counter()

    def _run(self, x):
        with self.lock:
            self.running[self.device_number] += 1
            count = self.running[self.device_number]
            self.most[self.device_number] = max(
                self.most[self.device_number], count
            )
        time.sleep(0.01)
        with self.lock:
            self.running[self.device_number] -= 1
        return x


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("schedule", "frozen"),
    [("pipedream_2bw", None), ("pipedream", 0), ("pipedream", 1)],
)
def test_a_device_does_one_task_at_a_time(schedule, frozen):
    """Also where a task updates nothing that the next one could wait for."""
    model = keras.Sequential([keras.Input((3,))])
    for stage in range(2):
        model.add(Slow(stage, name=f"d{stage}", trainable=stage != frozen))
    pipelined.pipeline(
        model,
        [["d0"], ["d1"]],
        ["CPU:1", "CPU:2"],
        micro_batches=8,
        schedule=schedule,
    )
    model.compile(chains.sgd(), "mse")
    Slow.most.clear()
    chains.feed(model, [(np.ones((8, 3)), np.zeros((8, 3)))])
    chains.executor(model).drain()
    assert Slow.most == {0: 1, 1: 1}


@pytest.mark.nightly
def test_what_a_stage_computes_is_on_its_device():
    model = chains.chain(
        chains.initial(3),
        chains.sgd(),
        devices=["CPU:2", "CPU:3", "CPU:1"],
        micro_batches=1,
        schedule="spectrain",
    )
    chains.feed(model, chains.units_of([2]))
    anywhere = {"Const", "Identity", "NoOp", "Placeholder"}
    seen = set()
    for (kind, k), function in chains.ticks_of(model).tasks._functions.items():
        device = model.stages[k].device
        for (
            operation
        ) in function.get_concrete_function().graph.get_operations():
            # What has to do with a variable is where the variable is.
            resource = any(t.dtype == tf.resource for t in operation.inputs)
            if operation.type not in anywhere and not resource:
                assert operation.device == device, operation
                seen.add((kind, k, operation.type))
        for variable in model.stages[k].weights:
            assert variable.value.device == device
    for part in model.optimizer.variables:
        for k, stage in enumerate(model.stages):
            if f"d{k}_kernel" in part.path:
                assert part.value.device == stage.device
                seen.add((k, "slot"))
    assert {("forward", 0, "Tanh"), ("backward", 1, "TanhGrad")} <= seen
    assert {(0, "slot"), (1, "slot"), (2, "slot")} <= seen


@pytest.mark.nightly
@pytest.mark.parametrize("run_eagerly", [False, True])
def test_a_step_that_fails_leaves_nothing_to_the_next(run_eagerly):
    model = keras.Sequential(
        [
            keras.Input((3,)),
            keras.layers.Dense(2, name="a"),
            keras.layers.Lambda(_all_finite, name="b"),
            keras.layers.Dense(2, name="c"),
        ]
    )
    pipelined.pipeline(model, ["b", "c"], micro_batches=1, schedule="ftpipe")
    examples = Sum()
    model.compile(
        chains.sgd(), "mse", metrics=[examples], run_eagerly=run_eagerly
    )
    (x, y), good, more = chains.units_of([2, 4, 3])
    for drained in (True, False):
        model.train_on_batch(*good)
        assert chains.executor(model).in_flight == 1
        with pytest.raises(tf.errors.InvalidArgumentError):
            model.train_on_batch(x * np.inf, y)
        if drained:
            chains.executor(model).drain()
            assert chains.executor(model).in_flight == 0
        model.reset_metrics()
        model.train_on_batch(*more)
        chains.executor(model).drain()
        # What was in flight when the step failed is not seen again.
        assert int(examples.total[0]) == 3
    assert all(np.all(np.isfinite(w)) for w in model.get_weights())


def _all_finite(x):
    return tf.debugging.check_numerics(x, "not finite")
