"""`tfdist.layers.DynamicEmbedding` as a layer: what it takes and refuses."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.strategies.dynamic_models import WIDTH
from tests.strategies.dynamic_models import Within
from tests.strategies.dynamic_models import dynamic
from tests.strategies.dynamic_models import examples
from tests.strategies.dynamic_models import fit
from tests.strategies.dynamic_models import ids_of
from tests.strategies.dynamic_models import strategy_with_tables
import tfdist
from tfdist.layers import DynamicEmbedding


def test_layer_needs_a_strategy_with_tables():
    message = r"DynamicEmbedding must be built in the scope .*table_bytes"
    with pytest.raises(ValueError, match=message):
        DynamicEmbedding(WIDTH, 100).build()
    for strategy in (tfdist.AsyncStrategy(), tfdist.DownpourStrategy()):
        with strategy.scope(), pytest.raises(ValueError, match=message):
            DynamicEmbedding(WIDTH, 100).build()
    for scope in (contextlib.nullcontext(), tfdist.AsyncStrategy().scope()):
        with scope:
            model = Within()
            model.compile("sgd", "mse")
        with pytest.raises(ValueError, match=message):
            fit(model, ids_of(examples()[0]))
    strategy = tfdist.AsyncStrategy(table_bytes=1, table_rule="dense")
    with strategy.scope(), pytest.raises(ValueError, match="`table_rule`"):
        DynamicEmbedding(WIDTH, 100).build()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("output_dim", 0),
        ("capacity", 1.5),
        ("initializer", "normal"),
        ("initializer", float("nan")),
        ("admit_after", 0),
        ("evict_after", -1),
        ("seed", -1),
    ],
)
def test_arguments_are_refused_by_name(name, value):
    arguments = {"output_dim": 4, "capacity": 10, name: value}
    with pytest.raises(ValueError, match=rf"`{name}`.*Received: {name}="):
        DynamicEmbedding(**arguments)


def test_ids_are_integers_or_strings():
    strategy = strategy_with_tables()
    _, table = dynamic(strategy)
    with pytest.raises(ValueError, match=r"integers or strings.*'float"):
        table(np.array([0.5]))
    with pytest.raises(ValueError, match="dense or ragged .*SparseTensor"):
        table(tf.ragged.constant([[1], [2, 3]]).to_sparse())
    with strategy.scope():
        model = keras.Sequential([DynamicEmbedding(WIDTH, 100)])
        model.compile("sgd", "mse")
    # Keras makes floats of ids, which have not all of their digits.
    with pytest.raises(ValueError, match=r"dtype='int64'.*'float32'"):
        fit(model, ids_of(examples()[0]))
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="items/embeddings.*must be not"
    ):
        table(np.array([-(2**63)]))


def test_id_0_and_the_empty_string_may_be_padding():
    with strategy_with_tables().scope():
        table = DynamicEmbedding(WIDTH, 100, mask_zero=True)
        pool = keras.layers.GlobalAveragePooling1D()
        bag = tfdist.layers.EmbeddingBag(table, "mean")
        words = keras.Input((None,), dtype="string")
        model = keras.Model(words, [pool(table(words)), bag(words)])
    padded = tf.constant([["a", "b", ""], ["c", "", ""]])
    rows = table(tf.constant(["a", "b", "c"])).numpy()
    expected = [(rows[0] + rows[1]) / 2, rows[2]]
    for found in model(padded):
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    ids = np.array([[5, 0, -7]])
    assert table.compute_mask(ids).numpy().tolist() == [[True, False, True]]
    again = DynamicEmbedding.from_config(table.get_config())
    assert again.mask_zero and again.supports_masking
    assert DynamicEmbedding(WIDTH, 100).compute_mask(ids) is None


def test_loss_scale_looks_at_rows_with_gradients_alone():
    # Keras would make a tensor of all rows, of which ids are no numbers.
    strategy = strategy_with_tables()
    with strategy.scope():
        table = DynamicEmbedding(WIDTH, 100)
        table.build()
        optimizer = keras.optimizers.LossScaleOptimizer(
            keras.optimizers.SGD(0.1)
        )
        optimizer.build([table.embeddings])
    for values, is_finite in ([[1.0, 2.0], True], [[1.0, np.inf], False]):
        rows = tf.constant(values)[:, None] * tf.ones([2, WIDTH])
        gradient = tf.IndexedSlices(rows, ids_of([3, 4]), [2**62, WIDTH])
        assert bool(optimizer.check_finite([gradient])) == is_finite


def test_layer_is_made_again_from_its_config():
    layer = DynamicEmbedding(
        3, 10, initializer=0.1, admit_after=2, evict_after=9, seed=4
    )
    again = DynamicEmbedding.from_config(layer.get_config())
    assert again.get_config() == layer.get_config()
    # Keras knows the class, as `model_from_json` needs.
    saved = keras.saving.serialize_keras_object(layer)
    assert type(keras.saving.deserialize_keras_object(saved)) is type(layer)
