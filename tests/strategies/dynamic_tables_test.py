"""`tfdist.layers.DynamicEmbedding` against embeddings of known ids."""

import gc
import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.runtime.variables.hashing_test import splitmix
from tests.strategies import twins
from tests.strategies.dynamic_models import EXAMPLES
from tests.strategies.dynamic_models import IDS
from tests.strategies.dynamic_models import OPTIMIZERS
from tests.strategies.dynamic_models import WIDTH
from tests.strategies.dynamic_models import Within
from tests.strategies.dynamic_models import build
from tests.strategies.dynamic_models import dynamic
from tests.strategies.dynamic_models import examples
from tests.strategies.dynamic_models import fit
from tests.strategies.dynamic_models import ids_of
from tests.strategies.dynamic_models import strategy_with_tables
from tfdist import saved_state
from tfdist.callbacks import ClusterCheckpoint
from tfdist.layers import DynamicEmbedding
from tfdist.runtime.checkpoint import table_chunks
from tfdist.runtime.checkpoint import table_export
from tfdist.runtime.variables import row_index


@pytest.fixture(scope="module")
def trained():
    """A strategy, a model that was trained with Adagrad, and its table."""
    strategy = strategy_with_tables()
    model, table = dynamic(strategy)
    fit(model, ids_of(examples()[0]))
    return strategy, model, table


@pytest.mark.nightly
@pytest.mark.parametrize("optimizer", ["adam", "sgd", "adagrad", "ftrl"])
def test_trains_as_a_table_of_known_ids(optimizer):
    x, _ = examples()
    strategy = strategy_with_tables()
    with strategy.scope():
        known = keras.layers.Embedding(
            300, WIDTH, embeddings_initializer=keras.initializers.Constant(0.5)
        )
    model = build(strategy, optimizer, known)
    expected = fit(model, x), np.asarray(known(np.arange(50)))
    model, table = dynamic(strategy, optimizer, initializer=0.5)
    found = fit(model, ids_of(x)), np.asarray(table(ids_of(np.arange(50))))
    twins.assert_same(found, expected, tolerance=1e-6)
    (counts,) = table.counts()
    assert counts["used"] == counts["admitted"] == len(np.unique(x))
    assert counts["evicted"] == counts["refused"] == 0


def test_first_values_are_of_the_id_and_the_seed():
    ids = tf.constant(ids_of(np.arange(1000)))
    strategy = strategy_with_tables()
    tables = [dynamic(strategy, seed=seed)[1] for seed in (0, 0, 1)]
    one, same, other = (np.asarray(table(ids)) for table in tables)
    np.testing.assert_array_equal(one, same)
    assert not np.any(one == other)
    assert one.min() >= -0.05 and one.max() < 0.05
    assert np.ptp(one) > 0.099
    # Nothing has a row because somebody has looked it up.
    assert tables[0].counts()[0]["used"] == 0


def linear(strategy, optimizer, **settings):
    """A model whose loss is the mean of all elements of all rows."""
    with strategy.scope():
        table = DynamicEmbedding(WIDTH, **{"capacity": 100, **settings})
        model = keras.Sequential([keras.Input((IDS,), dtype="int64"), table])
        model.compile(
            OPTIMIZERS[optimizer](), lambda _, rows: keras.ops.mean(rows)
        )
    return model, table


def step(model, ids):
    """Trains on ids in one batch; returns the gradient of each element."""
    x = np.asarray(ids).reshape(-1, IDS)
    model.fit(x, np.zeros(len(x)), batch_size=len(x), verbose=0)
    return 1 / (x.size * WIDTH)


@pytest.mark.nightly
def test_strings_are_ids():
    x, _ = examples()
    words = np.char.add("item ", x.astype(str)).astype(object)
    strategy = strategy_with_tables()
    model, table = dynamic(strategy, dtype="string")
    losses = fit(model, tf.constant(words), epochs=4)
    assert losses[-1] < losses[0]
    assert table.counts()[0]["used"] == len(np.unique(x))
    row = np.asarray(table(tf.constant(["item 1"])))
    (hashed,) = tf.strings.to_hash_bucket_fast(["item 1"], 2**63 - 1).numpy()
    np.testing.assert_array_equal(row, table(np.array([hashed])))


