"""Tables on servers train as the same layers do in plain Keras."""

import contextlib
import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import nightly
from tests.strategies import twins
import tfdist
from tfdist.callbacks import ClusterCheckpoint

ROWS, WIDTH = 1100, 4
TABLE_BYTES = 4 * ROWS * WIDTH

OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "adagrad": lambda: keras.optimizers.Adagrad(0.1),
    "adam": lambda: keras.optimizers.Adam(0.01, amsgrad=True),
    "rmsprop": lambda: keras.optimizers.RMSprop(
        0.01, momentum=0.5, centered=True
    ),
    "ftrl": lambda: keras.optimizers.Ftrl(0.05),
    "nadam": lambda: keras.optimizers.Nadam(0.01),
}


def summed(optimizer):
    """The optimizer with the gradients of a row summed before its rule.

    Keras's rules get one gradient for each time that an id comes.
    """
    kind = type(optimizer)

    class Summed(kind):
        def apply(self, grads, trainable_variables=None):
            dense = [
                tf.convert_to_tensor(g)
                if isinstance(g, tf.IndexedSlices)
                else g
                for g in grads
            ]
            return kind.apply(self, dense, trainable_variables)

    return Summed.from_config(optimizer.get_config())


def examples():
    """Ids (24, 5), some of them several times, and targets (24, 1)."""
    random = np.random.default_rng(0)
    x = random.integers(0, ROWS, (24, 5))
    x[:, 1] = x[:, 0]
    return x.astype("int32"), random.normal(size=(24, 1)).astype("float32")


def build(scope, make_optimizer, *, table=None, **compiled):
    """A compiled model with one table that is looked up twice."""
    keras.utils.set_random_seed(5)
    with scope:
        table = table or keras.layers.Embedding(
            ROWS, WIDTH, embeddings_initializer="ones", name="items"
        )
        inputs = keras.Input((5,), dtype="int32")
        rows = keras.layers.Flatten()(table(inputs))
        more = keras.layers.GlobalAveragePooling1D()(table(inputs[:, 1:]))
        hidden = keras.layers.Dense(3, activation="tanh")(
            keras.layers.Concatenate()([rows, more])
        )
        model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
        model.compile(make_optimizer(), "mse", **compiled)
    return model, table


def train(scope, make_optimizer, **arguments):
    """Trains; returns losses, weights of the head, and the table's rows."""
    model, table = build(scope, make_optimizer, **arguments)
    history = model.fit(
        *examples(), batch_size=8, epochs=2, shuffle=False, verbose=0
    )
    rows = keras.ops.take(table.embeddings, np.arange(ROWS), axis=0)
    head = model.layers[-1].get_weights()
    return history.history["loss"], head, np.asarray(rows)


@functools.cache
def plain(optimizer):
    """What comes of plain Keras."""
    return train(
        contextlib.nullcontext(), lambda: summed(OPTIMIZERS[optimizer]())
    )


def strategy_with_tables(rule="lazy"):
    """A strategy in one process, with tables."""
    return tfdist.AsyncStrategy(table_bytes=TABLE_BYTES, table_rule=rule)


# Rules of a batch's rows alone: `table_rules_test`.
@pytest.mark.parametrize(
    ("optimizer", "rule"),
    nightly.also(
        [("adam", "dense")],
        [
            ("sgd", "lazy"),
            ("adagrad", "lazy"),
            # Other slots, and a number beside them.
            ("ftrl", "dense"),
            ("nadam", "dense"),
            ("rmsprop", "dense"),
        ],
    ),
)
def test_table_trains_as_keras_with_gradients_summed_by_id(optimizer, rule):
    found = train(strategy_with_tables(rule).scope(), OPTIMIZERS[optimizer])
    twins.assert_same(found, plain(optimizer), tolerance=1e-6)


@pytest.mark.nightly
@pytest.mark.parametrize("way", ["run_eagerly", "jit_compile"])
def test_steps_of_every_kind_are_the_same(way):
    make = OPTIMIZERS["adam"]
    plainly = {"run_eagerly": False, "jit_compile": False}
    found, expected = (
        train(strategy_with_tables().scope(), make, **settings)
        for settings in ({**plainly, way: True}, plainly)
    )
    twins.assert_same(found, expected, tolerance=1e-5)


@pytest.mark.nightly
def test_compiled_evaluation_and_prediction():
    model, _ = build(
        strategy_with_tables().scope(), OPTIMIZERS["sgd"], jit_compile=True
    )
    x, y = examples()
    found = model.predict(x, verbose=0)
    np.testing.assert_allclose(found, model(x), rtol=1e-5, atol=1e-6)
    expected = np.mean((found - y) ** 2)
    np.testing.assert_allclose(
        model.evaluate(x, y, verbose=0), expected, rtol=1e-5
    )


@pytest.fixture(scope="module")
def trained():
    """A strategy, a model that was trained under it, and its table."""
    strategy = strategy_with_tables()
    model, table = build(strategy.scope(), OPTIMIZERS["adagrad"])
    model.fit(*examples(), verbose=0)
    return strategy, model, table


