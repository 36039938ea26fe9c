"""Models as users have them: what a fresh pair of eyes saw go wrong."""

import contextlib
import pickle

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.placement import zoo
from tests.placement.graphs import nodes
import tfdist
from tfdist import placement
from tfdist.placement import placed


def homes(model):
    return {v.path: v.value.device[-5:] for v in model.variables}


class Unbuilt(keras.Model):
    def __init__(self):
        super().__init__()
        self.a = keras.layers.Dense(4, name="a")
        self.b = keras.layers.Dense(3, name="b")

    def call(self, x):
        return self.b(self.a(x))


@pytest.mark.nightly
@pytest.mark.parametrize("first", ["fit", "predict"])
def test_an_unbuilt_subclassed_model(first):
    model = Unbuilt()
    placement.place(model, {"a": "CPU:1", "b": "CPU:2"})
    model.compile("adam", "mse")
    x, y = np.ones((8, 5), "float32"), np.ones((8, 3), "float32")
    if first == "predict":
        model.predict(x, verbose=0)
    before = None if first == "fit" else model.a.kernel.numpy()
    model.fit(x, y, verbose=0)
    assert sorted(homes(model).values()) == 2 * ["CPU:1"] + 2 * ["CPU:2"]
    slots = [v.value.device[-5:] for v in model.optimizer.variables[2:]]
    assert slots == 4 * ["CPU:1"] + 4 * ["CPU:2"]
    if before is not None:
        assert np.abs(model.a.kernel.numpy() - before).max() > 0


def block(name):
    inputs = keras.Input((8,))
    outputs = keras.layers.Dense(8, name="d")(inputs)
    return keras.Model(inputs, outputs, name=name)


@pytest.mark.nightly
def test_slots_of_layers_with_one_name_are_with_their_layers():
    """Variables of blocks made by one function have the same paths."""
    inputs = keras.Input((8,))
    blocks = [block("a"), block("b")]
    model = keras.Model(inputs, blocks[1](blocks[0](inputs)))
    placement.place(model, {"a": "CPU:1", "b": "CPU:2"})
    model.compile("adam", "mse")
    x = np.ones((8, 8), "float32")
    model.fit(x, x, epochs=2, validation_data=(x, x), verbose=0)
    slots = [v.value.device[-5:] for v in model.optimizer.variables[2:]]
    assert slots == 4 * ["CPU:1"] + 4 * ["CPU:2"]
    rows = {row.path: row for row in placement.report(model, (x, x)).rows}
    for part in blocks:
        row = rows[f"{part.name}/d"]
        # Weights, both of Adam's slots, and what the backward pass keeps.
        assert row.memory >= 3 * 4 * row.parameters


@pytest.mark.nightly
def test_a_part_that_is_placed_later_trains_on():
    inner = keras.Sequential([keras.layers.Dense(4, name="in")], name="inner")
    model = keras.Sequential(
        [keras.Input((5,)), inner, keras.layers.Dense(3, name="head")]
    )
    model.compile(keras.optimizers.Adam(0.1), "mse")
    x, y = np.ones((8, 5), "float32"), np.ones((8, 3), "float32")
    model.fit(x, y, verbose=0)
    encoded = inner.predict(x, verbose=0)
    placement.place(model, {"inner": "CPU:1"})
    before = inner.layers[0].kernel.numpy()
    model.fit(x, y, verbose=0)
    assert np.abs(inner.layers[0].kernel.numpy() - before).max() > 0.01
    # Nor does the part predict with what it was.
    assert np.abs(inner.predict(x, verbose=0) - encoded).max() > 0.01


def test_what_was_traced_before_does_not_train_in_silence():
    model, where = zoo.build("mlp")
    x, _ = zoo.data("mlp", 8)
    compute = tf.function(lambda: model(x))
    compute()
    placement.place(model, where)
    with pytest.raises(tf.errors.OpError):
        compute()


def test_an_exact_name_takes_along_what_the_layer_is_made_of():
    model, _ = zoo.build("lstm")
    placement.place(model, {"*": "CPU:1", "lower": "CPU:2", "upper": "CPU:3"})
    found = homes(model)
    assert {d for p, d in found.items() if "lower" in p} == {"CPU:2"}
    assert {d for p, d in found.items() if "upper" in p} == {"CPU:3"}
    # Also what had a place of its own before.
    placement.place(model, {"upper": "CPU:0"})
    found = homes(model)
    assert {d for p, d in found.items() if "upper" in p} == {"CPU:0"}


