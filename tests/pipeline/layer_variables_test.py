"""Variables that a layer gets late, or that are those of its metrics."""

import keras
from keras import layers
import numpy as np
import pytest
import tensorflow as tf

from tests import nightly
from tests.pipeline import chains
from tests.pipeline import models
from tfdist.pipeline import pipeline


def data(examples):
    x, y, _ = models.data("skip", examples)
    return x.astype("float32"), y.astype("float32")


def adapted(schedule, enable_after_compile=False):
    """A model whose last layer gets a low-rank adapter (LoRA) when cut."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((4,)),
            layers.Dense(5, "tanh", name="a"),
            layers.Dense(3, name="b"),
        ]
    )
    if schedule:
        pipeline(model, ["b"], micro_batches=1, schedule=schedule)
    if not enable_after_compile:
        model.get_layer("b").enable_lora(2)
    model.compile(keras.optimizers.SGD(0.25), "mse", run_eagerly=True)
    if enable_after_compile:
        model.get_layer("b").enable_lora(2)
    return model


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("schedule", "enable_after_compile"),
    [("gpipe", False), ("gpipe", True), ("pipedream", False)],
)
def test_weights_that_a_layer_gets_after_the_cut_are_trained(
    schedule, enable_after_compile
):
    trained = []
    for name in (None, schedule):
        model = adapted(name, enable_after_compile)
        # One batch at a time in the pipeline: as without one.
        for _ in range(2):
            model.fit(*data(6), batch_size=6, shuffle=False, verbose=0)
        trained.append(model.get_weights())
    for one, two in zip(*trained, strict=True):
        np.testing.assert_allclose(one, two, atol=1e-6)
    assert np.any(model.get_layer("b").lora_kernel_b)
    if not enable_after_compile:
        device = model.get_layer("b").lora_kernel_a.value.device
        assert device.endswith("CPU:1")


def test_late_weights_are_trained_on_after_an_evaluation():
    model = adapted("gpipe", enable_after_compile=True)
    model.run_eagerly = False
    for _ in range(2):
        model.fit(*data(6), batch_size=6, verbose=0)
        # It would move them to their device, away from a traced step.
        model.evaluate(*data(6), batch_size=6, verbose=0)
    assert np.any(model.get_layer("b").lora_kernel_b)
    device = model.get_layer("b").lora_kernel_a.value.device
    assert device.endswith("CPU:1")


class Sized(layers.Layer):
    """Counts, in metrics, what comes in."""

    def __init__(self, **options):
        super().__init__(**options)
        self.size = keras.metrics.Mean(name="size")
        self.calls = keras.metrics.Sum(name="calls")

    def call(self, inputs):
        self.size.update_state(keras.ops.abs(inputs))
        self.calls.update_state(1.0)
        return inputs


def measured(schedule, run_eagerly, stages=("b",), **options):
    keras.utils.set_random_seed(1)
    inner = keras.Sequential([Sized(name="sized")], name="inner")
    model = keras.Sequential(
        [
            keras.Input((4,)),
            layers.Dense(5, "tanh", name="a"),
            layers.Dense(4, "tanh", name="b"),
            inner,
            layers.Dense(3, name="c"),
        ]
    )
    if schedule:
        pipeline(
            model, list(stages), micro_batches=3, schedule=schedule, **options
        )
    model.compile(keras.optimizers.SGD(0.0), "mse", run_eagerly=run_eagerly)
    return model


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("schedule", "options"),
    [
        ("gpipe", {"recompute": True, "stages": ["b", "c"]}),
        ("1f1b", {}),
        ("pipedream", {"stages": ["b", "c"]}),
        ("pipedream_2bw", {}),
    ],
)
@pytest.mark.parametrize("run_eagerly", [True, False])
def test_a_layers_metrics_are_those_of_all_micro_batches(
    schedule, options, run_eagerly
):
    plain = measured(None, run_eagerly)
    model = measured(schedule, run_eagerly, **options)
    x, y = data(8)
    # Two batches of 3 micro-batches, and one of 2: the third is empty.
    for found in (plain, model):
        found.fit(x, y, batch_size=3, epochs=2, shuffle=False, verbose=0)
    expected = {k: v[-1] for k, v in plain.history.history.items()}
    logs = {k: v[-1] for k, v in model.history.history.items()}
    assert expected.pop("calls") == 3 and logs.pop("calls") == 8
    assert expected.keys() == logs.keys() == {"loss", "size"}
    for name, value in expected.items():
        np.testing.assert_allclose(logs[name], value, rtol=1e-5, err_msg=name)
    evaluated = [
        m.evaluate(x, y, 8, 0, return_dict=True) for m in (plain, model)
    ]
    assert evaluated[0] == pytest.approx(evaluated[1], rel=1e-5)


def test_metrics_of_a_layer_of_several_stages_are_refused():
    x = keras.Input((4,))
    sized = Sized()
    y = layers.Dense(4, name="middle")(sized(x))
    model = keras.Model(x, layers.Dense(3)(sized(y)))
    pipeline(model, ["middle"], micro_batches=2)
    model.compile("sgd", "mse", run_eagerly=True)
    with pytest.raises(ValueError, match="stages 0 and 1 share"):
        model.train_on_batch(*data(4))


class Traced(layers.Dense):
    """Has a `tf.function` that the pipeline traces first."""

    @tf.function
    def call(self, x):
        """As Dense."""
        return super().call(x)


@pytest.mark.parametrize("schedule", nightly.also(["gpipe"], ["pipedream"]))
def test_functions_of_layers_of_eager_stages_see_the_weights_of_now(schedule):
    trained = []
    for layer in (layers.Dense, Traced):
        keras.utils.set_random_seed(1)
        model = keras.Sequential(
            [keras.Input((4,)), layer(5, name="a"), layers.Dense(3, name="b")]
        )
        pipeline(model, ["b"], micro_batches=2, schedule=schedule)
        model.compile(keras.optimizers.SGD(0.1), "mse", run_eagerly=True)
        model.fit(*data(6), batch_size=3, shuffle=False, verbose=0)
        trained.append(model.get_weights())
    assert not tf.config.functions_run_eagerly()
    for one, two in zip(*trained, strict=True):
        np.testing.assert_allclose(one, two, atol=1e-6)


class TracedBefore(layers.Layer):
    """Has a `tf.function` that Keras traces when the model is made."""

    def build(self, shape):
        """Makes the weight."""
        self.scale = self.add_weight(shape=shape[-1:])

    @tf.function
    def call(self, x):
        """Scales the inputs."""
        return self.scale * x


def test_a_layer_whose_function_was_traced_before_is_refused():
    model = keras.Sequential(
        [
            keras.Input((4,)),
            TracedBefore(name="a"),
            layers.Dense(3, name="b"),
        ]
    )
    pipeline(model, ["b"], micro_batches=2)
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match=r"\(a\) has a tf.function of its"):
        model.fit(*data(6), verbose=0)


def test_what_is_in_flight_comes_back_before_the_model_is_quantized():
    model = adapted("pipedream")
    model.train_on_batch(*data(4))
    assert chains.executor(model).in_flight == 1
    updates = int(model.optimizer.iterations)
    model.quantize("int8")
    assert chains.executor(model).in_flight == 0
    assert int(model.optimizer.iterations) == updates + 1
    assert model.get_layer("a").kernel.dtype == "int8"


class Counting(layers.Layer):
    """Counts examples in a variable of TensorFlow's."""

    def __init__(self, **options):
        super().__init__(**options)
        self.examples = tf.Variable(0, trainable=False)

    def call(self, x):
        """Counts in a branch, as a layer may that counts now and then."""
        tf.cond(
            tf.shape(x)[0] > 0,
            lambda: self.examples.assign_add(tf.shape(x)[0]),
            lambda: 0,
        )
        return x


