"""Checkpoints in a directory: whole or not at all, and nobody else's."""

import logging
import pathlib
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.codistillation.checkpoints import WEIGHTS
from tests.codistillation.checkpoints import assert_same
from tests.codistillation.checkpoints import own
from tfdist.codistillation import Group
from tfdist.codistillation import PeerUnavailableError
from tfdist.codistillation import SharedDirectory
from tfdist.codistillation import UnusableCheckpointError
from tfdist.codistillation import archive
from tfdist.codistillation.weights import snapshot

layers = keras.layers


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


def files(path, group=0):
    directory = pathlib.Path(path) / f"group-{group}"
    return sorted(one.name for one in directory.iterdir())


def newest(path, group=0):
    return pathlib.Path(path) / f"group-{group}" / files(path, group)[-1]


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


def test_a_late_listing_makes_no_number_twice(tmp_path, monkeypatch, caplog):
    writer = bound(tmp_path)
    writer.publish(own(step=1))
    late = tf.io.gfile.listdir(str(tmp_path / "group-0"))
    writer.publish(own(step=2))
    with monkeypatch.context() as patched:
        patched.setattr(tf.io.gfile, "listdir", lambda path: late)
        writer.publish(own(step=3))
    assert [name[:19] for name in files(tmp_path)] == [
        f"checkpoint-0000000{number}" for number in (1, 2, 3)
    ]
    assert "Another process publishes" not in caplog.text


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


@pytest.mark.parametrize("mode", ["int", "tf_idf"])
def test_whole_models_have_their_adapted_vocabularies(mode, tmp_path):
    lookup = layers.TextVectorization(output_mode=mode)
    lookup.adapt(["a", "b b"])
    last = layers.Embedding(4, 1) if mode == "int" else layers.Dense(1)
    given = keras.Sequential([keras.Input((), dtype="string"), lookup, last])
    exchange = SharedDirectory(tmp_path, whole_models=True)
    exchange.bind(Group(0, 2), given)
    exchange.publish(own(weights=snapshot(given)))
    found = bound(tmp_path, 1).fetch(0, None).architecture
    words = tf.constant(["b a", "c"])
    np.testing.assert_array_equal(found(words), given(words))


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
        ({"path": ""}, "`path` must be a path"),
        ({"dtype": "int4"}, "`dtype` must be one of.*Received: dtype='int4'"),
        ({"dtype": "int8", "whole_models": True}, "must be 'float32' with"),
    ],
)
def test_malformed_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        SharedDirectory(**{"path": "somewhere", **arguments})


def test_a_directory_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ValueError, match="must name a directory .*file"):
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
    assert files(tmp_path) == ["checkpoint-00000001-step-10.npz"]
