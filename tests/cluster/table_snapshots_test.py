"""Tables in snapshots, in one process whose resources are those of a server."""

import json

import numpy as np
import pytest
import tensorflow as tf

from tests.cluster import snapshots_test
from tfdist.cluster import manifests
from tfdist.cluster import table_snapshots

prefix = snapshots_test.prefix
nothing_is_told = snapshots_test.nothing_is_told
ROWS, WIDTH = 100, 3
# Of a table and its slot; both together.
ROW_BYTES = 4 * WIDTH * 2


@pytest.fixture(autouse=True)
def small_stripes(monkeypatch):
    """Seven stripes, which do not divide the rows."""
    monkeypatch.setattr(
        table_snapshots, "STRIPE_BYTES", ROWS * ROW_BYTES // 7 + 5
    )


def rows(version):
    """All rows of a table, as of an update."""
    numbers = np.arange(ROWS * WIDTH, dtype="float32").reshape(ROWS, WIDTH)
    return numbers + 1000 * version


def put_table(prefix, version, names=("table", "slot")):
    for name in names:
        snapshots_test.put(f"{prefix}/{name}", rows(version))
    snapshots_test.put(f"{prefix}/version", np.int64(version))


def fill(prefix, version=7):
    """A server that holds a table, its slot and a small variable."""
    put_table(prefix, version)
    snapshots_test.put(f"{prefix}/bias", np.ones([2], "float32"))
    # Fewer rows than there are stripes.
    snapshots_test.put(f"{prefix}/tiny", np.array([[1.0], [2.0]], "float16"))
    names = ("table", "slot", "tiny")
    tables = {f"{prefix}/{n}": f"{prefix}/{n}/held" for n in names}
    for flag in tables.values():
        snapshots_test.put(flag, True)
    variables = {
        "version": "int64",
        "bias": "float32",
        "table": "float32",
        "slot": "float32",
        "tiny": "float16",
        "tiny/held": "bool",
        "table/held": "bool",
        "slot/held": "bool",
    }
    group = {
        "lock": f"{prefix}/lock",
        "counter": f"{prefix}/version",
        "variables": {f"{prefix}/{n}": d for n, d in variables.items()},
        "tables": tables,
    }
    snapshots_test.leave(0, [group])


def held(prefix, name):
    return snapshots_test.get(f"{prefix}/{name}", tf.float32)


def lost(prefix):
    return table_snapshots.build_lost(f"{prefix}/version").numpy().tolist()


def test_tables_come_back_with_all_else(tmp_path, prefix):
    fill(prefix)
    assert snapshots_test.make(tmp_path).write()
    (written,) = (tmp_path / "ps-0-of-2").iterdir()
    assert len(list(written.glob("rows-0-*.index"))) == 7
    put_table(prefix, 0)
    snapshots_test.put(f"{prefix}/tiny", np.zeros([2, 1], "float16"))
    assert snapshots_test.make(tmp_path).restore() == 8
    for name in ("table", "slot"):
        np.testing.assert_array_equal(held(prefix, name), rows(7))
    assert snapshots_test.get(f"{prefix}/version", tf.int64) == 7
    assert held(prefix, "bias").tolist() == [1.0, 1.0]
    tiny = snapshots_test.get(f"{prefix}/tiny", tf.float16)
    assert tiny.tolist() == [[1.0], [2.0]]
    assert lost(prefix) == [0, 0]


class UpdatesBetweenStripes(table_snapshots.TableWriter):
    """A training step comes after each stripe."""

    def _read(self, bounds):
        found = self._build_read(bounds)
        prefix = self._counter.removesuffix("/version")
        put_table(prefix, int(found[-1]) + 1)
        return found

    def __init__(self, *args):
        super().__init__(*args)
        del self._read


