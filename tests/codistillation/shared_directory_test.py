"""Checkpoints in files: whole or not at all, and never somebody else's."""

import dataclasses
import io
import json
import logging
import pathlib
import pickle
import threading
import zipfile

import hypothesis
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy
import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.codistillation.scripted_exchange import checkpoint
from tfdist.codistillation import Group
from tfdist.codistillation import PeerUnavailableError
from tfdist.codistillation import SharedDirectory
from tfdist.codistillation import UnusableCheckpointError
from tfdist.codistillation import archive
from tfdist.codistillation import quantization
from tfdist.codistillation.weights import snapshot

layers = keras.layers
WEIGHTS = (
    np.random.default_rng(0).standard_normal((20, 30)).astype("float32"),
    np.linspace(0, 1, 30, dtype="float32"),
    np.array(7, "int64"),
)


def model(units=3):
    return keras.Sequential(
        [
            keras.Input((2,)),
            layers.Dense(units),
            layers.BatchNormalization(),
            layers.Dropout(0.5),
        ]
    )


def bound(path, group=0, **kwargs):
    exchange = SharedDirectory(path, **kwargs)
    exchange.bind(Group(group, 3), model())
    return exchange


def own(step=0, weights=WEIGHTS):
    return checkpoint(weights, group=0, step=step)


def files(path, group=0):
    directory = pathlib.Path(path) / f"group-{group}"
    return sorted(one.name for one in directory.iterdir())


def newest(path, group=0):
    return pathlib.Path(path) / f"group-{group}" / files(path, group)[-1]


def assert_same(got, expected):
    for a, b in zip(got, expected, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


# What is in a file.

CONTENT = archive.encode(own())


@hypothesis.given(
    arrays=st.lists(
        st_numpy.arrays(
            st.sampled_from(["float32", "float64", "int32", "bool"]),
            st_numpy.array_shapes(min_dims=0, max_dims=3, max_side=4),
        ),
        max_size=4,
    ),
    step=st.integers(0, 2**40),
)
@hypothesis.settings(max_examples=30, deadline=None)
def test_what_is_written_is_read(arrays, step):
    written = checkpoint(arrays, group=2, number=5, step=step, initial="i")
    read = archive.decode(archive.encode(written))
    assert_same(read.weights, written.weights)
    assert dataclasses.replace(read, weights=()) == dataclasses.replace(
        written, weights=()
    )


@hypothesis.given(
    array=st_numpy.arrays(
        "float32",
        st_numpy.array_shapes(min_dims=2, max_dims=3, max_side=5),
        elements=st.floats(-(2.0**90), 2.0**90, width=32),
    )
)
@hypothesis.settings(max_examples=60, deadline=None)
def test_quantised_weights_are_as_near_as_is_said(array):
    eight = quantization.restore(
        quantization.quantise(array, "int8"), "float32"
    )
    largest = np.abs(array).max(axis=tuple(range(array.ndim - 1)))
    # Half a step, and what the rounding of the scale itself makes of it.
    bound = largest / 127 * 0.5 * (1 + 1e-4) + 1e-37
    assert (np.abs(eight - array) <= bound).all()
    half = quantization.restore(
        quantization.quantise(array, "float16"), "float32"
    )
    if np.abs(array).max() < 65504:
        np.testing.assert_allclose(half, array, rtol=2**-11, atol=2**-25)
    else:
        np.testing.assert_array_equal(half, array)


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_only_matrices_are_quantised(dtype):
    _, vector, scalar = archive.decode(
        archive.encode(own(), dtype=dtype)
    ).weights
    assert_same([vector, scalar], WEIGHTS[1:])


def test_bytes_on_the_way():
    matrix = (np.ones((500, 500), "float32"),)
    sizes = {
        dtype: len(archive.encode(own(weights=matrix), dtype=dtype))
        for dtype in quantization.DTYPES
    }
    assert sizes["float32"] < 500 * 500 * 4 + 1000
    assert sizes["float16"] < 500 * 500 * 2 + 1000
    assert sizes["int8"] < 500 * 500 + 500 * 4 + 1500


@hypothesis.given(data=st.data())
@hypothesis.settings(max_examples=150, deadline=None)
def test_damage_is_never_taken_for_weights(data):
    content = CONTENT
    damage = data.draw(st.sampled_from(["cut", "flipped", "foreign"]))
    if damage == "cut":
        content = content[: data.draw(st.integers(0, len(content) - 1))]
    elif damage == "flipped":
        position = data.draw(st.integers(0, len(content) - 1))
        bit = 1 << data.draw(st.integers(0, 7))
        content = bytearray(content)
        content[position] ^= bit
        content = bytes(content)
    else:
        content = data.draw(st.binary(max_size=100))
    try:
        read = archive.decode(content)
    except UnusableCheckpointError:
        return
    # Bits that mean nothing (a date, say) may differ; weights may not.
    assert damage == "flipped"
    assert_same(read.weights, WEIGHTS)


def zipped(**entries):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name, content in entries.items():
            file.writestr(name.replace("__", "."), content)
    return buffer.getvalue()


def test_nothing_is_ever_unpickled(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (pathlib.Path.touch, (tmp_path / "exploded",))

    array = io.BytesIO()
    np.save(array, np.array([Bomb()], dtype=object), allow_pickle=True)
    entries = dict.fromkeys(("weights/0.0.npy",), array.getvalue())
    content = archive.encode(own(weights=WEIGHTS[:1]))
    with zipfile.ZipFile(io.BytesIO(content)) as file:
        header = file.read("tfdist.json")
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("tfdist.json", header)
        for name, value in entries.items():
            file.writestr(name, value)
    with pytest.raises(UnusableCheckpointError, match="allow_pickle"):
        archive.decode(buffer.getvalue())
    with pytest.raises(UnusableCheckpointError):
        archive.decode(pickle.dumps(Bomb()))
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "theirs"}, "format is 'theirs'"),
        ({"version": 2}, "version 2 of the format, 1 is known"),
        ({"step": "many"}, "many"),
        ({"step": float("inf")}, "infinity"),
    ],
)
def test_other_formats_are_not_read(change, message):
    with zipfile.ZipFile(io.BytesIO(archive.encode(own()))) as file:
        header = json.loads(file.read("tfdist.json"))
    content = zipped(tfdist__json=json.dumps({**header, **change}))
    with pytest.raises(UnusableCheckpointError, match=message):
        archive.decode(content)


