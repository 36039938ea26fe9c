"""`tfdist.layers.EmbeddingBag` against formulas, and with tables."""

import contextlib
import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.strategies import tables_test
from tests.strategies import twins
import tfdist
from tfdist.layers import DynamicEmbedding
from tfdist.layers import EmbeddingBag

ROWS, WIDTH = 50, 3
COMBINERS = ("mean", "sum", "sqrtn")
IDS = [[3, 1, 4, 1], [], [49], [2, 2, 2, 0], [7, 49, 0, 3]]
WEIGHTS = [[0.5, 2.0, -1.0, 1.0], [], [-3.0], [0.0] * 4, [1.0, 2.0, 3.0, 4.0]]


def combine(rows, ids, weights, combiner):
    """A vector for each bag, by the formulas, in NumPy."""
    bags = []
    for i, w in zip(ids, weights, strict=True):
        w = np.asarray(w, float)
        divisor = {
            "mean": w.sum(),
            "sum": 1.0,
            "sqrtn": np.sqrt((w * w).sum()),
        }[combiner]
        total = w @ rows[np.asarray(i, int)]
        bags.append(total / divisor if divisor else 0 * total)
    return np.array(bags)


def of_kind(kind, values, dtype):
    """Nested lists as a tensor; a dense one has no rows of other lengths."""
    if kind == "dense":
        return tf.constant([v for v in values if len(v) == 4], dtype)
    ragged = tf.ragged.constant(values, dtype)
    if kind == "ragged":
        return ragged
    # Zeros among the values stay.
    places = [[i, j] for i, row in enumerate(values) for j in range(len(row))]
    return tf.SparseTensor(places, ragged.values, [len(values), 4])


def embedding(**settings):
    """An embedding of known rows, and the rows."""
    table = keras.layers.Embedding(ROWS, WIDTH, **settings)
    table.build()
    rows = np.random.default_rng(0).normal(size=(ROWS, WIDTH))
    table.set_weights([rows])
    return table, rows.astype("float32")


@pytest.mark.parametrize("combiner", COMBINERS)
@pytest.mark.parametrize("kind", ["dense", "ragged", "sparse"])
def test_vectors_are_those_of_the_formula(kind, combiner):
    table, rows = embedding()
    bag = EmbeddingBag(table, combiner)
    ids = of_kind(kind, IDS, "int64")
    weights = of_kind(kind, WEIGHTS, "float32")
    chosen = [k for k, i in enumerate(IDS) if kind != "dense" or len(i) == 4]
    ones = [[1.0] * len(i) for i in IDS]
    for given, used in ((None, ones), (weights, WEIGHTS)):
        expected = combine(rows, IDS, used, combiner)[chosen]
        np.testing.assert_allclose(
            bag(ids, given), expected, rtol=1e-5, atol=1e-6
        )


def test_padding_is_left_out():
    table, rows = embedding(mask_zero=True)
    ids = np.array([[3, 1, 0], [0, 0, 0]])
    weights = np.array([[2.0, 1.0, 9.0], [1.0, 1.0, 1.0]])
    for combiner in COMBINERS:
        bag = EmbeddingBag(table, combiner)
        for given, used in ((None, [1, 1]), (weights, [2, 1])):
            expected = combine(rows, [[3, 1], []], [used, []], combiner)
            np.testing.assert_allclose(bag(ids, given), expected, rtol=1e-5)


def test_other_shapes():
    table, rows = embedding()
    bag = EmbeddingBag(table, "sqrtn")
    np.testing.assert_allclose(bag(np.array([4, 2])), rows[[4, 2]], rtol=1e-6)
    empty = tf.ragged.constant([[], []], tf.int32)
    np.testing.assert_array_equal(bag(empty), np.zeros((2, WIDTH)))
    assert bag(np.zeros((3, 0), int)).shape == (3, WIDTH)
    assert bag(np.zeros((0, 3), int)).shape == (0, WIDTH)


def test_narrow_types_are_summed_in_float32():
    table, _ = embedding(dtype="mixed_bfloat16")
    table.set_weights([np.ones((ROWS, WIDTH))])
    bag = EmbeddingBag(table, "sum")
    # bfloat16 has no 257 between 256 and 258: a sum of ones ends there.
    assert np.all(bag(np.ones((1, 1000), int)) == 1000)


