"""Snapshots in one process, whose own resources are those of a server."""

import contextlib
import itertools
import json
import pathlib
import resource
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
import tensorflow as tf

from tests.waits import wait_until
from tfdist.cluster import manifests
from tfdist.cluster import snapshots

DEVICE = "/job:localhost/replica:0/task:0/device:CPU:0"
_numbers = itertools.count()


@pytest.fixture
def prefix():
    """Names of resources that no other test has."""
    return f"snapshots_test/{next(_numbers)}"


def make(directory, every=60.0, num_workers=2):
    return snapshots.Snapshots(
        directory,
        DEVICE,
        task=0,
        num_servers=2,
        num_members=3,
        num_workers=num_workers,
        every=every,
    )


def put(name, value):
    value = tf.constant(value)
    handle = tf.raw_ops.VarHandleOp(
        dtype=value.dtype, shape=value.shape, shared_name=name
    )
    tf.raw_ops.AssignVariableOp(resource=handle, value=value)


def get(name, dtype):
    handle = tf.raw_ops.VarHandleOp(dtype=dtype, shape=None, shared_name=name)
    return tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype).numpy()


def tell(prefix, row, names):
    """Says what there is to keep: a dict of name to dtype."""
    group = {
        "lock": f"{prefix}/lock",
        "counter": f"{prefix}/version",
        "variables": {f"{prefix}/{n}": d for n, d in names.items()},
    }
    leave(row, [group])


def leave(row, groups):
    text = tf.constant(manifests.text_of(groups))
    manifests.Manifest(DEVICE, 3).build_write(row, text)


def fill(prefix):
    """A server with an update, of which two workers know different parts."""
    put(f"{prefix}/version", np.int64(7))
    put(f"{prefix}/weights", np.arange(6.0, dtype="float32").reshape(2, 3))
    put(f"{prefix}/half", np.array([0.5, -2.0], "float16"))
    put(f"{prefix}/signature", b"dense kernel")
    tell(prefix, 0, {"version": "int64", "weights": "float32"})
    others = {"half": "float16", "signature": "string", "never": "float32"}
    tell(prefix, 2, {"version": "int64", **others})


def forget(prefix):
    put(f"{prefix}/version", np.int64(0))
    put(f"{prefix}/weights", np.zeros([2, 3], "float32"))
    put(f"{prefix}/half", np.zeros([2], "float16"))
    put(f"{prefix}/signature", b"")


def check_filled(prefix):
    assert get(f"{prefix}/version", tf.int64) == 7
    weights = get(f"{prefix}/weights", tf.float32)
    assert weights.tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    assert get(f"{prefix}/half", tf.float16).tolist() == [0.5, -2.0]
    assert get(f"{prefix}/signature", tf.string) == b"dense kernel"


@pytest.fixture(autouse=True)
def nothing_is_told():
    yield
    for row in range(3):
        leave(row, [])


def test_what_is_written_is_found(tmp_path, prefix):
    fill(prefix)
    assert make(tmp_path).write()
    forget(prefix)
    assert make(tmp_path).restore() == 4
    check_filled(prefix)


@pytest.mark.parametrize("again", [False, True])
def test_what_a_member_forgets_when_it_joins_anew_is_kept(
    tmp_path, prefix, again
):
    fill(prefix)
    writer = make(tmp_path)
    assert writer.write()
    if again:
        # The server, too, has been started again.
        writer = make(tmp_path)
        assert writer.restore() == 4
    put(f"{prefix}/version", np.int64(8))
    tell(prefix, 0, {"version": "int64"})
    leave(2, [])
    assert writer.write()
    forget(prefix)
    assert make(tmp_path).restore() == 4
    assert get(f"{prefix}/version", tf.int64) == 8
    put(f"{prefix}/version", np.int64(7))
    check_filled(prefix)


def test_what_is_by_worker_is_not_kept_for_another_number_of_workers(
    tmp_path, prefix
):
    """After 2, 3 and again 2 it would be older than all else."""
    fill(prefix)
    put(f"{prefix}/counts/of-2", np.ones([2], "int64"))
    tell(prefix, 1, {"counts/of-2": "int64"})
    assert make(tmp_path).write()
    assert make(tmp_path).restore() == 5
    handle = tf.raw_ops.VarHandleOp(
        dtype=tf.int64, shape=None, shared_name=f"{prefix}/counts/of-2"
    )
    tf.raw_ops.DestroyResourceOp(resource=handle)
    writer = make(tmp_path, num_workers=3)
    assert writer.restore() == 4
    put(f"{prefix}/version", np.int64(8))
    leave(1, [])
    assert writer.write()
    assert make(tmp_path).restore() == 4


def test_without_a_snapshot_nothing_is_restored(tmp_path, prefix):
    assert make(tmp_path).restore() == 0
    # Nobody has told what to keep, or what is told has no value yet.
    assert not make(tmp_path).write()
    tell(prefix, 1, {"version": "int64"})
    assert not make(tmp_path).write()
    assert list(tmp_path.iterdir()) == []


