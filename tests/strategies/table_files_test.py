"""Files of tables on servers: models, exports, and what is refused."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import nightly
from tests.strategies import tables_test
from tests.strategies.tables_test import ROWS
from tests.strategies.tables_test import WIDTH
from tests.strategies.tables_test import build
from tests.strategies.tables_test import examples
from tests.strategies.tables_test import strategy_with_tables
import tfdist
from tfdist import saved_state
from tfdist.runtime.checkpoint import table_chunks
from tfdist.runtime.checkpoint import table_export
from tfdist.runtime.variables import table as table_lib
from tfdist.runtime.variables.variables import Role


@pytest.fixture(scope="module")
def trained():
    """A strategy, a model that was trained under it, and its table's rows."""
    strategy = strategy_with_tables()
    model, table = build(strategy.scope(), tables_test.OPTIMIZERS["adagrad"])
    model.fit(*examples(), verbose=0)
    return strategy, model, np.asarray(table(np.arange(ROWS)))


def loaded(index, table):
    """All rows of a table of an export, as docs/tables.md loads them."""
    (entry,) = (t for t in json.loads(index.read_text())["tables"])
    assert entry["name"] == table
    pieces = [
        np.load(index.parent / piece["file"], mmap_mode="r")
        for piece in entry["pieces"]
    ]
    ends = [piece["end"] for piece in entry["pieces"]]
    assert [piece["first"] for piece in entry["pieces"]] == [0, *ends[:-1]]
    assert ends[-1] == entry["shape"][0]
    return np.concatenate(pieces).view(entry["dtype"])


@pytest.mark.nightly
def test_export_has_all_rows(trained, tmp_path, monkeypatch):
    strategy, model, rows = trained
    monkeypatch.setattr(table_export, "PIECE_BYTES", 4 * WIDTH * 100)
    strategy.export_tables(tmp_path / "new", model)
    index = tmp_path / "new" / table_export.INDEX
    np.testing.assert_array_equal(loaded(index, "items/embeddings"), rows)
    assert len(list(index.parent.iterdir())) == 1 + ROWS // 100
    assert json.loads(index.read_text())["updates"] == 1


@pytest.mark.nightly
def test_export_replaces_the_one_before_at_once(trained, tmp_path, monkeypatch):
    strategy, model, rows = trained
    strategy.export_tables(tmp_path, model)
    (tmp_path / "export-notes.npy").touch()
    (tmp_path / "export-0-of-the-user").mkdir()

    def full(table, first, end):
        raise OSError("no space left")

    with monkeypatch.context() as patched:
        patched.setattr(table_lib.TableVariable, "read_rows", full)
        with pytest.raises(OSError, match="no space"):
            strategy.export_tables(tmp_path, model)
    # What it had begun is gone.
    assert not list(tmp_path.glob("export-1-*"))
    index = tmp_path / table_export.INDEX
    np.testing.assert_array_equal(loaded(index, "items/embeddings"), rows)
    strategy.export_tables(tmp_path, model)
    np.testing.assert_array_equal(loaded(index, "items/embeddings"), rows)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [
        "export-0-of-the-user",
        "export-1-table-0-000000.npy",
        "export-notes.npy",
        "index.json",
    ]


@pytest.mark.nightly
def test_a_table_has_no_layout(trained):
    strategy, model, _ = trained
    with pytest.raises(ValueError, match="items/embeddings.* a layout"):
        strategy.layout(model.weights)


def test_export_of_half_floats_keeps_their_bits(tmp_path):
    strategy = strategy_with_tables()
    with strategy.scope():
        layer = keras.layers.Embedding(2 * ROWS, WIDTH, dtype="bfloat16")
        model = keras.Sequential([keras.Input((5,), dtype="int32"), layer])
    strategy.export_tables(tmp_path)
    found = loaded(tmp_path / table_export.INDEX, layer.embeddings.path)
    expected = np.asarray(layer(np.arange(2 * ROWS)))
    np.testing.assert_array_equal(found, expected)
    assert np.any(found != 0) and model.built


def test_export_needs_a_table_and_names(trained, tmp_path):
    strategy, model, _ = trained
    with strategy.scope():
        dense = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    with pytest.raises(ValueError, match="`model` must have a table"):
        strategy.export_tables(tmp_path, dense)
    twin, _ = build(strategy.scope(), tables_test.OPTIMIZERS["sgd"])
    with pytest.raises(ValueError, match="several models have the same name"):
        strategy.export_tables(tmp_path)
    assert twin.built and list(tmp_path.iterdir()) == []


