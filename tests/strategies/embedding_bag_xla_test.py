"""XLA, which leaves assertions out, compiles no `EmbeddingBag`."""

import keras
import pytest
import tensorflow as tf

from tfdist import compiled_parts
from tfdist import private_tensorflow
from tfdist.layers import EmbeddingBag


def test_xla_which_would_not_check_ids_does_not_compile_a_model_with_bags():
    ids = keras.Input((2,), dtype="int64")
    bag = EmbeddingBag(keras.layers.Embedding(5, 3))
    model = keras.Model(ids, bag(ids))
    with pytest.warns(UserWarning, match="doesn't support"):
        model.compile("sgd", "mse", jit_compile=True)
    assert not model.jit_compile


def test_xla_compiles_no_bag_that_was_made_after_compile(monkeypatch):
    bag = EmbeddingBag(keras.layers.Embedding(5, 3))
    bag.build()
    ids = tf.constant([[1, -1]])
    with pytest.raises(ValueError, match="'embedding_bag.*jit_compile=False"):
        tf.function(bag, jit_compile=True)(ids)

    # A strategy has parts of a step compiled.
    @tf.function
    def step(ids):
        return compiled_parts.call(lambda: bag(ids) + 1.0, (), {})

    monkeypatch.setattr(compiled_parts._compiled, "is_on", True)
    operations = step.get_concrete_function(ids).graph.get_operations()
    compiled = filter(private_tensorflow.is_marked_for_xla, operations)
    assert {each.type for each in compiled} <= {"AddV2", "Const"}
