import json

import keras
import pytest
import tensorflow as tf

import tfdist


def build(strategy):
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input([5]),
                keras.layers.Dense(4),
                keras.layers.Dropout(0.5, seed=1),
            ]
        )
        model.compile("sgd", "mse")
    return model


def value_of(name, dtype, shape):
    handle = tf.raw_ops.VarHandleOp(dtype=dtype, shape=shape, shared_name=name)
    return tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype).numpy()


def test_what_the_layout_names_holds_the_values():
    strategy = tfdist.ParameterServerStrategy(
        variable_partitioner=lambda shape, dtype: (
            [2] + [1] * (len(shape) - 1) if len(shape) == 2 else [1]
        )
    )
    model = build(strategy)
    model.fit(keras.ops.ones([6, 5]), keras.ops.ones([6, 4]), 2, verbose=0)
    layout = strategy.layout(model.variables)
    assert json.loads(json.dumps(layout)) == layout
    assert layout["num_servers"] == 1
    assert layout["clocks"] == []
    assert value_of(layout["updates"], tf.int64, []) == 3
    kernel, bias, seed = layout["variables"]
    assert [kernel["path"], kernel["shape"], kernel["dtype"]] == [
        model.layers[0].kernel.path,
        [5, 4],
        "float32",
    ]
    # The first piece takes what does not divide.
    assert [piece[::2] for piece in kernel["pieces"]] == [[0, 3], [0, 2]]
    rows = [value_of(n, tf.float32, [k, 4]) for _, n, k in kernel["pieces"]]
    assert (tf.concat(rows, 0).numpy() == model.layers[0].kernel.numpy()).all()
    ((server, name, rows),) = bias["pieces"]
    assert (server, rows) == (0, None)
    assert (
        value_of(name, tf.float32, [4]) == model.layers[0].bias.numpy()
    ).all()
    # It belongs to each worker.
    assert seed["pieces"] == []


@pytest.mark.nightly
def test_local_steps_have_clocks_of_their_own():
    strategy = tfdist.ParameterServerStrategy(local_steps=3)
    model = build(strategy)
    model.fit(keras.ops.ones([14, 5]), keras.ops.ones([14, 4]), 2, verbose=0)
    strategy.barrier()
    layout = strategy.layout(model.variables)
    ((server, name, dtype),) = layout["clocks"]
    assert server == 0
    # Seven steps, exchanged after three, six, and at the end.
    assert value_of(name, tf.as_dtype(dtype), []) == 7
    assert value_of(layout["updates"], tf.int64, []) == 3


def test_variables_from_outside_the_scope_are_refused():
    strategy = tfdist.AsyncStrategy()
    model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
    with pytest.raises(ValueError, match="kernel' was created outside strat"):
        strategy.layout(model.variables)