def test_weights_with_something_behind_them_are_not_read():
    buffer = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(CONTENT)) as before,
        zipfile.ZipFile(buffer, "w") as after,
    ):
        for name in before.namelist():
            more = b"?" if name == "weights/1.0.npy" else b""
            after.writestr(name, before.read(name) + more)
    with pytest.raises(UnusableCheckpointError, match="weights 1 are too long"):
        archive.decode(buffer.getvalue())


# What is in a directory.


def test_newest_is_read_once(tmp_path):
    writer, reader = bound(tmp_path), bound(tmp_path, 1)
    with pytest.raises(PeerUnavailableError, match="group 0 has published no"):
        reader.fetch(0, None)
    writer.publish(own(step=10))
    writer.publish(own(step=20))
    first = reader.fetch(0, None)
    assert (first.group, first.number, first.step) == (0, 2, 20)
    assert_same(first.weights, WEIGHTS)
    assert reader.fetch(0, first) is None
    writer.publish(own(step=30))
    assert reader.fetch(0, first).step == 30
    sizes = [
        (tmp_path / "group-0" / name).stat().st_size for name in files(tmp_path)
    ]
    assert writer.bytes_written == sum(sizes)
    assert reader.bytes_read == sum(sizes[1:])
    with pytest.raises(PeerUnavailableError, match="group 2 "):
        reader.fetch(2, None)


def test_last_three_are_kept(tmp_path):
    writer = bound(tmp_path)
    for step in range(0, 60, 10):
        writer.publish(own(step=step))
    assert files(tmp_path) == [
        f"checkpoint-0000000{number}-step-{number * 10 - 10}.npz"
        for number in (4, 5, 6)
    ]