def test_each_stripe_is_of_one_update_and_what_it_lacks_is_counted(
    tmp_path, prefix, monkeypatch
):
    monkeypatch.setattr(table_snapshots, "TableWriter", UpdatesBetweenStripes)
    fill(prefix, version=10)
    assert snapshots_test.make(tmp_path).write()
    put_table(prefix, 0)
    assert snapshots_test.make(tmp_path).restore() == 8
    # Stripes of updates 10 to 16, and the rest of 17.
    assert snapshots_test.get(f"{prefix}/version", tf.int64) == 17
    assert lost(prefix) == [1, 7]
    versions = (held(prefix, "table") - rows(0)) / 1000
    expected = [10 + (7 * (row + 1) - 1) // ROWS for row in range(ROWS)]
    for column in versions.T:
        assert column.tolist() == expected
    np.testing.assert_array_equal(held(prefix, "slot"), held(prefix, "table"))


def test_what_stripes_lack_is_written_though_no_update_follows(
    tmp_path, prefix, monkeypatch
):
    monkeypatch.setattr(table_snapshots, "TableWriter", UpdatesBetweenStripes)
    fill(prefix, version=10)
    writer = snapshots_test.make(tmp_path)
    assert writer.write()
    monkeypatch.undo()
    small = ROWS * ROW_BYTES // 7 + 5
    monkeypatch.setattr(table_snapshots, "STRIPE_BYTES", small)
    writer._readers.clear()
    assert [writer.write(), writer.write()] == [True, False]
    snapshots_test.make(tmp_path).restore()
    np.testing.assert_array_equal(held(prefix, "table"), rows(17))
    assert lost(prefix) == [0, 0]


def test_table_whose_first_values_are_being_made_is_left_out(tmp_path, prefix):
    fill(prefix)
    with tf.device(snapshots_test.DEVICE):
        handle = tf.raw_ops.VarHandleOp(
            dtype=tf.bool, shape=None, shared_name=f"{prefix}/slot/held"
        )
        tf.raw_ops.DestroyResourceOp(resource=handle)
    assert snapshots_test.make(tmp_path).write()
    put_table(prefix, 0)
    assert snapshots_test.make(tmp_path).restore() == 6
    np.testing.assert_array_equal(held(prefix, "table"), rows(7))
    np.testing.assert_array_equal(held(prefix, "slot"), rows(0))


@pytest.mark.parametrize("broken", ["data", "meta"])
def test_broken_stripe_leaves_the_snapshot_before(tmp_path, prefix, broken):
    fill(prefix)
    writer = snapshots_test.make(tmp_path)
    assert writer.write()
    put_table(prefix, 8)
    assert writer.write()
    newest = max((tmp_path / "ps-0-of-2").iterdir())
    if broken == "data":
        (data,) = newest.glob("rows-0-4.data*")
        data.write_bytes(data.read_bytes()[:-1])
    else:
        meta = newest / "rows-0.json"
        content = json.loads(meta.read_text())
        meta.write_text(json.dumps({**content, "tables": [["x"]]}))
    put_table(prefix, 0)
    assert snapshots_test.make(tmp_path).restore() == 8
    np.testing.assert_array_equal(held(prefix, "table"), rows(7))


def test_tables_of_a_snapshot_whose_other_data_is_broken_are_not_read(
    tmp_path, prefix
):
    fill(prefix)
    assert snapshots_test.make(tmp_path).write()
    (data,) = tmp_path.glob("ps-0-of-2/*/data.data*")
    data.write_bytes(data.read_bytes()[:-1])
    put_table(prefix, 0)
    assert snapshots_test.make(tmp_path).restore() == 0
    np.testing.assert_array_equal(held(prefix, "table"), rows(0))


def test_restored_server_keeps_tables_before_any_worker_names_them(
    tmp_path, prefix
):
    fill(prefix)
    assert snapshots_test.make(tmp_path).write()
    writer = snapshots_test.make(tmp_path)
    assert writer.restore() == 8
    snapshots_test.leave(0, [])
    put_table(prefix, 8)
    assert writer.write()
    put_table(prefix, 0)
    assert snapshots_test.make(tmp_path).restore() == 8
    np.testing.assert_array_equal(held(prefix, "table"), rows(8))


def test_manifests_of_members_are_put_together():
    first = manifests.VariableGroup(
        "counter", {"a": "float32"}, {"a": "a/held"}
    )
    first.add(manifests.VariableGroup("counter", {"b": "int64"}))
    assert first == manifests.VariableGroup(
        "counter", {"a": "float32", "b": "int64"}, {"a": "a/held"}
    )