@pytest.mark.nightly
def test_gradients_before_admission_are_dropped():
    x, _ = examples()
    model, table = linear(strategy_with_tables(), "adagrad", admit_after=2)
    ids = ids_of(np.unique(x))
    before = np.asarray(table(ids))
    step(model, ids_of(x))
    assert table.counts()[0]["used"] == 0
    np.testing.assert_array_equal(table(ids), before)
    step(model, ids_of(x))
    assert table.counts()[0] == {
        "rows": 32768,
        "used": len(ids),
        "admitted": len(ids),
        "evicted": 0,
        "refused": 0,
    }


def neighbours(count):
    """Ids of one partition: more than it has rows."""
    ids = np.arange(60_000)
    return ids[(splitmix(ids) >> np.uint64(1)) % np.uint64(1024) == 0][:count]


@pytest.mark.nightly
def test_full_table_says_so_and_loses_no_other_row(caplog):
    strategy = strategy_with_tables()
    model, table = linear(strategy, "adagrad", name="items")
    ids = np.resize(neighbours(50), (EXAMPLES, IDS))
    for _ in range(2):
        step(model, ids)
    (counts,) = table.counts()
    # Of 32 rows. Each of two steps drops what is refused.
    assert counts["used"] == counts["admitted"] == 32
    assert counts["refused"] >= 18
    assert "gradients of ids of " in caplog.text
    assert f"'{table.embeddings.path}' were dropped" in caplog.text
    rows = np.asarray(table(neighbours(50)))
    _, other = linear(strategy, "adagrad", name="other")
    first = np.asarray(other(neighbours(50)))
    assert np.any(rows != first, axis=1).sum() == 32


@pytest.mark.nightly
def test_full_table_that_is_made_in_the_first_step_says_so(caplog):
    strategy = strategy_with_tables()
    with strategy.scope():
        model = Within()
        model.compile("sgd", "mse")
    assert model.table.counts() == []
    fit(model, np.resize(neighbours(50), (EXAMPLES, IDS)), epochs=1)
    assert "/embeddings' were dropped" in caplog.text


@pytest.mark.nightly
def test_old_rows_are_given_away_with_their_slots():
    """What comes into another id's row begins as in an empty one."""
    old, new = np.split(neighbours(50), [40])
    model, table = linear(strategy_with_tables(), "adagrad", evict_after=2)
    before = np.asarray(table(new))
    first = np.asarray(table(old))
    g = step(model, old)
    assert table.counts()[0]["used"] == 32
    # The first gradients are applied to the first values.
    moved = np.any(np.asarray(table(old)) != first, axis=1)
    np.testing.assert_allclose(
        np.asarray(table(old))[moved],
        first[moved] - 0.1 * g / np.sqrt(0.1 + g**2 + 1e-7),
        rtol=1e-6,
        atol=1e-8,
    )
    assert moved.sum() == 32
    for _ in range(2):
        step(model, np.full(IDS, old[0]))
    assert table.counts()[0]["evicted"] == 0
    g = step(model, new)
    assert table.counts()[0]["evicted"] == len(new)
    np.testing.assert_allclose(
        table(new),
        before - 0.1 * g / np.sqrt(0.1 + g**2 + 1e-7),
        rtol=1e-6,
        atol=1e-8,
    )


