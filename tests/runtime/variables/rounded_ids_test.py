"""Ids that Keras may have rounded are refused, and all others are not."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.runtime.variables import rounded_ids


def check(rows, *types):
    """Looks up ids that had these types one after the other."""

    @tf.function
    def look_up(ids):
        for dtype in types[1:]:
            ids = tf.reshape(tf.cast(ids, dtype), [-1])
        ids = tf.where(ids < 0, ids + rows, ids)
        rounded_ids.check(ids, rows, "items")
        return ids

    look_up.get_concrete_function(tf.TensorSpec([None], types[0]))


@pytest.mark.parametrize(
    ("rows", "types"),
    [
        (1 << 40, ["int64"]),
        (1 << 31, ["int64", "float64", "int32"]),
        ((1 << 24) + 1, ["int64", "float32", "int32"]),
        (257, ["int64", "bfloat16", "int32"]),
        (2049, ["float32", "float16", "int32"]),
        (1000, ["uint8", "float32", "bfloat16", "int32"]),
    ],
)
def test_exact_ids_are_allowed(rows, types):
    check(rows, *types)


@pytest.mark.parametrize(
    ("rows", "types"),
    [
        ((1 << 24) + 2, ["int64", "float32", "int32"]),
        ((1 << 24) + 2, ["float32", "int64"]),
        (258, ["float32", "bfloat16", "int32"]),
        (2050, ["int32", "float16", "int32"]),
        (258, ["uint16", "bfloat16", "float32", "int32"]),
    ],
)
def test_ids_that_may_be_rounded_are_refused(rows, types):
    with pytest.raises(ValueError, match=r"'items' .*keras.Input\(shape, "):
        check(rows, *types)


@pytest.mark.parametrize(
    ("types", "known", "unknown"),
    [
        (["int64", "float32", "int64"], 2**24 - 1, 2**24 + 1),
        (["float32", "int64"], 2**24 - 1, 2**24),
        (["int64", "float16", "float32", "int64"], 2047, 2049),
        (["int64", "int32", "int64"], -(2**31) + 1, 2**32 + 5),
        (["int64", "int32"], 2**31 - 1, -(2**32) + 5),
        (["uint64", "uint32", "int64"], 2**32 - 1, 2**32),
        (["uint8", "float16", "int64"], 255, None),
        (["int32", "int64"], 2**31 - 1, None),
        (["uint64", "int64"], 2**64 - 1, None),
        (["int64", "float32", "int16"], 2**15 - 1, None),
    ],
)
def test_ids_of_dynamic_tables_are_looked_at_when_they_come(
    types, known, unknown
):
    """Any integer is an id there: small ones are known to be what they were."""

    @tf.function
    def look_up(ids):
        for dtype in types[1:]:
            ids = tf.reshape(tf.cast(ids, dtype), [-1])
        return rounded_ids.checked(ids, "items")

    small = look_up(tf.constant([1, known], types[0])).numpy().tolist()
    assert small == [1, np.array(known, types[0]).astype(types[-1])]
    if unknown is not None:
        with pytest.raises(
            tf.errors.InvalidArgumentError,
            match="dynamic table .*items.* on the way",
        ):
            look_up(tf.constant([1, unknown], types[0]))


@pytest.mark.parametrize(
    "take",
    {
        "strided slice": lambda ids: ids[:, 0],
        "slice": lambda ids: tf.slice(ids, [0, 0], [-1, 1]),
        "split": lambda ids: tf.split(ids, 2, axis=1)[0],
        "unstack": lambda ids: tf.unstack(ids, axis=1)[0],
        "concat": lambda ids: tf.concat([ids[:, 0], ids[:, 0]], 0),
        "stack": lambda ids: tf.stack([ids[:, 0], ids[:, 0]]),
    }.values(),
)
@pytest.mark.parametrize("short", ["int32", "float32"])
def test_of_columns_only_the_ones_that_are_looked_up_count(take, short):
    @tf.function
    def look_up(data):
        ids = tf.cast(take(tf.cast(data, short)), "int64")
        return rounded_ids.checked(ids, "items")

    # The other column is no id.
    look_up(tf.constant([[7, 2**40 * (short == "int32")]], tf.int64))
    with pytest.raises(tf.errors.InvalidArgumentError, match="on the way"):
        look_up(tf.constant([[2**40, 7]], tf.int64))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_buckets_of_a_dynamic_table_may_be_computed_in_float64(dtype):
    @tf.function
    def look_up(x):
        ids = tf.cast(tf.floor(tf.cast(x, dtype) * 1e5), "int64")
        return rounded_ids.checked(ids, "items")

    x = tf.constant([500.0])  # Bucket 50,000,000 is above 2^24.
    if dtype == "float64":
        assert look_up(x).numpy().tolist() == [50_000_000]
    else:
        with pytest.raises(
            tf.errors.InvalidArgumentError, match="computed in float64"
        ):
            look_up(x)


@pytest.mark.nightly
def test_model_that_rounds_ids_of_a_dynamic_table_is_refused():
    with tfdist.AsyncStrategy(table_bytes=1).scope():
        inputs = keras.Input((1,))
        layer = tfdist.layers.DynamicEmbedding(2, capacity=10)
        ids = keras.ops.cast(inputs, "int64")
        model = keras.Model(inputs, layer(ids))
    assert model.predict(np.array([[257.0]]), verbose=0).shape == (1, 1, 2)
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="dynamic table .*float32"
    ):
        model.predict(np.array([[2.0**24 + 1]]), verbose=0)


def test_ids_that_were_no_floats_are_not_refused_with_others():
    """Features of one table are looked up together."""

    @tf.function
    def look_up(hours, items):
        hours = tf.cast(hours, tf.int64)
        return rounded_ids.checked(tf.concat([hours, items], 0), "table")

    items = tf.constant([2**40], tf.int64)
    found = look_up(tf.constant([7.0]), items)
    assert found.numpy().tolist() == [7, 2**40]
    with pytest.raises(tf.errors.InvalidArgumentError, match="float32"):
        look_up(tf.constant([2.0**24]), items)


def test_ids_of_sparse_inputs_are_seen_through():
    with tfdist.AsyncStrategy(table_bytes=1).scope():
        inputs = keras.Input((3,), sparse=True, dtype="bfloat16")
        outputs = keras.layers.Embedding(300, 4)(inputs)
        model = keras.Model(inputs, outputs)
    ids = tf.sparse.from_dense([[257, 3, 0]])
    with pytest.raises(ValueError, match="embeddings' must be integers all"):
        tf.function(model).get_concrete_function(ids)


def test_model_without_an_input_in_mixed_precision_is_refused():
    with tfdist.AsyncStrategy(table_bytes=1).scope():
        layer = keras.layers.Embedding(300, 4, dtype="mixed_bfloat16")
        model = keras.Sequential([layer])
    ids = np.array([[257]], "int32")
    with pytest.raises(ValueError, match="embeddings' must be integers all"):
        model.predict(ids, verbose=0)