def plain_model():
    """The same model in plain Keras, untrained."""
    layers = keras.layers
    table = layers.Embedding(ROWS, WIDTH, name="items")
    inputs = keras.Input((5,), dtype="int32")
    rows = layers.Flatten()(table(inputs))
    more = layers.GlobalAveragePooling1D()(table(inputs[:, 1:]))
    hidden = layers.Dense(3, activation="tanh")(
        layers.Concatenate()([rows, more])
    )
    model = keras.Model(inputs, layers.Dense(1)(hidden))
    model.compile("adagrad", "mse")
    return model, table


@pytest.mark.nightly
def test_saved_model_is_one_of_plain_keras(trained, tmp_path, monkeypatch):
    _, model, rows = trained
    monkeypatch.setattr(table_lib, "_READ_BYTES", 4 * WIDTH * 100)
    x, _ = examples()
    expected = model.predict(x, verbose=0)
    model.save(tmp_path / "model.keras")
    found = keras.models.load_model(tmp_path / "model.keras")
    (table,) = (w for w in found.get_weights() if w.shape == (ROWS, WIDTH))
    np.testing.assert_array_equal(table, rows)
    np.testing.assert_allclose(
        found.predict(x, verbose=0), expected, rtol=1e-5, atol=1e-6
    )
    saved, kept = (
        [v for v in one.optimizer.variables if v.shape == (ROWS, WIDTH)]
        for one in (found, model)
    )
    assert len(saved) == len(kept) == 1
    sums = kept[0].value.read_rows(0, ROWS)
    np.testing.assert_array_equal(saved[0].numpy(), sums)
    # Adagrad begins with 0.1.
    assert np.any(sums != np.float32(0.1))
    model.save_weights(tmp_path / "model.weights.h5")
    plain, layer = plain_model()
    plain.load_weights(tmp_path / "model.weights.h5")
    np.testing.assert_array_equal(layer.get_weights()[0], rows)


@pytest.mark.parametrize("skip", [False, True])
def test_weights_beside_a_table_can_be_loaded(tmp_path, skip):
    path = tmp_path / "m.weights.h5"
    saved, _ = plain_model()
    saved.save_weights(path)
    make_optimizer = tables_test.OPTIMIZERS["sgd"]
    model, table = build(strategy_with_tables().scope(), make_optimizer)
    if skip:
        with pytest.warns(UserWarning, match="could not be loaded"):
            model.load_weights(path, skip_mismatch=True)
    else:
        with pytest.raises(ValueError, match="could not be loaded.*items"):
            model.load_weights(path)
    kernel = model.layers[-1].get_weights()[0]
    np.testing.assert_array_equal(kernel, saved.layers[-1].get_weights()[0])
    np.testing.assert_array_equal(table(np.arange(ROWS)), 1.0)


SAVES = {
    "save": lambda model, path: model.save(path / "m.keras"),
    "save_weights": lambda model, path: model.save_weights(
        path / "m.weights.h5"
    ),
}


@pytest.mark.parametrize("way", SAVES)
def test_larger_tables_are_in_no_model_file(
    trained, tmp_path, monkeypatch, way
):
    _, model, _ = trained
    SAVES[way](model, tmp_path)
    (path,) = tmp_path.iterdir()
    before = path.read_bytes()
    monkeypatch.setattr(table_lib, "WHOLE_BYTES", 4 * ROWS * WIDTH - 1)
    with pytest.raises(
        ValueError, match=r"items/embeddings.*ClusterCheckpoint.*export_tables"
    ):
        SAVES[way](model, tmp_path)
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_bytes() == before


CALLBACKS = {
    "BackupAndRestore": lambda path: keras.callbacks.BackupAndRestore(path),
    "EarlyStopping": lambda _: keras.callbacks.EarlyStopping(
        monitor="loss", restore_best_weights=True
    ),
    "ModelCheckpoint": lambda path: keras.callbacks.ModelCheckpoint(
        path / "m.keras"
    ),
    "TensorBoard with histogram_freq=1": lambda path: (
        keras.callbacks.TensorBoard(path, histogram_freq=1)
    ),
    "TensorBoard": lambda path: keras.callbacks.TensorBoard(
        path, embeddings_freq=1
    ),
}


@pytest.mark.parametrize("name", CALLBACKS)
def test_callbacks_that_would_fail_later_are_refused_at_once(
    trained, tmp_path, monkeypatch, name
):
    strategy, model, _ = trained
    monkeypatch.setattr(table_lib, "WHOLE_BYTES", 4 * ROWS * WIDTH - 1)
    before = strategy.updates_applied()
    with pytest.raises(ValueError, match=rf"items/embeddings.*{name}"):
        model.fit(*examples(), verbose=0, callbacks=[CALLBACKS[name](tmp_path)])
    assert strategy.updates_applied() == before