@pytest.mark.nightly
def test_ids_that_come_or_go_during_a_save_are_left_out(tmp_path, monkeypatch):
    strategy = strategy_with_tables()
    model, table = linear(strategy, "adagrad", evict_after=2)
    parts = np.split(neighbours(60), [40, 50])
    old, *new = parts
    for ids in (old, *[old[:1]] * 3):
        step(model, np.resize(ids, 40))
    variable = table.embeddings.value

    def train_after(owner, name):
        """A read of rows that are not all 0, others give some away."""
        read = getattr(owner, name)

        def read_and_train(self, *args):
            found = read(self, *args)
            is_rows = self is variable or args[0] is variable
            if is_rows and np.any(found):
                monkeypatch.undo()
                step(model, np.resize(new.pop(), 40))
            return found

        monkeypatch.setattr(owner, name, read_and_train)

    def check(ids, rows, before):
        has = ids != row_index.EMPTY
        np.testing.assert_array_equal(rows[has], [before[k] for k in ids[has]])
        assert 0 < has.sum() < 32

    def rows_of_all():
        ids = np.concatenate(parts)
        return dict(zip(ids, np.asarray(table(ids)), strict=True))

    before = rows_of_all()
    train_after(table_chunks.TableChunks, "_read")
    arrays = {k: np.asarray(v) for k, v in strategy.state.read().arrays.items()}
    assert len(new) == 1
    ids, rows = (
        np.concatenate([arrays[f"table/{one.ordinal}/{k}"] for k in range(64)])
        for one in (variable.columns["ids"], variable)
    )
    check(ids[:, 0], rows, before)

    for _ in range(3):
        step(model, np.resize(old[:1], 40))
    before = rows_of_all()
    train_after(type(variable), "read_rows")
    strategy.export_tables(tmp_path, model)
    assert not new
    (ids,) = tmp_path.glob("*.ids.npy")
    rows = ids.with_name(ids.name.replace(".ids", ""))
    check(np.load(ids), np.load(rows), before)


@pytest.mark.nightly
def test_rows_are_as_old_after_a_restore_as_when_they_were_saved(tmp_path):
    strategy = strategy_with_tables()
    model, table = linear(strategy, "sgd", evict_after=2)
    variable = table.embeddings.value

    def ages():
        ids, updated = (
            variable.columns[name].read_rows(0, variable.shape[0])[:, 0]
            for name in ("ids", "updated")
        )
        (now,) = strategy.updates_applied()
        return (now - updated)[ids != row_index.EMPTY]

    for ids in np.split(neighbours(15), 3):
        step(model, ids)
    saved = ages()
    assert sorted(set(saved)) == [1, 2, 3]
    path = tmp_path / "state"
    with path.open("wb") as file:
        saved_state.write(strategy.state.read(), file)
    for _ in range(2):
        step(model, neighbours(5))
    with path.open("rb") as file:
        strategy.state.restore(saved_state.read(file))
    np.testing.assert_array_equal(ages(), saved)


@pytest.mark.nightly
def test_two_fits_and_another_optimizer():
    x, _ = examples()
    strategy = strategy_with_tables()
    model, table = linear(strategy, "adagrad")
    ids = ids_of(np.unique(x))
    seen = [np.asarray(table(ids))]
    for _ in range(2):
        step(model, ids_of(x))
        seen.append(np.asarray(table(ids)))
    with strategy.scope():
        model.compile(OPTIMIZERS["adam"](), model.loss)
    step(model, ids_of(x + 20))
    seen.append(np.asarray(table(ids)))
    # All gradients are positive. Not all rows are of the second optimizer's.
    assert np.all(seen[0] > seen[1]) and np.all(seen[1] > seen[2])
    moved = np.all(seen[2] > seen[3], axis=1)
    np.testing.assert_array_equal(moved, np.isin(np.unique(x), x + 20))
    assert table.counts()[0]["used"] == len(np.unique([x, x + 20]))


@pytest.mark.nightly
def test_frozen_table_gets_no_rows(trained):
    x, _ = examples()
    strategy, model, table = trained
    before = table.counts()
    table.trainable = False
    with strategy.scope():
        model.compile("sgd", "mse")
    fit(model, ids_of(x + 100))
    assert table.counts() == before
    table.trainable = True