def test_one_is_written_when_something_is_new(tmp_path, prefix):
    fill(prefix)
    writer = make(tmp_path)
    assert [writer.write(), writer.write()] == [True, False]
    for version in range(8, 12):
        put(f"{prefix}/version", np.int64(version))
        assert writer.write()
    # Outside of updates as well, and a worker's own rows after one.
    for name in f"version{manifests.WRITES}", f"sgd{manifests.ROW_GRADIENTS}":
        put(f"{prefix}/{name}", np.int64(1))
        tell(prefix, 1, {"version": "int64", name: "int64"})
        assert [writer.write(), writer.write()] == [True, False]
        put(f"{prefix}/{name}", np.int64(2))
        assert [writer.write(), writer.write()] == [True, False]
    # The last one and, should it be unreadable, the one before.
    (directory,) = tmp_path.iterdir()
    assert len(list(directory.iterdir())) == 2
    make(tmp_path).restore()
    assert get(f"{prefix}/version", tf.int64) == 11


@pytest.mark.parametrize("broken", ["data", "meta", "draft"])
def test_a_broken_one_leaves_the_one_before(tmp_path, prefix, broken):
    fill(prefix)
    writer = make(tmp_path)
    writer.write()
    put(f"{prefix}/version", np.int64(8))
    writer.write()
    (directory,) = tmp_path.iterdir()
    newest = max(directory.iterdir())
    if broken == "data":
        (data,) = newest.glob("data.data*")
        content = bytearray(data.read_bytes())
        content[-1] ^= 1
        data.write_bytes(content)
    elif broken == "meta":
        (newest / "meta.json").write_text('{"variables": {')
    else:  # Killed before it had its name.
        newest.rename(directory / "draft-1")
    forget(prefix)
    assert make(tmp_path).restore() == 4
    check_filled(prefix)


@pytest.mark.nightly
def test_without_room_the_one_before_stays_and_it_goes_on(tmp_path):
    """In a process of its own: all of its files are bounded."""
    subprocess.run(
        [
            sys.executable,
            "-c",
            "import pathlib, sys\n"
            "from tests.cluster import snapshots_test\n"
            "snapshots_test.write_without_room(pathlib.Path(sys.argv[1]))",
            tmp_path,
        ],
        cwd=pathlib.Path(__file__).parents[2],
        check=True,
    )


@contextlib.contextmanager
def no_room():
    """Files may not grow beyond some bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def write_without_room(tmp_path):
    """Writes a snapshot, then none, then one."""
    prefix = "snapshots_test/without_room"
    fill(prefix)
    writer = make(tmp_path)
    assert writer.write()
    put(f"{prefix}/version", np.int64(8))
    with no_room():
        assert not writer.write()
    (directory,) = tmp_path.iterdir()
    assert [path.name for path in directory.iterdir()] == ["0000000000"]
    make(tmp_path).restore()
    assert get(f"{prefix}/version", tf.int64) == 7
    put(f"{prefix}/version", np.int64(8))
    assert writer.write()
    make(tmp_path).restore()
    assert get(f"{prefix}/version", tf.int64) == 8


class Lock:
    """The lock of a server, as a training step holds it."""

    def __init__(self, prefix):
        self._taken, self._free = threading.Event(), threading.Event()

        def hold():
            self._taken.set()
            assert self._free.wait(120.0)

        @tf.function(autograph=False)
        def step():
            mutex = tf.raw_ops.MutexV2(shared_name=f"{prefix}/lock")
            lock = tf.raw_ops.MutexLock(mutex=mutex)
            with tf.control_dependencies([lock]):
                held = tf.numpy_function(hold, [], [])
            with tf.control_dependencies([held]):
                tf.raw_ops.ConsumeMutexLock(mutex_lock=lock)

        self._thread = threading.Thread(target=step)

    def __enter__(self):
        self._thread.start()
        assert self._taken.wait(120.0)

    def __exit__(self, *exc_info):
        self._free.set()
        self._thread.join(120.0)


def test_it_waits_for_the_lock_and_reads_one_state(tmp_path, prefix):
    fill(prefix)
    put(f"{prefix}/other", np.int64(7))
    tell(prefix, 1, {"version": "int64", "other": "int64"})
    writer = make(tmp_path)
    assert writer.write()  # All that it calls is traced.
    written = []
    thread = threading.Thread(target=lambda: written.append(writer.write()))
    with Lock(prefix):
        # The first half of an update.
        put(f"{prefix}/version", np.int64(8))
        thread.start()
        thread.join(1.0)
        assert thread.is_alive()
        # The second one.
        put(f"{prefix}/other", np.int64(8))
    thread.join(120.0)
    assert written == [True]
    forget(prefix)
    put(f"{prefix}/other", np.int64(0))
    make(tmp_path).restore()
    assert get(f"{prefix}/version", tf.int64) == 8
    assert get(f"{prefix}/other", tf.int64) == 8


def test_at_the_end_of_training_they_go(tmp_path, prefix):
    fill(prefix)
    writer = make(tmp_path, every=0.05)
    writer.start()
    directory = tmp_path / "ps-0-of-2"
    wait_until(lambda: any(directory.glob("[0-9]*")), "a snapshot is there")
    (kept,) = directory.glob("[0-9]*")
    meta = json.loads((kept / "meta.json").read_text())
    (group,) = meta["groups"].values()
    assert group[1][f"{prefix}/half"] == "float16"
    writer.finish()
    assert list(tmp_path.iterdir()) == []