def test_a_path_beats_an_equal_name_further_down():
    inner = keras.Sequential([keras.layers.Dense(4, name="x")], name="inner")
    model = keras.Sequential(
        [keras.Input((5,)), inner, keras.layers.Dense(3, name="x")]
    )
    placement.place(model, {"inner": "CPU:1", "x": "CPU:2"})
    assert inner.layers[0].kernel.value.device.endswith("CPU:1")
    assert model.layers[1].kernel.value.device.endswith("CPU:2")


class TwoOptimizers(keras.Model):
    def __init__(self, part):
        super().__init__()
        self.part = part

    def compile(self, first, second):
        super().compile()
        self.first = first
        self.second = second

    def call(self, x):
        return self.part(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape(persistent=True) as tape:
            loss = tf.reduce_mean((self(x, training=True) - y) ** 2)
        halves = self.trainable_variables[:2], self.trainable_variables[2:]
        for optimizer, half in zip(
            (self.first, self.second), halves, strict=True
        ):
            gradients = tape.gradient(loss, [v.value for v in half])
            optimizer.apply_gradients(zip(gradients, half, strict=True))
        return {"squares": loss}


@pytest.mark.nightly
def test_a_model_with_a_compile_and_optimizers_of_its_own():
    part = keras.Sequential(
        [
            keras.Input((5,)),
            keras.layers.Dense(4, name="a"),
            keras.layers.Dense(3, name="b"),
        ]
    )
    model = TwoOptimizers(part)
    placement.place(model, {"a": "CPU:1", "b": "CPU:2"})
    model.compile(keras.optimizers.Adam(0.1), keras.optimizers.Adam(0.1))
    x, y = np.ones((8, 5), "float32"), np.ones((8, 3), "float32")
    first = model.fit(x, y, epochs=2, verbose=0).history["squares"]
    for optimizer, device in ((model.first, "CPU:1"), (model.second, "CPU:2")):
        slots = optimizer.variables[2:]
        assert {v.value.device[-5:] for v in slots} == {device}
    placement.place(model, {"a": "CPU:3"})
    last = model.fit(x, y, epochs=2, verbose=0).history["squares"]
    assert last[-1] < first[0]
    assert {v.value.device[-5:] for v in model.first.variables[2:]} == {"CPU:3"}


def test_optimizers_in_lists_and_in_others_work_where_variables_are():
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(4)])
    first, second = keras.optimizers.SGD(), keras.optimizers.SGD()
    model.others = [keras.optimizers.LossScaleOptimizer(first), second]
    placement.place(model, {"": "CPU:1"})
    for optimizer in (first, second):
        assert isinstance(optimizer, placed.PlacedOptimizer)


@pytest.mark.nightly
def test_costs_of_calls_with_other_arguments_and_of_embeddings():
    tokens = keras.Input((6,), dtype="int32")
    x = keras.layers.Embedding(9, 4, name="table")(tokens)
    x = keras.layers.Dropout(0.5, name="drop")(x, training=True)
    x = keras.layers.LSTM(4, name="lstm")(x) * 2.0
    model = keras.Model(tokens, keras.layers.Dense(2, name="head")(x))
    data = np.zeros((4, 6), "int32")
    measured = placement.measure(model, data, repeats=1)
    estimated = placement.estimate(model, 4)
    for one, other in zip(measured.nodes, estimated.nodes, strict=True):
        assert one.resident_bytes == other.resident_bytes
        assert one.output_bytes == other.output_bytes
    placement.place(model, "auto", ["CPU:1", "CPU:2"], data=data)
    assert set(homes(model).values()) <= {"CPU:1", "CPU:2"}


def test_what_a_recurrent_layer_keeps_of_each_time_step_counts():
    batch, steps, units = 4, 25, 8
    model = keras.Sequential(
        [keras.Input((steps, 3)), keras.layers.LSTM(units, name="lstm")]
    )
    model.compile("sgd", "mse")
    # At least its four gates and both states.
    least = 6 * steps * batch * units * 4
    (node,) = placement.estimate(model, batch).nodes
    assert least < node.activation_bytes < 2 * least
    data = np.zeros((batch, steps, 3)), np.zeros((batch, units))
    rows = placement.report(model, data).rows
    held = sum(row.memory for row in rows if row.path.startswith("lstm"))
    assert least < held < 2 * least + node.resident_bytes


def test_inputs_are_measured_by_their_names():
    a, b = keras.Input((4,), name="a"), keras.Input((2,), name="b")
    x = keras.layers.Dense(3, name="of_a")(a)
    y = keras.layers.Dense(3, name="of_b")(b)
    model = keras.Model([b, a], x + y)
    data = {"a": np.zeros((8, 4)), "b": np.zeros((8, 2))}
    graph = placement.measure(model, data, repeats=1)
    assert len(graph.nodes) == 3