@pytest.mark.nightly
def test_another_model_of_the_table_may_be_freed():
    """Its optimizer's slots are reset with the rows, and then are gone."""
    strategy = strategy_with_tables()
    model, table = linear(strategy, "adagrad")
    with strategy.scope():
        other = keras.Sequential([keras.Input((IDS,), dtype="int64"), table])
        other.compile(
            OPTIMIZERS["adam"](), lambda _, rows: keras.ops.mean(rows)
        )
    step(other, ids_of(np.arange(10)))
    step(model, ids_of(np.arange(10, 20)))
    del other
    gc.collect()
    # The next model is made where the freed one was.
    next_one, _ = linear(strategy, "sgd")
    step(next_one, ids_of(np.arange(5)))
    step(model, ids_of(np.arange(20, 30)))
    assert table.counts()[0]["used"] == 30


@pytest.mark.nightly
@pytest.mark.parametrize(
    "policy", ["mixed_bfloat16", "mixed_float16", "float64"]
)
def test_types_of_layers(policy):
    x, _ = examples()
    strategy = strategy_with_tables()
    model, table = dynamic(strategy, dtype="int64")
    with strategy.scope():
        layer = DynamicEmbedding(WIDTH, 100, dtype=policy, name="typed")
        typed = build(strategy, "sgd", layer)
    losses = fit(typed, ids_of(x), epochs=3)
    assert losses[-1] < losses[0]
    compute = policy.removeprefix("mixed_")
    assert layer(ids_of(x)).dtype.name == compute
    assert model.built and table.built


@pytest.mark.nightly
def test_saved_table_goes_on_with_ids_and_slots(tmp_path):
    x, _ = examples()
    ids = ids_of(np.unique(x))

    def run(epochs, directory, resumed=0):
        model, table = dynamic(strategy_with_tables(), "adam")
        checkpoint = ClusterCheckpoint(tmp_path / directory)
        fit(model, ids_of(x), epochs=epochs, callbacks=[checkpoint])
        assert checkpoint.resumed_epoch == resumed
        assert table.counts()[0]["used"] == len(ids)
        return np.asarray(table(ids))

    run(1, "stopped")
    np.testing.assert_array_equal(run(2, "stopped", 1), run(2, "whole"))


@pytest.mark.nightly
def test_export_has_ids_and_rows(trained, tmp_path, monkeypatch):
    x, _ = examples()
    strategy, model, table = trained
    monkeypatch.setattr(table_export, "PIECE_BYTES", 4 * WIDTH * 10_000)
    strategy.export_tables(tmp_path, model)
    index = json.loads((tmp_path / table_export.INDEX).read_text())
    (entry,) = index["tables"]
    assert entry["name"] == "items/embeddings"
    assert entry["shape"] == [len(np.unique(x)), WIDTH]
    ids, rows = (
        np.concatenate([np.load(tmp_path / p[key]) for p in entry["pieces"]])
        for key in ("ids", "file")
    )
    assert len(entry["pieces"]) == 4
    assert sorted(ids) == sorted(ids_of(np.unique(x)))
    np.testing.assert_array_equal(table(ids), rows)


@pytest.mark.nightly
def test_files_without_ids_are_refused(trained, tmp_path):
    x, _ = examples()
    _, model, _ = trained
    for save in (lambda: model.save(tmp_path / "m.keras"), model.get_weights):
        with pytest.raises(
            ValueError, match=r"items/embeddings' is a (dynamic )?"
        ):
            save()
    checkpoint = keras.callbacks.ModelCheckpoint(tmp_path / "m.keras")
    with pytest.raises(ValueError, match=r"dynamic table.*ClusterCheckpoint"):
        fit(model, ids_of(x), callbacks=[checkpoint])
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_was_never_fitted_leaves_an_existing_file(tmp_path):
    model, _ = dynamic(strategy_with_tables())
    path = tmp_path / "model.weights.h5"
    path.write_text("of before")
    with pytest.raises(ValueError, match=r"items/embeddings' is a dynamic"):
        model.save_weights(path)
    assert path.read_text() == "of before"
