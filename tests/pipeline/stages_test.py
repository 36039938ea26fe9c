"""A model cut into stages computes what it computed."""

import itertools

from hypothesis import given
from hypothesis import strategies as st
import keras
from keras import layers
import numpy as np
import pytest
import tensorflow as tf

from tests import laws
from tests.pipeline import models
from tfdist import private_keras
from tfdist.pipeline import pipeline
from tfdist.pipeline import stages as stages_lib
from tfdist.placement import calls as calls_lib

DEVICES = ["CPU:0", "CPU:1", "CPU:2"]


def run(model, stages, x, training):
    """(outputs in flattened order, variable path -> value after)."""
    _, inputs, outputs = stages_lib.calls_of(model)
    flat = private_keras.flat_inputs(model, x)
    values = dict(zip(inputs, flat, strict=True))
    state = {}
    for stage in stages:
        results, after = stage.run(
            [values[key] for key in stage.inputs],
            [variable.value.read_value() for variable in stage.weights],
            [variable.value.read_value() for variable in stage.state],
            training=training,
        )
        values.update(zip(stage.outputs, results, strict=True))
        for variable, value in zip(stage.state, after, strict=True):
            state[variable.path] = value
    return [values[key] for key in outputs], state


class Fixed(layers.Layer):
    """Never trains its part: Keras has those after it do as this part."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.part = layers.Identity()

    def call(self, inputs):
        return self.part(inputs, training=False)


def functional():
    x = keras.Input((6,))
    y = layers.BatchNormalization(name="norm")(Fixed()(x))
    y = layers.Dropout(0.5, seed=1, name="drop")(y)
    inner = keras.Sequential([layers.Dropout(0.5, seed=2)], name="inner")
    return keras.Model(x, layers.Dense(2, name="out")(inner(y)))


def test_layers_train_only_when_told_and_change_nothing():
    """Keras notes with each call that it was not in training when made."""
    model = functional()
    stages = stages_lib.split(model, ["drop", "out"], DEVICES)
    x = np.random.default_rng(0).normal(size=(8, 6)).astype("float32")
    before = [variable.numpy() for variable in model.variables]
    (still,), unchanged = run(model, stages, x, training=False)
    np.testing.assert_allclose(still, model(x, training=False), atol=1e-6)
    paths = {variable.path: variable.numpy() for variable in model.variables}
    for path, value in unchanged.items():
        np.testing.assert_array_equal(value, paths[path])
    (moving,), changed = run(model, stages, x, training=True)
    for variable, value in zip(model.variables, before, strict=True):
        np.testing.assert_array_equal(variable, value)
    # This does change the model: it is what Keras makes of all that.
    np.testing.assert_allclose(moving, model(x, training=True), atol=1e-6)
    for variable in model.non_trainable_variables:
        np.testing.assert_allclose(changed[variable.path], variable, atol=1e-6)
    assert len(changed) == 4 and not np.allclose(still, moving)


def test_a_weight_that_is_read_from_elsewhere_is_refused():
    model = models.make("mlp")
    kernel = model.layers[0].kernel
    model.add(layers.Lambda(lambda x: x * keras.ops.sum(kernel), name="last"))
    split = stages_lib.split(model, ["last"], DEVICES[:2])
    with pytest.raises(ValueError, match=r"stage 1 \(last\) reads .*kernel"):
        run(model, split, np.ones((2, 4), "float32"), training=True)
    # Frozen, it needs no gradient; in one stage with it, it has one.
    model.layers[0].trainable = False
    run(model, split, np.ones((2, 4), "float32"), training=True)
    model.layers[0].trainable = True
    fixed = [stage.fixed() for stage in split]
    model.layers[0].trainable = False
    # Its stage still trains it.
    with pytest.raises(ValueError, match=r"stage 1 \(last\) reads .*kernel"):
        run(model, fixed, np.ones((2, 4), "float32"), training=True)
    model.layers[0].trainable = True
    split = stages_lib.split(model, 1, DEVICES[:1])
    run(model, split, np.ones((2, 4), "float32"), training=True)


@pytest.mark.parametrize("is_traced", [False, True])
def test_a_weight_of_a_function_with_a_gradient_of_its_own_is_refused(
    is_traced,
):
    class Remat(layers.Dense):
        """Is computed again for its gradient."""

        def call(self, x):
            """As Dense."""
            return keras.remat(super().call)(x)

    model = keras.Sequential([keras.Input((4,)), Remat(2, name="a")])
    split = stages_lib.split(model, 1, DEVICES[:1])

    def step():
        return run(model, split, np.ones((2, 4), "float32"), training=True)

    with pytest.raises(ValueError, match="a/kernel'.* `recompute=True`"):
        (tf.function(step, autograph=False) if is_traced else step)()
    model.trainable = False
    (outputs,), _ = step()
    np.testing.assert_allclose(outputs, model(np.ones((2, 4))), atol=1e-6)


@pytest.mark.parametrize("is_traced", [False, True])
def test_a_weight_that_a_function_is_given_has_the_gradient_of_that(is_traced):
    @tf.custom_gradient
    def signs(weight):
        return tf.sign(weight), lambda upstream: 3.0 * upstream

    class Binary(layers.Dense):
        """Computes with the signs of its kernel."""

        def call(self, x):
            """A product."""
            return keras.ops.matmul(x, signs(self.kernel))

    model = keras.Sequential(
        [keras.Input((4,)), Binary(2, use_bias=False, name="a")]
    )
    (stage,) = stages_lib.split(model, 1, DEVICES[:1])
    x = tf.ones((2, 4))

    def step():
        weights = [variable.value.read_value() for variable in stage.weights]
        with tf.GradientTape() as tape:
            tape.watch(weights)
            (outputs,), _ = stage.run([x], weights, [], training=True)
        return outputs, *tape.gradient(outputs, weights)

    outputs, gradient = (
        tf.function(step, autograph=False) if is_traced else step
    )()
    np.testing.assert_allclose(outputs, x @ np.sign(model.get_weights()[0]))
    np.testing.assert_array_equal(gradient, np.full((4, 2), 6.0))


def test_frozen_weights_are_state():
    model = models.make("mlp")
    stage, *_ = stages_lib.split(model, 1, ["CPU:0"])
    model.layers[1].trainable = False
    assert [v.path.split("/")[-2] for v in stage.weights] == list("aacc")
    assert [v.path.split("/")[-2] for v in stage.state] == list("bb")


@pytest.mark.parametrize(
    "stages, expected",
    [
        (["b", "c"], ["a", "b", "c"]),
        (["c"], ["ab", "c"]),
        ([["a", "b"], ["c"]], ["ab", "c"]),
        ([["a"], ["*"]], None),
        ([["[ab]"], ["c"]], ["ab", "c"]),
        (3, ["a", "b", "c"]),
        (1, ["abc"]),
    ],
)
def test_stages_can_be_said_in_several_ways(stages, expected):
    model = models.make("mlp")
    devices = DEVICES[: stages_lib.count(stages)]
    if expected is None:
        with pytest.raises(ValueError, match="exactly one stage"):
            stages_lib.split(model, stages, devices)
        return
    made = stages_lib.split(model, stages, devices)
    assert ["".join(stage.names) for stage in made] == expected


@laws.settings(max_examples=80)
@given(
    work=st.lists(st.integers(1, 20), min_size=1, max_size=8), data=st.data()
)
def test_a_number_of_stages_makes_the_largest_as_small_as_can_be(work, data):
    num_stages = data.draw(st.integers(1, len(work)))
    layer = layers.Dense(1)
    calls = [calls_lib.Call(layer, None, (), (), work=w) for w in work]

    def largest(bounds):
        return max(sum(work[a:b]) for a, b in itertools.pairwise(bounds))

    bounds = stages_lib.cuts(calls, num_stages)
    assert len(bounds) == num_stages + 1 and bounds == sorted(set(bounds))
    assert largest(bounds) == min(
        largest([0, *inner, len(work)])
        for inner in itertools.combinations(range(1, len(work)), num_stages - 1)
    )


@pytest.mark.parametrize(
    "stages, message",
    [
        (["nowhere"], "names 'nowhere'.*There are: a, b, c"),
        (["c", "b"], "not in the model's order"),
        ([["a"], ["b"]], "Received: 'c' in none"),
        ([["b", "c"], ["a"]], "in the order"),
        (4, "1 to 3"),
        ("b", "`stages` must be"),
    ],
)
def test_cuts_that_cannot_be_are_refused(stages, message):
    calls, _, _ = stages_lib.calls_of(models.make("mlp"))
    with pytest.raises(ValueError, match=message):
        stages_lib.cuts(calls, stages)


def test_devices_are_as_many_as_stages():
    with pytest.raises(ValueError, match="2 stages, and there are 1 devices"):
        stages_lib.split(models.make("mlp"), ["b"], ["CPU:0"])


@pytest.mark.nightly
def test_a_layer_of_two_stages_runs_on_the_device_of_each():
    model = models.make("tied")
    pipeline(model, models.KINDS["tied"].stages, DEVICES)
    for index, spec in [
        (0, tf.TensorSpec((None, 3), "int32")),
        (1, tf.TensorSpec((None, 3, 4))),
    ]:
        stage = model.stages[index]

        @tf.function(input_signature=[spec])
        def run(inputs, stage=stage):
            weights = [tf.zeros(w.shape) for w in stage.weights]
            return stage.run([inputs], weights, [])

        products = [
            operation
            for operation in run.get_concrete_function().graph.get_operations()
            if operation.type == "MatMul"
        ]
        assert products
        for operation in products:
            assert operation.device.endswith(DEVICES[index])


def test_rows_of_a_table_are_no_work():
    model = models.make("tied")
    for is_placed in (False, True):
        if is_placed:
            pipeline(model, models.KINDS["tied"].stages, DEVICES)
        calls = stages_lib.calls_of(model)[0]
        work = {call.operation.name: call.work for call in calls}
        assert (work["a"], work["flat"]) == (1, 1)