def test_worker_holds_no_row(trained):
    strategy, model, table = trained
    kept = table.embeddings.value.local_handle
    size = tf.raw_ops.ReadVariableOp(resource=kept, dtype=tf.float32).shape
    assert size == [0, WIDTH]
    assert table.embeddings.shape == (ROWS, WIDTH)
    # The table and its accumulators, of 2 times 1,024 rows.
    assert strategy.bytes_per_server[0] > 2 * 4 * 2048 * WIDTH


@pytest.mark.nightly
def test_model_can_be_looked_at(trained, capsys):
    _, model, _ = trained
    x, y = examples()
    model.summary()
    assert f"{ROWS * WIDTH:,}" in capsys.readouterr().out
    expected = np.mean((model.predict(x, verbose=0) - y) ** 2)
    np.testing.assert_allclose(
        model.evaluate(x, y, verbose=0), expected, rtol=1e-5
    )
    np.testing.assert_allclose(
        model(x), model.predict(x, verbose=0), rtol=1e-5, atol=1e-6
    )


def test_ids_may_count_from_the_end_as_in_keras(trained):
    _, _, table = trained
    np.testing.assert_array_equal(
        table(np.array([[-1, -ROWS]])), table(np.array([[ROWS - 1, 0]]))
    )


@pytest.mark.parametrize("id_", [ROWS, -ROWS - 1])
def test_ids_out_of_range_name_the_table(trained, id_):
    _, model, _ = trained
    with pytest.raises(
        tf.errors.InvalidArgumentError,
        match=r"items/embeddings.*less than 1100",
    ):
        model.predict(np.full((1, 5), id_), verbose=0)


USES = {
    "numpy": lambda model, table, _: table.embeddings.numpy(),
    "get_weights": lambda model, *_: model.get_weights(),
    "set_weights": lambda model, table, _: table.set_weights(
        [np.zeros((ROWS, WIDTH))]
    ),
    "export": lambda model, _, path: model.export(path, verbose=False),
    "checkpoint": lambda model, _, path: tf.train.Checkpoint(model).save(
        path / "checkpoint"
    ),
    "matrix": lambda model, table, _: keras.ops.matmul(
        table.embeddings, np.ones((WIDTH, 1), "float32")
    ),
    "product": lambda model, table, _: table.embeddings * 2,
    "sum": lambda model, table, _: tf.reduce_sum(table.embeddings.value),
    "shape": lambda model, table, _: tf.shape(table.embeddings.value),
    "gather_nd": lambda model, table, _: tf.gather_nd(
        table.embeddings.value, [[1]]
    ),
    "convert": lambda model, table, _: (
        tf.convert_to_tensor(table.embeddings) + 1.0
    ),
}


@pytest.mark.parametrize("use", USES)
def test_use_of_a_whole_table_is_refused_by_name(trained, tmp_path, use):
    _, model, table = trained
    with pytest.raises(
        ValueError, match=r"items/embeddings' is a table on parameter servers"
    ):
        USES[use](model, table, tmp_path)


REFUSED = {
    "adafactor": (lambda: keras.optimizers.Adafactor(0.1), r"Adafactor"),
    "weight_decay": (
        lambda: keras.optimizers.AdamW(0.1, weight_decay=0.1),
        r"weight_decay",
    ),
    "averages": (
        lambda: keras.optimizers.SGD(0.1, use_ema=True),
        r"use_ema",
    ),
    "accumulation": (
        lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=2),
        r"gradient_accumulation_steps",
    ),
    "global_clipnorm": (
        lambda: keras.optimizers.SGD(0.1, global_clipnorm=1.0),
        r"global_clipnorm",
    ),
}


@pytest.mark.parametrize(
    "name",
    nightly.also(
        ["averages"], [name for name in REFUSED if name != "averages"]
    ),
)
def test_optimizers_of_whole_tables_are_refused(name):
    make, message = REFUSED[name]
    model, _ = build(strategy_with_tables().scope(), make)
    with pytest.raises(ValueError, match=rf"items/embeddings.*{message}"):
        model.fit(*examples(), verbose=0)


@pytest.mark.nightly
def test_weight_decay_that_leaves_tables_out():
    def make():
        made = keras.optimizers.SGD(0.1, weight_decay=0.1)
        made.exclude_from_weight_decay(var_names=["embeddings"])
        return made

    found, expected = (
        train(scope, make)
        for scope in (strategy_with_tables().scope(), contextlib.nullcontext())
    )
    twins.assert_same(found, expected, tolerance=1e-6)


class Looked(keras.Layer):
    """Looks rows up in another way than the layer itself."""

    def __init__(self, way):
        super().__init__()
        self.table = keras.layers.Embedding(ROWS, WIDTH, name="items")
        self._way = way

    def build(self, shape):
        """Makes the table."""
        self.table.build()

    def call(self, ids):
        """Returns `(batch, 5, WIDTH)`."""
        return self._way(self.table, ids)

    def compute_output_shape(self, shape):
        """Of the rows."""
        return (*shape, WIDTH)


