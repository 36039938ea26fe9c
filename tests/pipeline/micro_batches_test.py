"""A batch is cut into micro-batches that together are the batch."""

from hypothesis import given
from hypothesis import strategies as st
import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import laws
from tfdist.pipeline import micro_batches
from tfdist.pipeline.micro_batches import MicroBatches

sizes = st.integers(1, 30)
counts = st.integers(1, 12)


def cut(batch, size, count):
    """(parts, parts that count, sizes, shares) of a structure."""
    made = MicroBatches(size, count)
    units = range(count)
    return (
        [made.part(batch, unit) for unit in units],
        [made.counted(made.part(batch, unit), unit) for unit in units],
        [tf.convert_to_tensor(size) for size in made.sizes],
        [made.share(unit, "float64") for unit in units],
    )


@pytest.mark.nightly
@laws.settings(max_examples=60)
@given(size=sizes, count=counts)
def test_micro_batches_together_are_the_batch(size, count):
    batch = {"x": tf.range(size), "y": [tf.range(2 * size)[:size] + 7, None]}
    parts, counted, sizes, shares = cut(batch, size, count)
    for key in (lambda b: b["x"], lambda b: b["y"][0]):
        joined = np.concatenate([key(part) for part in counted])
        np.testing.assert_array_equal(joined, key(batch))
    assert all(part["y"][1] is None for part in parts)
    lengths = [len(part["x"]) for part in counted]
    assert lengths == sizes == sorted(lengths, reverse=True)
    assert max(lengths) - min(lengths) <= 1
    # No layer is ever given nothing.
    assert [len(part["x"]) for part in parts] == [max(n, 1) for n in lengths]
    np.testing.assert_allclose(shares, np.array(lengths) / size)


def test_a_size_that_is_known_late_is_cut_alike():
    for count in (1, 3, 5):

        @tf.function(input_signature=[tf.TensorSpec((None,), tf.int32)])
        def late(batch, count=count):
            return cut(batch, tf.shape(batch)[0], count)

        for size in (1, 2, 3, 7, 10):
            found = late(tf.range(size))
            expected = cut(tf.range(size), size, count)
            tf.nest.map_structure(
                np.testing.assert_array_equal, found, expected
            )


def test_batch_size_is_that_of_all():
    x = tf.zeros((3, 2))
    assert micro_batches.batch_size(({"a": x}, [x[:, 0], None], None)) == 3
    for other, message in [
        (tf.zeros((4, 2)), r"same number of examples. Received: \[3, 4\]"),
        (tf.constant(1.0), "batch dimension"),
        (tf.ragged.constant([[1], [], [2]]), "dense tensors"),
        (tf.sparse.from_dense(x), "dense tensors"),
    ]:
        with pytest.raises(ValueError, match=message):
            micro_batches.batch_size((x, other))


def test_batch_size_that_is_known_late_is_checked_late():
    @tf.function(input_signature=[tf.TensorSpec((None,), tf.int32)] * 2)
    def size(x, y):
        return micro_batches.batch_size((x, y))

    assert size(tf.range(3), tf.range(3)) == 3
    with pytest.raises(tf.errors.InvalidArgumentError, match="same number"):
        size(tf.range(3), tf.range(4))


def test_inputs_that_cannot_be_cut_are_refused():
    a, b = keras.Input((2,), name="a"), keras.Input((2,), optional=True)
    model = keras.Model([a, b], keras.layers.Dense(2)(a))
    x = tf.zeros((3, 2))
    assert len(micro_batches.inputs_of(model, [x, x])) == 2
    with pytest.raises(ValueError, match="cannot be None"):
        micro_batches.inputs_of(model, [x, None])
    with pytest.raises(ValueError, match="dense tensors"):
        micro_batches.inputs_of(model, [x, tf.sparse.from_dense(x)])