def test_a_restarted_group_counts_on(tmp_path):
    bound(tmp_path).publish(own(step=500))
    reader = bound(tmp_path, 1)
    before = reader.fetch(0, None)
    # What its earlier life was writing when it was killed.
    rest = tmp_path / "group-0" / ".unfinished-abc"
    rest.write_bytes(b"half of it")
    bound(tmp_path).publish(own(step=3))
    assert reader.fetch(0, before).step == 3
    assert not rest.exists()


def test_an_emptied_directory_begins_anew(tmp_path):
    writer, reader = bound(tmp_path), bound(tmp_path, 1)
    for step in range(3):
        writer.publish(own(step=step))
    before = reader.fetch(0, None)
    for name in files(tmp_path):
        (tmp_path / "group-0" / name).unlink()
    bound(tmp_path).publish(own(step=8))
    assert reader.fetch(0, before).step == 8


def test_a_late_listing_does_not_go_back_in_time(tmp_path):
    writer, reader = bound(tmp_path), bound(tmp_path, 1)
    for step in range(2):
        writer.publish(own(step=step))
    before = reader.fetch(0, None)
    newest(tmp_path).unlink()
    assert reader.fetch(0, before) is None


def test_what_cannot_be_opened_is_skipped(tmp_path):
    writer, reader = bound(tmp_path), bound(tmp_path, 1)
    writer.publish(own(step=10))
    strange = tmp_path / "group-0" / "checkpoint-00000009-step-90.npz"
    strange.mkdir()
    assert reader.fetch(0, None).step == 10


def test_damaged_files_are_skipped_once_and_told(tmp_path, caplog):
    writer, reader = bound(tmp_path), bound(tmp_path, 1)
    writer.publish(own(step=10))
    writer.publish(own(step=20))
    path = newest(tmp_path)
    path.write_bytes(path.read_bytes()[:-100])
    with caplog.at_level(logging.WARNING, logger="absl"):
        found = reader.fetch(0, None)
        assert found.step == 10
        assert reader.fetch(0, found) is None
    assert [one for one, _ in reader.skipped] == [str(path)]
    assert len(caplog.messages) == 1
    assert f"checkpoint of group 0 that cannot be read: {path}" in caplog.text
    writer.publish(own(step=30))
    path = newest(tmp_path)
    path.write_bytes(b"")
    with pytest.raises(UnusableCheckpointError, match="step-30"):
        reader.fetch(0, found)
    writer.publish(own(step=40))
    assert reader.fetch(0, found).step == 40


def test_foreign_files_are_not_even_opened(tmp_path, caplog):
    writer, reader = bound(tmp_path), bound(tmp_path, 1)
    writer.publish(own(step=10))
    directory = tmp_path / "group-0"
    for name in (
        ".unfinished-checkpoint-00000009-step-90.npz",
        "checkpoint-00000009-step-90.npz.tmp",
        "checkpoint-00000009-step-90.pkl",
        "checkpoint-9-step-90.npz",
        "notes.txt",
    ):
        (directory / name).write_bytes(b"something else")
    (directory / "a directory").mkdir()
    with caplog.at_level(logging.WARNING, logger="absl"):
        assert reader.fetch(0, None).step == 10
    assert reader.skipped == []
    assert caplog.messages == []


def test_files_of_another_group_are_skipped(tmp_path):
    bound(tmp_path).publish(own(step=10))
    source = newest(tmp_path)
    target = tmp_path / "group-2"
    target.mkdir()
    (target / source.name).write_bytes(source.read_bytes())
    with pytest.raises(
        UnusableCheckpointError, match="checkpoint 1 of group 0"
    ):
        bound(tmp_path, 1).fetch(2, None)


def test_two_that_publish_as_one_group_are_told(tmp_path, caplog):
    one, other = bound(tmp_path), bound(tmp_path)
    with caplog.at_level(logging.WARNING, logger="absl"):
        one.publish(own(step=1))
        other.publish(own(step=2))
        assert caplog.messages == []
        one.publish(own(step=3))
    assert "Another process publishes as group 0" in caplog.text