WAYS = {
    "remat": (
        lambda table, ids: keras.remat(lambda ids: table(ids))(ids),
        "keras.remat",
    ),
    "loop": (lambda table, ids: keras.ops.map(table, ids), "in a loop"),
}


@pytest.mark.parametrize(
    "way", nightly.also(["remat"], [way for way in WAYS if way != "remat"])
)
def test_look_ups_without_a_gradient_by_rows_are_refused(way):
    looked, message = WAYS[way]
    with strategy_with_tables().scope():
        model = keras.Sequential(
            [
                keras.Input((5,), dtype="int32"),
                Looked(looked),
                keras.layers.GlobalAveragePooling1D(),
            ]
        )
        model.compile("sgd", "mse")
    with pytest.raises(ValueError, match=rf"items/embeddings.*{message}"):
        model.fit(*examples(), verbose=0)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "setting", ["embeddings_regularizer", "embeddings_constraint"]
)
def test_layers_that_read_all_rows_are_refused(setting):
    kind = {
        "embeddings_regularizer": keras.regularizers.L2(0.1),
        "embeddings_constraint": keras.constraints.NonNeg(),
    }
    strategy = strategy_with_tables()
    with strategy.scope():
        table = keras.layers.Embedding(
            ROWS, WIDTH, name="items", **{setting: kind[setting]}
        )
    model, _ = build(strategy.scope(), OPTIMIZERS["sgd"], table=table)
    with pytest.raises(ValueError, match=r"items/embeddings.*a regularizer"):
        model.fit(*examples(), verbose=0)


class Within(keras.Model):
    """A model that makes its table when it is first called."""

    def __init__(self):
        super().__init__()
        self.table = keras.layers.Embedding(ROWS, WIDTH)
        self.head = keras.layers.Dense(1)

    def call(self, ids):
        """Returns `(batch, 1)`."""
        return self.head(keras.ops.mean(self.table(ids), axis=1))


def test_gradients_of_half_precision_are_added_up_in_single():
    """256 + 1 is 256 in bfloat16."""
    with strategy_with_tables().scope():
        layer = keras.layers.Embedding(2 * ROWS, WIDTH, dtype="bfloat16")
        layer.build([None])
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(layer(np.full([1000], 7)))
    gradient = tape.gradient(total, layer.embeddings.value)
    assert gradient.values.dtype == tf.bfloat16
    assert gradient.indices.numpy().tolist() == [7]
    values = tf.cast(gradient.values, tf.float32).numpy()
    np.testing.assert_array_equal(values, np.full([1, WIDTH], 1000.0))


@pytest.mark.nightly
def test_table_may_be_made_in_the_first_step():
    strategy = strategy_with_tables()
    with strategy.scope():
        model = Within()
        model.compile("adam", "mse")
    first = model.evaluate(*examples(), verbose=0)
    model.fit(*examples(), verbose=0, epochs=5)
    assert model.evaluate(*examples(), verbose=0) < first
    with pytest.raises(ValueError, match=r"is a table"):
        model.table.get_weights()


@pytest.mark.nightly
def test_saved_table_goes_on_with_its_slots(tmp_path):
    """Two epochs of all rows, stopped in between, are two epochs."""
    ids = np.random.default_rng(1).permutation(ROWS).reshape(-1, 5)
    targets = np.random.default_rng(2).normal(size=(len(ids), 1))

    def fit(epochs, directory, resumed=0):
        strategy = strategy_with_tables()
        model, table = build(strategy.scope(), OPTIMIZERS["adam"])
        checkpoint = ClusterCheckpoint(tmp_path / directory)
        model.fit(
            ids,
            targets,
            batch_size=44,
            epochs=epochs,
            shuffle=False,
            verbose=0,
            callbacks=[checkpoint],
        )
        assert checkpoint.resumed_epoch == resumed
        return np.asarray(table(np.arange(ROWS)))

    stopped = fit(1, "stopped")
    assert np.all(stopped != 1)
    np.testing.assert_array_equal(fit(2, "stopped", 1), fit(2, "whole"))


METHODS = {
    "BackupWorkersStrategy": {},
    "SoftSyncStrategy": {"s": 1},
    "BoundedStalenessStrategy": {},
    "DCASGDStrategy": {},
    "ParameterAveragingStrategy": {"period": 4},
}


@pytest.mark.parametrize("name", METHODS)
def test_other_methods_refuse_tables(name):
    with pytest.raises(
        ValueError, match=r"Argument `table_bytes` must be None"
    ):
        getattr(tfdist, name)(table_bytes=1, **METHODS[name])


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "64"])
def test_table_bytes_are_a_number_of_bytes(value):
    with pytest.raises(ValueError, match=r"Received: table_bytes="):
        tfdist.AsyncStrategy(table_bytes=value)


def test_table_rule_is_one_of_two():
    with pytest.raises(ValueError, match=r"lazy, dense. Received: .*'sparse'"):
        tfdist.AsyncStrategy(table_bytes=1, table_rule="sparse")
