"""A placed model is the same model, and is where it was put."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.placement import zoo
from tests.placement.graphs import COLOCATED
from tests.placement.graphs import nodes
from tfdist import placement
from tfdist.placement import devices

TOLERANCE = 1e-6


def compiled(model, **kwargs):
    model.compile(
        # With its usual epsilon, Adam makes a step of rounding errors where a
        # gradient is zero, as that of a bias of attention's keys.
        keras.optimizers.Adam(
            1e-2, epsilon=1e-3, weight_decay=0.01, global_clipnorm=1.0
        ),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        **kwargs,
    )
    return model


def train(model, x, y, epochs=4):
    """20 steps."""
    keras.utils.set_random_seed(9)
    return model.fit(
        x, y, batch_size=zoo.BATCH, epochs=epochs, verbose=0, shuffle=False
    ).history


def step_graph(model, x, y):
    """The graph of one training step, and the functions that it calls."""

    @tf.function(autograph=False)
    def step(batch):
        return model.train_step(batch)

    batch = (x[: zoo.BATCH], y[: zoo.BATCH])
    return step.get_concrete_function(
        keras.tree.map_structure(tf.convert_to_tensor, batch)
    ).graph


def expected(name, homes):
    """The device of the innermost layer whose path is in an operation's name.

    Keras makes a name scope of each layer's name; what TensorFlow adds to make
    names unique, and the scopes that say a device, are left out.
    """
    parts = [
        re.sub(r"_\d+$", "", part) if part not in homes else part
        for part in name.split("/")
        if not part.startswith("on-")
    ]
    parts = [re.sub(r"^(block_\d)_\d+$", r"\1", part) for part in parts]
    path = f"/{'/'.join(parts)}/"
    found = [layer for layer in homes if f"/{layer}/" in path]
    return homes[max(found, key=len)] if found else None


@pytest.mark.nightly
@pytest.mark.parametrize(
    "name",
    ["shared", "lstm", "transformer", "nested", "subclassed"],
)
def test_placed_is_unplaced(name):
    x, y = zoo.data(name)
    plain, _ = zoo.build(name)
    placed, where = zoo.build(name)
    assert placement.place(placed, where) is placed
    np.testing.assert_allclose(
        plain.predict(x, verbose=0),
        placed.predict(x, verbose=0),
        atol=TOLERANCE,
    )
    one, other = (train(compiled(model), x, y) for model in (plain, placed))
    np.testing.assert_allclose(one["loss"], other["loss"], rtol=1e-6, atol=1e-6)
    assert one["accuracy"] == other["accuracy"]
    for a, b in zip(plain.variables, placed.variables, strict=True):
        np.testing.assert_allclose(a, b, atol=TOLERANCE, err_msg=a.path)

    # Everything is where it was put, as the traced graph says.
    homes = {
        layer: devices.resolve(device)
        for layer, device in where.items()
        if layer != "*"
    }
    names = nodes(step_graph(placed, x, y))
    forward, backward = {}, {}
    for node, kind, device in names:
        home = expected(node, homes)
        if home and kind not in ("Placeholder", "ReadVariableOp"):
            # TensorFlow puts a constant where it is used.
            anywhere = kind == "Const" and not device
            anywhere |= device == COLOCATED
            assert device == home or anywhere, (node, kind, device, home)
            side = backward if "gradient_tape/" in node else forward
            side.setdefault(home, []).append(node)
    assert set(forward) == set(homes.values())
    # Each has gradients as well (a dropout's is one multiplication).
    assert set(backward) == set(homes.values())
    variables = 0
    for variable in [*placed.variables, *placed.optimizer.variables]:
        path = f"_{variable.path}_".replace("/", "_")
        found = [n for n in homes if f"_{n}_".replace("/", "_") in path]
        if found:
            home = homes[max(found, key=len)]
            assert variable.value.device == home, variable.path
            variables += 1
    assert variables > 3


@pytest.mark.nightly
def test_what_crosses_is_what_must():
    """No gradient, no slot and no loss visits another device."""
    x, y = zoo.data("shared")
    model, where = zoo.build("shared")
    placement.place(model, where)
    report = placement.report(compiled(model), (x[: zoo.BATCH], y[: zoo.BATCH]))
    sent = {
        (devices.short(c.source), devices.short(c.target)): c.bytes
        for c in report.crossings
    }
    # Activations of 8 x 6, forward and backward; then scalars: the norm of the
    # gradients, which all have to know, and Adam's corrections.
    activation = zoo.BATCH * 6 * 4
    scalars = 100
    assert activation * 2 <= sent["CPU:1", "CPU:2"] < 2 * activation + scalars
    assert activation * 2 <= sent["CPU:2", "CPU:1"] < 2 * activation + scalars
    assert activation <= sent["CPU:1", "CPU:3"] < activation + scalars
    assert activation <= sent["CPU:3", "CPU:1"] < activation + scalars
    assert sent.get(("CPU:2", "CPU:3"), 0) < scalars
    # And without its model a layer is where it was put.
    layer = model.get_layer("between")
    assert layer(tf.zeros((2, 6))).device.endswith("CPU:2")


@pytest.mark.nightly
def test_layers_that_were_not_named_stay_with_their_inputs():
    """Forward and backward: nothing of them crosses."""
    model = keras.Sequential(
        [
            keras.Input((5,)),
            keras.layers.Dense(7, name="a"),
            keras.layers.ReLU(name="relu"),
            keras.layers.Dense(4, name="b"),
        ]
    )
    x, y = zoo.data("mlp", zoo.BATCH)
    placement.place(model, {"a": "CPU:1", "b": "CPU:2"})
    report = placement.report(compiled(model), (x, y))
    rows = {row.path: row for row in report.rows}
    assert rows["relu"].devices == (devices.resolve("CPU:1"),)
    sent = {
        (devices.short(c.source), devices.short(c.target)): c.bytes
        for c in report.crossings
    }
    size = zoo.BATCH * 7 * 4
    assert size <= sent["CPU:1", "CPU:2"] < size + 100
    assert size <= sent["CPU:2", "CPU:1"] < size + 100


class Borrower(keras.layers.Layer):
    """Multiplies by the weights of another layer."""

    def __init__(self, owner, **kwargs):
        super().__init__(**kwargs)
        self._owner = (owner,)

    def call(self, x):
        return keras.ops.matmul(x, self._owner[0].kernel)


def test_an_update_is_done_where_the_variable_is():
    """Not where its gradient is computed."""
    owner = keras.layers.Dense(5, name="owner")
    model = keras.Sequential(
        [keras.Input((5,)), owner, Borrower(owner, name="borrower")]
    )
    x, _ = zoo.data("mlp", zoo.BATCH)
    placement.place(model, {"owner": "CPU:1", "borrower": "CPU:2"})
    model.compile(keras.optimizers.Adam(), "mse")
    graph = step_graph(model, x, x)
    squares = [n for n in nodes(graph) if n[1] == "Square" and "adam" in n[0]]
    assert {device[-5:] for _, _, device in squares} == {"CPU:1"}


@pytest.mark.nightly
def test_placing_a_model_that_trains_moves_its_slots_and_goes_on():
    x, y = zoo.data("shared")
    plain, _ = zoo.build("shared")
    moved, where = zoo.build("shared")
    for model in (compiled(plain), compiled(moved)):
        train(model, x, y, epochs=2)
    placement.place(moved, where)
    for model in (plain, moved):
        train(model, x, y, epochs=2)
    for a, b in zip(plain.variables, moved.variables, strict=True):
        np.testing.assert_allclose(a, b, atol=TOLERANCE)
    slots = {v.path: v.value.device[-5:] for v in moved.optimizer.variables}
    assert slots.pop(moved.optimizer.iterations.path) == "CPU:0"
    assert slots.pop(moved.optimizer.learning_rate.path) == "CPU:0"
    for path, device in slots.items():
        home = next(where[name] for name in where if f"{name}_" in path)
        assert device == home, path


@pytest.mark.nightly
def test_an_optimizer_inside_another_is_placed_as_well():
    x, y = zoo.data("shared")
    weights = []
    for placed in (False, True):
        model, where = zoo.build("shared")
        if placed:
            placement.place(model, where)
        inner = keras.optimizers.SGD(
            0.1, momentum=0.9, gradient_accumulation_steps=2
        )
        model.compile(
            keras.optimizers.LossScaleOptimizer(inner, initial_scale=8.0),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            steps_per_execution=2,
        )
        train(model, x, y)
        weights.append(model.get_weights())
    for one, other in zip(*weights, strict=True):
        np.testing.assert_allclose(one, other, atol=TOLERANCE)
    slots = {v.path: v.value.device[-5:] for v in inner.variables[2:]}
    assert len(slots) == 12
    for path, device in slots.items():
        assert device == next(where[n] for n in where if f"{n}_" in path)


def test_tied_weights_go_with_the_first_layer_that_has_them():
    x, y = zoo.data("subclassed")
    model, where = zoo.build("subclassed")
    placement.place(model, where)
    assert model.embedding.embeddings.value.device.endswith("CPU:1")
    graph = step_graph(compiled(model), x, y)
    # The product with the embeddings belongs to no layer: it follows them or
    # what they are multiplied with.
    products = [n for n in nodes(graph) if n[1] == "MatMul"]
    assert products
    assert {device[-5:] for _, _, device in products} <= {"CPU:1", "CPU:2"}


@pytest.mark.nightly
def test_it_is_saved_and_copied_as_what_it_was(tmp_path):
    x, y = zoo.data("transformer")
    model, where = zoo.build("transformer")
    placement.place(model, where)
    train(compiled(model), x, y, epochs=1)
    path = tmp_path / "model.keras"
    model.save(path)
    loaded = keras.models.load_model(path)
    assert type(loaded.get_layer("block_1")) is zoo.Attention
    assert model.get_layer("block_1").__class__ is zoo.Attention
    np.testing.assert_array_equal(
        loaded.predict(x, verbose=0), model.predict(x, verbose=0)
    )
    slots = [v.numpy() for v in loaded.optimizer.variables]
    for one, other in zip(slots, model.optimizer.variables, strict=True):
        np.testing.assert_array_equal(one, other)
    clone = keras.models.clone_model(model)
    assert type(clone) is model.__class__ is type(loaded)


def test_layers_of_keras_are_quantized_and_subclasses_are_not():
    class Own(keras.layers.Dense):
        pass

    quantized = []
    for where in (None, {"a": "CPU:0", "b": "CPU:1"}):
        keras.utils.set_random_seed(1)
        model = keras.Sequential(
            [
                keras.Input((3,)),
                keras.layers.Dense(4, name="a"),
                keras.layers.Dense(4, name="b"),
                Own(2, name="own"),
            ]
        )
        if where:
            placement.place(model, where)
        with pytest.warns(match="Layer Own does not have a `quantize`"):
            model.quantize("int8")
        quantized.append(model)
    for one, two in zip(*(m.weights for m in quantized), strict=True):
        assert one.dtype == two.dtype
        np.testing.assert_array_equal(one.numpy(), two.numpy())
    x = np.ones((2, 3), "float32")
    one, two = (m.predict(x, verbose=0) for m in quantized)
    np.testing.assert_allclose(one, two, rtol=1e-6)
    kernel = model.get_layer("b").kernel_scale
    assert kernel.value.device.endswith("CPU:1")


def test_weights_and_checkpoints(tmp_path):
    model, where = zoo.build("convnet")
    before = [v.numpy() for v in model.variables]
    placement.place(model, where)
    checkpoint = tf.train.Checkpoint(model=model)
    saved = checkpoint.save(str(tmp_path / "checkpoint"))
    model.set_weights([np.zeros(v.shape) for v in model.variables])
    checkpoint.restore(saved)
    for one, other in zip(before, model.variables, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ({"frist": "CPU:1"}, "Did you mean 'first'.*There are: first, drop"),
        ({"first": "GPU:7"}, r"placement\['first'\].*one of CPU:0, CPU:1"),
        ({"first": "/job:worker/task:3/CPU:0"}, "must be a device that exists"),
        ("CPU:1", "`placement` must be"),
    ],
)
def test_refused(where, message):
    model, _ = zoo.build("mlp")
    with pytest.raises(ValueError, match=message):
        placement.place(model, where)


def test_what_xla_would_compile_is_refused():
    model, where = zoo.build("mlp")
    placement.place(model, where)
    with pytest.raises(ValueError, match="jit_compile=True"):
        compiled(model, jit_compile=True)
    with pytest.raises(ValueError, match="jit_compile=True"):
        # As `compile` takes it by position.
        model.compile("sgd", "mse", None, None, None, False, 1, True)
    with pytest.raises(ValueError, match="`model` must be"):
        placement.place("model", where)


def test_a_model_that_is_placed_later_is_not_compiled_by_xla():
    model, where = zoo.build("mlp")
    compiled(model, jit_compile=True)
    assert model.jit_compile
    placement.place(model, where)
    assert not model.jit_compile


@pytest.mark.nightly
def test_the_report_can_be_read():
    model, where = zoo.build("transformer")
    placement.place(model, where)
    report = placement.report(model, batch_size=16)
    rows = {row.path: row for row in report.rows}
    assert not report.training
    assert report.batch_size == 16
    assert rows["block_1/wide"].devices == (devices.resolve("CPU:3"),)
    assert rows["block_1/wide"].parameters == 6 * 12 + 12
    assert rows["block_1/wide"].output == 16 * 4 * 12 * 4
    text = str(report)
    assert "block_1/wide" in text
    assert re.search(r"--> CPU:3: 1 tensors, 1\.5 KiB", text)