@pytest.mark.parametrize("combiner", COMBINERS)
def test_gradients_of_weights_and_rows(combiner):
    """Central differences of the formula."""
    table, rows = embedding()
    ids, weights = IDS[:1] + IDS[3:], WEIGHTS[:1] + WEIGHTS[3:]
    if combiner == "sqrtn":
        weights[1] = [0.5, 0.5, 1.0, 1.0]
    factors = np.random.default_rng(1).normal(size=(3, WIDTH))
    bag = EmbeddingBag(table, combiner)
    given = tf.ragged.constant(weights)
    with tf.GradientTape() as tape:
        tape.watch(given.values)
        vectors = bag(tf.ragged.constant(ids), given)
        loss = tf.reduce_sum(vectors * factors.astype("float32"))
    of_rows, of_weights = tape.gradient(
        loss, [table.embeddings.value, given.values]
    )

    def loss_of(rows, flat):
        weights = np.split(flat, 3)
        return (combine(rows, ids, weights, combiner) * factors).sum()

    flat = np.concatenate(weights)
    for k in range(len(flat)):
        if combiner == "mean" and not any(weights[k // 4]):
            continue
        step = 1e-4 * (np.arange(len(flat)) == k)
        expected = (
            loss_of(rows, flat + step) - loss_of(rows, flat - step)
        ) / 2e-4
        np.testing.assert_allclose(
            of_weights[k], expected, rtol=1e-3, atol=1e-4
        )
    dense = tf.convert_to_tensor(of_rows)
    for i in np.unique(np.concatenate(ids)):
        step = np.zeros_like(rows, float)
        step[i, 1] = 1e-4
        expected = (
            loss_of(rows + step, flat) - loss_of(rows - step, flat)
        ) / 2e-4
        np.testing.assert_allclose(dense[i, 1], expected, rtol=1e-3, atol=1e-4)
    assert np.all(np.isfinite(dense)) and np.all(np.isfinite(of_weights))


class Reduced(keras.layers.Embedding):
    """Does what `EmbedReduce` of keras_rs does with ragged and sparse ids."""

    def call(self, inputs):
        """Returns the means of rows, `(batch, WIDTH)`; of one, itself."""
        rows = super().call(inputs)
        if len(inputs.shape) == 1:
            return rows
        if isinstance(inputs, tf.SparseTensor):
            ones = tf.SparseTensor(
                inputs.indices,
                tf.ones_like(inputs.values, rows.dtype),
                inputs.dense_shape,
            )
        else:
            ones = keras.ops.ones_like(inputs, dtype=rows.dtype)
        weights = keras.ops.convert_to_tensor(ones, sparse=False)[..., None]
        return keras.ops.divide_no_nan(
            keras.ops.sum(keras.ops.multiply(rows, weights), axis=-2),
            keras.ops.sum(weights, axis=-2),
        )

    def compute_output_spec(self, inputs):
        """Returns shape and type of the output."""
        return keras.KerasTensor((inputs.shape[0], self.output_dim))


EXAMPLES = 20


def features():
    """Ids (some several times, some rows empty), weights, and targets."""
    random = np.random.default_rng(3)
    lengths = random.integers(0, 5, EXAMPLES)

    def ragged(values):
        return tf.RaggedTensor.from_row_lengths(values, lengths)

    total = lengths.sum()
    seen = ragged(random.integers(0, ROWS, total).astype("int32"))
    bought = ragged(random.integers(0, ROWS, total).astype("int32"))
    x = {
        "seen": seen,
        "weights": ragged(random.normal(size=total).astype("float32")),
        "item": tf.constant(random.integers(0, ROWS, EXAMPLES), tf.int32),
        "bought": bought,
        "liked": bought.to_sparse(),
    }
    return x, random.normal(size=(EXAMPLES, 1)).astype("float32")


def build(scope, make_optimizer, table_of):
    """A compiled model that looks one table up in four ways."""
    keras.utils.set_random_seed(5)
    with scope:
        x = {
            "seen": keras.Input(
                (None,), dtype="int32", ragged=True, name="seen"
            ),
            "weights": keras.Input((None,), ragged=True, name="weights"),
            "item": keras.Input((), dtype="int32", name="item"),
            "bought": keras.Input(
                (None,), dtype="int32", ragged=True, name="bought"
            ),
            "liked": keras.Input(
                (4,), dtype="int32", sparse=True, name="liked"
            ),
        }
        table = table_of()
        combiners = {"seen": "sqrtn", "item": "sum"}
        more = {name: x[name] for name in ("bought", "liked")}
        if not isinstance(table, Reduced):
            combiners |= dict.fromkeys(more, "mean")
        bag = EmbeddingBag(table, combiners)
        vectors = bag(
            {name: x[name] for name in combiners}, {"seen": x["weights"]}
        )
        if isinstance(table, Reduced):
            vectors |= {name: table(each) for name, each in more.items()}
        hidden = keras.layers.Concatenate()(list(vectors.values()))
        model = keras.Model(x, keras.layers.Dense(1)(hidden))
        model.compile(make_optimizer(), "mse")
    return model, table


def train(scope, make_optimizer, table_of):
    """Trains twice; returns losses, weights of the head, rows; the model."""
    model, table = build(scope, make_optimizer, table_of)
    losses = []
    for _ in range(2):
        data = tf.data.Dataset.from_tensor_slices(features()).batch(8)
        losses += model.fit(data, epochs=2, verbose=0).history["loss"]
    rows = np.asarray(table(np.arange(ROWS)))
    return (losses, model.layers[-1].get_weights(), rows), model


def tables(rule="lazy"):
    """The scope of a strategy that makes tables of all embeddings."""
    return tfdist.AsyncStrategy(table_bytes=1, table_rule=rule).scope()


TABLES = {
    "known": lambda: keras.layers.Embedding(ROWS, WIDTH, "ones"),
    "dynamic": lambda: DynamicEmbedding(WIDTH, ROWS, initializer=1.0),
    "reduced": lambda: Reduced(ROWS, WIDTH, "ones"),
}


@functools.cache
def plain(optimizer):
    """What comes of an embedding in plain Keras."""
    make = tables_test.OPTIMIZERS[optimizer]
    return train(
        contextlib.nullcontext(),
        lambda: tables_test.summed(make()),
        TABLES["known"],
    )[0]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("table", "optimizer", "rule"),
    [
        ("known", "adagrad", "lazy"),
        ("reduced", "adagrad", "lazy"),
        ("dynamic", "adagrad", "lazy"),
        ("known", "adam", "dense"),
        ("reduced", "adam", "dense"),
    ],
)
def test_table_of_several_features_trains_as_in_keras(
    tmp_path, table, optimizer, rule
):
    make = tables_test.OPTIMIZERS[optimizer]
    found, model = train(tables(rule), make, TABLES[table])
    twins.assert_same(found, plain(optimizer), tolerance=1e-6)
    if table == "known":
        model.save(tmp_path / "model.keras")
        loaded = keras.saving.load_model(tmp_path / "model.keras")
        x, _ = features()
        np.testing.assert_allclose(model(x), loaded(x), rtol=1e-6)


def test_bags_of_strings():
    with tables():
        table = DynamicEmbedding(WIDTH, ROWS)
        bag = EmbeddingBag(table, "sum")
        bag.build()
    words = tf.ragged.constant([["red", "shoe"], [], ["shoe"]])
    found = bag({"words": words, "sparse": words.to_sparse()})
    red, shoe = np.asarray(table(tf.constant(["red", "shoe"])))
    for vectors in found.values():
        np.testing.assert_allclose(
            vectors, [red + shoe, 0 * red, shoe], rtol=1e-6
        )
    with pytest.raises(ValueError, match=r"`inputs`.*alone.*'string'"):
        bag({"words": words, "numbers": tf.ragged.constant([[1], [], []])})
    assert table(words).shape == [3, None, WIDTH]
    np.testing.assert_array_equal(table(words).values, [red, shoe, shoe])


def test_features_of_a_dict_are_looked_up_together():
    with tables():
        bag = EmbeddingBag(keras.layers.Embedding(ROWS, WIDTH))
        bag.build()

    @tf.function
    def look_up(seen, item):
        return bag({"seen": seen, "liked": seen.to_sparse(), "item": item})

    x, _ = features()
    graph = look_up.get_concrete_function(x["seen"], x["item"]).graph
    types = [operation.type for operation in graph.get_operations()]
    assert types.count("ResourceGather") == types.count("Unique") == 1


RAGGED = tf.ragged.constant([[1, 2], [3]])
REFUSED = {
    "floats": (np.ones((2, 2)), None, "`inputs`.*integers.*Input.*'float32'"),
    "strings": (tf.constant([["a"]]), None, "`inputs`.*integers.*'string'"),
    "rank": (np.ones((2, 2, 2), int), None, r"`inputs`.*\(batch, n\)"),
    "shape": (np.ones((2, 2), int), np.ones((2, 3)), "`weights`.*dense.*2, 3"),
    "kind": (RAGGED, np.ones((2, 2)), "`weights`.*ragged.*'dense"),
    "integers": (RAGGED, RAGGED, "`weights`.*floats.*int32'"),
    "names": ({"a": RAGGED}, {"b": RAGGED}, r"`weights`.*\['a'\].*\['b'\]"),
    "negative": (
        np.array([[1, -1]]),
        None,
        "(?s)'inputs' of .* at least 0.*-1",
    ),
    "places": (
        RAGGED,
        tf.ragged.constant([[1.0], [2.0, 3.0]]),
        "Weights of 'inputs' are not in the same places",
    ),
    "sparse places": (
        RAGGED.to_sparse(),
        tf.sparse.from_dense([[1.0, 0.0], [0.0, 2.0]]),
        "Weights of 'inputs' are not in the same places",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_inputs_are_refused_by_name(case):
    inputs, weights, message = REFUSED[case]
    bag = EmbeddingBag(keras.layers.Embedding(5, WIDTH))
    with pytest.raises(
        (ValueError, tf.errors.InvalidArgumentError), match=message
    ):
        bag(inputs, weights)


def test_arguments_are_refused_by_name():
    table = keras.layers.Embedding(5, WIDTH)
    for combiner in ("max", {"a": "mean", "b": "max"}):
        with pytest.raises(ValueError, match="`combiner`.*sqrtn.*'max'"):
            EmbeddingBag(table, combiner)
    with pytest.raises(ValueError, match="`embedding`.*DynamicEmbedding"):
        EmbeddingBag(keras.layers.Dense(3))
    bag = EmbeddingBag(table, {"a": "mean"})
    for inputs in (RAGGED, {"b": RAGGED}):
        with pytest.raises(ValueError, match=r"`inputs`.*keys \['a'\]"):
            bag(inputs)
    with pytest.raises(ValueError, match="`a`.*integers.*'float32'"):
        bag({"a": keras.Input((3,))})
    with pytest.raises(ValueError, match=r"`inputs` of Dynamic.*EmbeddingBag"):
        DynamicEmbedding(WIDTH, 10).call(RAGGED.to_sparse())


def test_layer_is_made_again_from_its_config():
    table = keras.layers.Embedding(5, WIDTH)
    for combiner in ("sqrtn", {"a": "mean", "b": "sum"}):
        bag = EmbeddingBag(table, combiner)
        again = EmbeddingBag.from_config(bag.get_config())
        assert again.get_config() == bag.get_config()


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["dense", "ragged", "sparse"])
def test_distributed_embedding_of_keras_rs_works_as_it_is(kind):
    layers = pytest.importorskip("keras_rs").layers
    x, y = features()
    ids = {"seen": x["seen"], "bought": x["bought"]}
    if kind != "ragged":
        ids = {name: each.to_sparse() for name, each in ids.items()}
    if kind == "dense":
        ids = {name: tf.sparse.to_dense(each) for name, each in ids.items()}

    def losses(scope):
        keras.utils.set_random_seed(5)
        with scope:
            table = layers.TableConfig(
                "items", ROWS, WIDTH, initializer="ones", combiner="sqrtn"
            )
            length = None if kind == "ragged" else 4
            configs = {
                name: layers.FeatureConfig(
                    name, table, (EXAMPLES, length), (EXAMPLES, WIDTH)
                )
                for name in ids
            }
            inputs = {
                name: keras.Input(
                    (length,),
                    batch_size=EXAMPLES,
                    name=name,
                    dtype="int32",
                    ragged=kind == "ragged",
                    sparse=kind == "sparse",
                )
                for name in ids
            }
            outputs = layers.DistributedEmbedding(configs)(inputs)
            hidden = keras.layers.Concatenate()(list(outputs.values()))
            model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
            model.compile(keras.optimizers.SGD(0.01), "mse")
        data = tf.data.Dataset.from_tensor_slices((ids, y)).batch(EXAMPLES)
        return model.fit(data, epochs=5, verbose=0).history["loss"]

    found, expected = losses(tables()), losses(contextlib.nullcontext())
    twins.assert_same(found, expected, tolerance=1e-6)
