"""A lane's variables as flat vectors."""

import numpy as np
import pytest
import tensorflow as tf

from tfdist.peers import flat


def test_each_variable_comes_back_from_the_vector_of_its_type():
    values = [
        np.arange(6.0, dtype="float32").reshape(2, 3),
        np.arange(4.0, dtype="float64"),
        np.float16(7.0),
        np.arange(5.0, dtype="float64"),
    ]
    variables = [tf.Variable(value) for value in values]
    groups = flat.groups(variables, "PeerToPeerStrategy")
    assert [g.dtype for g in groups] == [tf.float32, tf.float64]
    assert [g.places for g in groups] == [(0, 2), (1, 3)]
    assert [g.size for g in groups] == [7, 9]
    for group in groups:
        vector = group.vector([variables[k] for k in group.places])
        tensors = group.tensors(
            vector, [variables[k].dtype for k in group.places]
        )
        for place, tensor in zip(group.places, tensors, strict=True):
            assert tensor.dtype == variables[place].dtype
            np.testing.assert_array_equal(tensor, values[place])


def test_variables_of_whole_numbers_are_refused():
    variable = tf.Variable([1, 2], name="counts")
    with pytest.raises(NotImplementedError, match="counts.* of int32"):
        flat.groups([variable], "PeerToPeerStrategy")


def test_what_no_message_has_room_for_is_refused():
    half = tf.TensorSpec([2**28], tf.bfloat16)
    rest = tf.TensorSpec([2**28 - 2**18], tf.float32)
    one = tf.TensorSpec([1], tf.float32)
    double = tf.TensorSpec([9], tf.float64)
    flat.groups([half, rest, double], "PeerToPeerStrategy")
    with pytest.raises(NotImplementedError, match="3 variables with 5366"):
        flat.groups([half, rest, one, double], "PeerToPeerStrategy")