def test_readers_see_whole_files_while_one_is_writing(tmp_path):
    writer, reader = bound(tmp_path), bound(tmp_path, 1)
    stop = threading.Event()
    values = [np.full((200, 200), k, "float32") for k in range(10)]

    def write():
        step = 0
        while not stop.is_set():
            writer.publish(own(step=step, weights=[values[step % 10]] * 3))
            step += 1

    thread = threading.Thread(target=write)
    thread.start()
    try:
        known = None
        while known is None or known.number < 30:
            try:
                found = reader.fetch(0, known)
            except PeerUnavailableError:
                continue
            if found is None:
                continue
            assert known is None or found.number > known.number
            for array in found.weights:
                np.testing.assert_array_equal(array, values[found.step % 10])
            known = found
    finally:
        stop.set()
        thread.join()
    assert reader.skipped == []


def test_any_path_that_tensorflow_serves():
    path = "ram://codistillation/run"
    bound(path).publish(own(step=4))
    assert bound(path, 1).fetch(0, None).step == 4


# Whole models.


def test_whole_models(tmp_path):
    given = model()
    exchange = SharedDirectory(tmp_path, whole_models=True)
    given.compile("adam", "mse")
    exchange.bind(Group(0, 2), given)
    weights = [np.full_like(array, 0.5) for array in snapshot(given)]
    exchange.publish(own(step=6, weights=weights))
    assert files(tmp_path) == ["checkpoint-00000001-step-6.keras"]
    # Anybody can load it, and it has no optimizer in it.
    loaded = keras.saving.load_model(newest(tmp_path))
    assert not getattr(loaded, "optimizer", None)
    assert_same(snapshot(loaded), weights)
    assert not np.array_equal(snapshot(given)[0], weights[0])

    found = bound(tmp_path, 1).fetch(0, None)
    assert found.step == 6
    assert_same(found.weights, weights)
    x = np.ones((4, 2), "float32")
    np.testing.assert_array_equal(
        found.architecture.predict(x, verbose=0), loaded.predict(x, verbose=0)
    )


def test_models_with_code_in_them_are_not_loaded(tmp_path):
    unsafe = keras.Sequential(
        [keras.Input((2,)), layers.Lambda(lambda x: x + 1)]
    )
    exchange = SharedDirectory(tmp_path, whole_models=True)
    with pytest.raises(ValueError, match="peers could not load"):
        exchange.bind(Group(2, 3), unsafe)
    header = archive.encode(own(), keras_file=archive.keras_file_of(unsafe))
    (tmp_path / "group-0").mkdir()
    path = tmp_path / "group-0" / "checkpoint-00000001-step-0.keras"
    path.write_bytes(header)
    with pytest.raises(UnusableCheckpointError, match="Keras does not load"):
        bound(tmp_path, 1).fetch(0, None)


def test_damaged_models_are_skipped(tmp_path):
    exchange = bound(tmp_path, whole_models=True)
    exchange.publish(own(step=1, weights=snapshot(model())))
    exchange.publish(own(step=2, weights=snapshot(model())))
    path = newest(tmp_path)
    content = bytearray(path.read_bytes())
    # Some of the weights, which are stored as they are.
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))
    reader = bound(tmp_path, 1)
    assert reader.fetch(0, None).step == 1
    assert "damaged" in reader.skipped[0][1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"path": ""}, "path must name a directory"),
        ({"dtype": "int4"}, "dtype must be one of.*came: 'int4'"),
        ({"dtype": "int8", "whole_models": True}, "must be 'float32' with"),
    ],
)
def test_malformed_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        SharedDirectory(**{"path": "somewhere", **arguments})


def test_a_directory_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ValueError, match="needs a directory.*file"):
        bound(tmp_path / "file")


def test_writing_is_to_a_temporary_name_first(tmp_path, monkeypatch):
    writer, reader = bound(tmp_path), bound(tmp_path, 1)
    writer.publish(own(step=10))
    monkeypatch.setattr(
        tf.io.gfile, "rename", lambda *_: (_ for _ in ()).throw(OSError("full"))
    )
    with pytest.raises(OSError, match="full"):
        writer.publish(own(step=20))
    assert reader.fetch(0, None).step == 10
