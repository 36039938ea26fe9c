"""Stages with replicas: data parallelism within one process."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.placement.graphs import nodes
import tfdist
from tfdist.pipeline import pipeline

EXAMPLES = 24


def build():
    keras.utils.set_random_seed(3)
    return keras.Sequential(
        [
            keras.Input((5,)),
            keras.layers.Dense(6, "tanh", kernel_regularizer="l2", name="a"),
            keras.layers.Dense(6, "tanh", name="b"),
            keras.layers.Dense(3, name="c"),
        ]
    )


def train(model, **arguments):
    model.compile(
        keras.optimizers.SGD(0.1, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        **arguments,
    )
    stream = np.random.default_rng(0)
    x = stream.standard_normal((EXAMPLES, 5)).astype("float32")
    y = stream.integers(0, 3, EXAMPLES)
    history = model.fit(
        # The last batch is smaller, and not of even size.
        x[:-3],
        y[:-3],
        batch_size=8,
        epochs=4,
        shuffle=False,
        verbose=0,
    )
    return history.history, model.get_weights()


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("stages", "devices", "micro_batches", "schedule"),
    [
        (1, [["CPU:1", "CPU:2"]], 2, "gpipe"),
        (["b"], [["CPU:0", "CPU:1", "CPU:2"], "CPU:3"], 4, "1f1b"),
    ],
)
def test_replicas_train_as_one(stages, devices, micro_batches, schedule):
    plain, expected = train(build())
    model = pipeline(
        build(),
        stages,
        devices,
        micro_batches=micro_batches,
        schedule=schedule,
    )
    came, weights = train(model)
    np.testing.assert_allclose(came["loss"], plain["loss"], rtol=1e-5)
    assert came["accuracy"] == plain["accuracy"]
    for one, other in zip(expected, weights, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)
    variable = model.variables[0].value.device
    assert variable.endswith(devices[0][0])


def test_each_replica_has_its_micro_batches_and_waits_for_no_other():
    model = pipeline(
        build(), 1, [["CPU:1", "CPU:2"]], micro_batches=4, schedule="1f1b"
    )
    model.compile(
        "sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    model.optimizer.build(model.trainable_variables)
    graph = (
        tf.function(model.train_step, autograph=False)
        .get_concrete_function((tf.zeros((8, 5)), tf.zeros((8,), tf.int64)))
        .graph
    )
    seen = {}
    for name, kind, device in nodes(graph):
        task = re.match(r"(forward|backward)_0_(\d)", name)
        if task and kind == "MatMul":
            seen.setdefault(int(task[2]), set()).add(device[-5:])
    assert seen == {
        0: {"CPU:1"},
        1: {"CPU:2"},
        2: {"CPU:1"},
        3: {"CPU:2"},
    }
    # The second replica's first forward is no descendant of the first's.
    product = next(
        op
        for op in graph.get_operations()
        if op.type == "MatMul" and op.name.startswith("forward_0_1/")
    )
    ahead, before = [product], set()
    while ahead:
        at = ahead.pop()
        for source in [*(t.op for t in at.inputs), *at.control_inputs]:
            if source.name not in before:
                before.add(source.name)
                ahead.append(source)
    assert not any(re.match(r"(forward|backward)_0_0/", n) for n in before)


@pytest.mark.nightly
def test_replicas_under_a_strategy_with_servers():
    """What a worker with several devices pushes is the sum of them all."""
    plain, expected = train(build())
    strategy = tfdist.AsyncStrategy()
    with strategy.scope():
        model = pipeline(build(), 1, [["CPU:1", "CPU:2"]], micro_batches=2)
        came, weights = train(model)
    np.testing.assert_allclose(came["loss"], plain["loss"], rtol=1e-5)
    for one, other in zip(expected, weights, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)
    assert strategy.updates_applied() == [12]


def test_schedules_without_flushes_have_no_servers():
    strategy = tfdist.AsyncStrategy()
    with strategy.scope():
        model = pipeline(build(), 1, micro_batches=2, schedule="pipedream")
        with pytest.raises(ValueError, match="AsyncStrategy .*gpipe or 1f1b"):
            train(model)


@pytest.mark.nightly
@pytest.mark.parametrize("schedule", ["1f1b", "pipedream_2bw"])
def test_a_loss_that_leaves_out_elements_or_sums_is_refused(schedule):
    loss = keras.losses.SparseCategoricalCrossentropy(ignore_class=-1)
    for wrong, message in (
        (loss, "ignore_class"),
        (lambda y, p: tf.reduce_sum(loss(y, p)), "one number"),
    ):
        model = pipeline(build(), 2, micro_batches=2, schedule=schedule)
        model.compile("sgd", wrong)
        with pytest.raises(ValueError, match=message):
            model.fit(np.zeros((8, 5)), np.zeros(8, "int64"), verbose=0)


def test_a_model_that_has_got_another_layer_is_refused():
    model = pipeline(build(), 2, micro_batches=2)
    model.add(keras.layers.Dense(3))
    with pytest.raises(ValueError, match="added or removed"):
        model.compile("sgd", "mse")


def test_a_batch_by_itself_without_a_graph():
    plain, model = build(), pipeline(build(), 2, micro_batches=2)
    for one in (plain, model):
        one.compile("sgd", "mse", run_eagerly=True)
        one.train_on_batch(np.ones((4, 5)), np.zeros((4, 3)))
    for a, b in zip(plain.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


@pytest.mark.parametrize(
    ("devices", "arguments", "message"),
    [
        ([["CPU:0", "CPU:1"]], {"schedule": "pipedream"}, "takes none"),
        ([["CPU:0", "CPU:1"]], {"micro_batches": 1}, "2 replicas"),
        ([["CPU:0", "CPU:0"]], {}, "different names"),
        ("CPU:0", {}, "must be a list"),
    ],
)
def test_refused(devices, arguments, message):
    with pytest.raises(ValueError, match=message):
        pipeline(build(), 1, devices, **arguments)