class Drawing(layers.Layer):
    """Draws numbers from a generator of TensorFlow's."""

    def __init__(self, **options):
        super().__init__(**options)
        self.generator = tf.random.Generator.from_seed(1)

    def call(self, x):
        """Adds them."""
        return x + self.generator.normal(tf.shape(x))


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (Counting, r"\(a, counting\) changes a tf.Variable"),
        (Drawing, r"\(a, drawing\) draws random numbers"),
    ],
)
@pytest.mark.parametrize(
    "options",
    [{"recompute": True}, *nightly.also([], [{"schedule": "pipedream"}])],
)
def test_what_a_repetition_would_do_again_is_refused(layer, message, options):
    model = keras.Sequential(
        [
            keras.Input((4,)),
            layers.Dense(4, name="a"),
            layer(name=layer.__name__.lower()),
            layers.Dense(3, name="b"),
        ]
    )
    pipeline(model, ["b"], micro_batches=2, **options)
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match=message):
        model.fit(*data(6), batch_size=6, verbose=0)


def test_a_variable_of_tensorflows_is_assigned_once_where_nothing_repeats():
    counting = Counting(name="counting")
    model = keras.Sequential(
        [keras.Input((4,)), counting, layers.Dense(3, name="b")]
    )
    pipeline(model, ["b"], micro_batches=2)
    model.compile("sgd", "mse")
    counting.examples.assign(0)
    model.fit(*data(6), batch_size=6, verbose=0)
    assert int(counting.examples) == 6