def test_a_report_leaves_the_model_as_it_was():
    model, _ = zoo.build("convnet")
    model.compile("sgd", "mse")
    kinds = [type(layer) for layer in (model, *model.layers)]
    placement.report(model, batch_size=2)
    assert [type(layer) for layer in (model, *model.layers)] == kinds


def test_a_refused_placement_leaves_the_model_as_it_was():
    for strategy in (
        tf.distribute.OneDeviceStrategy("CPU:0"),
        tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]),
        # Without servers, a worker's variables are its strategy's own.
        tfdist.AllReduceStrategy(),
        tfdist.PeerToPeerStrategy(),
        tfdist.GossipStrategy(),
    ):
        with strategy.scope():
            model, where = zoo.build("mlp")
        with pytest.raises(ValueError, match="tf.distribute strategy, .*Strat"):
            placement.place(model, where)
        assert type(model) is keras.Sequential
        assert type(model.layers[0]) is keras.layers.Dense


def test_a_placement_that_moves_nothing_needs_no_servers():
    with tfdist.AllReduceStrategy().scope():
        model, _ = zoo.build("mlp")
        placement.place(model, "auto", devices=["CPU:0"])
        with tf.device("CPU:1"):
            elsewhere, _ = zoo.build("mlp")
    with pytest.raises(ValueError, match='parameter servers or .*"ring"'):
        placement.place(elsewhere, {"*": "CPU:0"})


def test_a_placed_model_trains_with_servers_as_without():
    """Strategies guard its training steps, which placed models must bear."""
    x, y = zoo.data("mlp", 8)
    found = []
    for strategy in (None, tfdist.AsyncStrategy(table_bytes=2**26)):
        keras.utils.set_random_seed(3)
        with strategy.scope() if strategy else contextlib.nullcontext():
            model, where = zoo.build("mlp")
            placement.place(model, where)
            model.compile("sgd", "sparse_categorical_crossentropy")
        for _ in range(2):
            model.fit(x, y, batch_size=4, shuffle=False, verbose=0)
        found.append(model.get_weights())
    for first, second in zip(*found, strict=True):
        np.testing.assert_allclose(first, second, rtol=1e-6)


@pytest.mark.nightly
@pytest.mark.parametrize("eagerly", [False, True])
def test_a_model_that_has_trained_with_servers_is_placed(eagerly):
    """What has pulled and pushed the replicas finds them where they are."""
    x, y = zoo.data("mlp", 8)
    found = []
    for strategy in (None, tfdist.AsyncStrategy()):
        keras.utils.set_random_seed(3)
        with strategy.scope() if strategy else contextlib.nullcontext():
            model, where = zoo.build("mlp")
            model.compile(
                "sgd",
                "sparse_categorical_crossentropy",
                run_eagerly=eagerly,
            )
        for moves in (False, True):
            if moves:
                placement.place(model, where)
            model.fit(x, y, batch_size=4, shuffle=False, verbose=0)
            loss = model.evaluate(x, y, verbose=0)
        found.append([loss, *model.get_weights()])
    for first, second in zip(*found, strict=True):
        np.testing.assert_allclose(first, second, rtol=1e-6)


def test_a_placed_model_can_be_pickled():
    model, where = zoo.build("mlp")
    placement.place(model, where)
    x, _ = zoo.data("mlp", 8)
    loaded = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(loaded(x), model(x))


@pytest.mark.nightly
def test_constants_go_with_what_they_are_for():
    """Also in the loop of an LSTM's gradient, where each turn would send."""
    model, where = zoo.build("lstm")
    x, y = zoo.data("lstm", 8)
    placement.place(model, where)
    model.compile("sgd", "sparse_categorical_crossentropy")

    @tf.function(autograph=False)
    def step(batch):
        return model.train_step(batch)

    graph = step.get_concrete_function((tf.constant(x), tf.constant(y))).graph
    placed = [
        (name, device)
        for name, kind, device in nodes(graph)
        if kind == "Const" and "on-localhost" in name
    ]
    nowhere = [name for name, device in placed if not device]
    assert len(placed) > 50
    assert len(nowhere) < len(placed) / 20, nowhere


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({1: "CPU:1"}, "by strings. Received: 1 of type int"),
        ({"first": "CPU:*"}, "must be a device that exists"),
    ],
)
def test_more_is_refused(rules, message):
    model, _ = zoo.build("mlp")
    with pytest.raises(ValueError, match=message):
        placement.place(model, rules)
    with pytest.raises(ValueError, match="`batch_size` must be"):
        placement.estimate(model, 0)
    with pytest.raises(ValueError, match="must be a batch"):
        placement.report(model, np.zeros((2, 5)))
