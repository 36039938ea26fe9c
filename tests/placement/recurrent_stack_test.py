"""A stack in chunks is the stack, and its layers need not wait."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.placement.graphs import nodes
from tfdist import placement

STEPS, FEATURES, UNITS = 7, 3, 4


def plain(kind, return_sequences, masked=False):
    inputs = keras.Input((STEPS, FEATURES))
    x = keras.layers.Masking()(inputs) if masked else inputs
    x = kind(UNITS, return_sequences=True, name="low")(x)
    x = kind(UNITS, return_sequences=return_sequences, name="up")(x)
    return keras.Model(inputs, x)


def stacked(kind, return_sequences, chunks, masked=False):
    inputs = keras.Input((STEPS, FEATURES))
    x = keras.layers.Masking()(inputs) if masked else inputs
    layers = [kind(UNITS, name="low"), kind(UNITS, name="up")]
    stack = placement.RecurrentStack(
        layers, chunks, return_sequences=return_sequences, name="stack"
    )
    return keras.Model(inputs, stack(x))


def sequences(masked=False):
    x = np.random.default_rng(0).standard_normal((5, STEPS, FEATURES))
    if masked:
        for row, length in enumerate((7, 1, 3, 5, 6)):
            x[row, length:] = 0
    return tf.constant(x, "float32")


@pytest.mark.parametrize("masked", [True, False])
def test_chunks_that_may_be_wholly_masked_are_not_given_to_cudnn(masked):
    model = stacked(keras.layers.LSTM, False, 2, masked)
    model(sequences(masked))
    expected = False if masked else "auto"
    inner = model.get_layer("stack").layers
    assert [layer.use_cudnn for layer in inner] == [expected] * 2


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("kind", "chunks", "return_sequences", "masked"),
    [
        (keras.layers.GRU, 2, True, False),
        (keras.layers.LSTM, 3, False, False),
        (keras.layers.SimpleRNN, 4, False, True),
        (keras.layers.LSTM, 7, True, True),
        (keras.layers.LSTM, 1, False, True),
    ],
)
def test_is_the_stack(kind, chunks, return_sequences, masked):
    one = plain(kind, return_sequences, masked)
    other = stacked(kind, return_sequences, chunks, masked)
    other.set_weights(one.get_weights())
    x = sequences(masked)

    @tf.function
    def both():
        found = []
        for model in (one, other):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = model(x)
                loss = tf.reduce_sum(y * y)
            found.append((y, tape.gradient(loss, [x, *model.weights_])))
        return found

    for model in (one, other):
        model.weights_ = [v.value for v in model.trainable_variables]
    expected, came = both()
    for a, b in zip(
        tf.nest.flatten(expected), tf.nest.flatten(came), strict=True
    ):
        np.testing.assert_allclose(a, b, atol=1e-6)


@pytest.mark.nightly
def test_a_layer_waits_for_its_chunk_only():
    model = stacked(keras.layers.LSTM, False, 3)
    placement.place(model, {"*/low": "CPU:1", "*/up": "CPU:2"})
    graph = (
        tf.function(lambda x: model(x)).get_concrete_function(sequences()).graph
    )
    loops = [op for op in graph.get_operations() if op.type == "While"]
    low = [op for op in loops if op.device.endswith("CPU:1")]
    up = [op for op in loops if op.device.endswith("CPU:2")]
    assert len(low) == len(up) == 3
    for chunk in range(3):
        needed = ancestors(up[chunk])
        assert low[chunk] in needed
        assert all(later not in needed for later in low[chunk + 1 :])
    inside = [n for n in nodes(graph) if "lstm_cell" in n[0]]
    products = [n for n in inside if n[1] == "MatMul"]
    assert {device[-5:] for _, _, device in products} == {"CPU:1", "CPU:2"}


def ancestors(operation):
    found, ahead = set(), [operation]
    while ahead:
        at = ahead.pop()
        for source in [t.op for t in at.inputs] + list(at.control_inputs):
            if source not in found:
                found.add(source)
                ahead.append(source)
    return found


def test_is_saved(tmp_path):
    model = stacked(keras.layers.GRU, True, 2)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(model(sequences()), loaded(sequences()))
    assert loaded.output_shape == (None, STEPS, UNITS)


def test_masked_outputs_may_have_more_dimensions():
    x = np.random.default_rng(0).standard_normal((3, 6, 3, 3, 2))
    mask = np.array([[0, 0, 0, 1, 0, 1], [0] * 6, [1, 1, 0, 0, 0, 0]], bool)

    def layer():
        # As many columns as the steps of a chunk, and rows as examples.
        return keras.layers.ConvLSTM2D(
            2, 2, padding="same", return_sequences=True, name="a"
        )

    stack, plain = placement.RecurrentStack([layer()], 2, True), layer()
    found = stack(x, mask=mask)
    plain.build(x.shape)
    plain.set_weights(stack.get_weights())
    np.testing.assert_allclose(found, plain(x, mask=mask), atol=1e-6)


@pytest.mark.parametrize(
    ("layers", "chunks", "message"),
    [
        ([keras.layers.LSTM(2)], 0, "`chunks` must be"),
        ([keras.layers.Dense(2)], 2, "Received: Dense"),
        ([keras.layers.LSTM(2, dropout=0.5)], 2, "dropout=0.5"),
        (
            [
                keras.layers.RNN(
                    [
                        keras.layers.LSTMCell(2),
                        keras.layers.GRUCell(2, dropout=0.1),
                    ]
                )
            ],
            2,
            "dropout=0.1",
        ),
        (
            [keras.layers.GRU(2, name="x"), keras.layers.GRU(2, name="x")],
            2,
            "different",
        ),
    ],
)
def test_refused(layers, chunks, message):
    with pytest.raises(ValueError, match=message):
        placement.RecurrentStack(layers, chunks)


def test_more_chunks_than_steps_are_refused():
    with pytest.raises(ValueError, match="at least 8, the chunks.*Received: 7"):
        stacked(keras.layers.LSTM, False, 8)