class BuiltInStep(keras.Sequential):
    """Whose layers are built by the first step alone."""

    def train_step(self, data):
        """As Keras's."""
        return super().train_step(data)


@pytest.mark.parametrize(
    ("kind", "name"),
    nightly.also(
        [(BuiltInStep, "EarlyStopping")],
        [(keras.Sequential, "BackupAndRestore")],
    ),
)
def test_callbacks_are_refused_when_the_model_is_built(tmp_path, kind, name):
    strategy = strategy_with_tables()
    with strategy.scope():
        layers = [keras.layers.Embedding(ROWS, WIDTH), keras.layers.Flatten()]
        model = kind([*layers, keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    given = [CALLBACKS[name](tmp_path)]
    x, y = examples()
    with pytest.raises(ValueError, match=rf"embeddings.*{name}"):
        model.fit(x, y, batch_size=2, verbose=0, callbacks=given)
    steps = int(kind is BuiltInStep)
    assert strategy.updates_applied() == [steps]
    model.fit(x, y, batch_size=len(x), verbose=0)
    assert strategy.updates_applied() == [steps + 1]


@pytest.mark.nightly
def test_model_checkpoint_saves_smaller_tables(trained, tmp_path):
    _, model, _ = trained
    callback = CALLBACKS["ModelCheckpoint"](tmp_path)
    model.fit(*examples(), verbose=0, callbacks=[callback])
    found = keras.models.load_model(tmp_path / "m.keras")
    x, _ = examples()
    np.testing.assert_allclose(found(x), model(x), rtol=1e-5, atol=1e-6)


@pytest.mark.nightly
@pytest.mark.parametrize(("chunks", "size"), [(128, 180), (1024, 1)])
def test_large_tables_are_saved_in_more_chunks(
    tmp_path, monkeypatch, chunks, size
):
    """Of at most so many bytes, but of one partition at least."""
    strategy = strategy_with_tables()
    model, table = build(strategy.scope(), tables_test.OPTIMIZERS["adagrad"])
    model.fit(*examples(), verbose=0)
    rows = np.asarray(table(np.arange(ROWS)))
    monkeypatch.setattr(table_chunks, "CHUNK_BYTES", size)
    state = strategy.state.read()
    names = [n for n in state.arrays if n.startswith(table_chunks.PREFIX)]
    assert len(names) == 2 * chunks
    with (tmp_path / "state").open("wb") as file:
        saved_state.write(state, file)
    monkeypatch.undo()
    model.fit(*examples(), verbose=0)
    assert np.any(np.asarray(table(np.arange(ROWS))) != rows)
    with (tmp_path / "state").open("rb") as file:
        strategy.state.restore(saved_state.read(file, lazy=table_chunks.PREFIX))
    np.testing.assert_array_equal(table(np.arange(ROWS)), rows)


@pytest.mark.nightly
def test_rows_are_put_back_as_what_a_script_sets(monkeypatch):
    """That comes after all that others make in the call of `fit` before."""
    strategy = strategy_with_tables()
    model, _ = build(strategy.scope(), tables_test.OPTIMIZERS["sgd"])
    model.fit(*examples(), verbose=0)
    state = strategy.state.read()
    set_now = []
    runtime = strategy._runtime
    before = runtime.chief_decisions.before_write
    monkeypatch.setattr(
        runtime.chief_decisions,
        "before_write",
        lambda variable: set_now.append(variable.role) or before(variable),
    )
    strategy.state.restore(state)
    assert Role.TABLE in set_now
    assert Role.PARAMETER in set_now


@pytest.mark.nightly
def test_checkpoint_is_resumed_with_the_same_table_bytes(tmp_path):
    def fit(strategy):
        make = tables_test.OPTIMIZERS["sgd"]
        model, _ = build(strategy.scope(), make)
        checkpoint = tfdist.callbacks.ClusterCheckpoint(tmp_path)
        model.fit(*examples(), verbose=0, callbacks=[checkpoint])

    fit(strategy_with_tables())
    with pytest.raises(saved_state.ModelMismatchError, match="`table_bytes`"):
        fit(tfdist.AsyncStrategy())


def test_checkpoints_of_tensorflow_name_the_alternative(trained, tmp_path):
    _, model, _ = trained
    with pytest.raises(ValueError, match="ClusterCheckpoint"):
        tf.train.Checkpoint(optimizer=model.optimizer).write(tmp_path / "c")
    assert list(tmp_path.iterdir()) == []
