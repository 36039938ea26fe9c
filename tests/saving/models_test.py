"""A model is saved by the chief alone, and its file is whole."""

import copy
import os
import pathlib
import pickle

import keras
import numpy as np
import pytest

from tests import nightly
from tests.saving import clusters
from tfdist import codistillation
from tfdist import placement
from tfdist.saving import files as files_lib
from tfdist.saving import models


def build():
    """A small compiled model."""
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(2)])
    model.compile("adam", "mse")
    return model


def seen(files, model=None):
    """A model that follows the rule of `files`."""
    model = model or build()
    models.see(model, files)
    return model


_WAYS = {
    "save": lambda model, path: model.save(path / "a.keras"),
    "by keyword": lambda model, path: model.save(filepath=path / "a.keras"),
    "directory": lambda model, path: model.save(path / "a", zipped=False),
    "hdf5": lambda model, path: model.save(str(path / "a.h5")),
    "save_weights": lambda model, path: model.save_weights(
        path / "a.weights.h5"
    ),
    "export": lambda model, path: model.export(path / "a", verbose=False),
}


@pytest.mark.parametrize(
    "way",
    nightly.also([way for way in _WAYS if way != "export"], ["export"]),
)
def test_another_than_the_chief_writes_but_its_own_files(tmp_path, way, capsys):
    files = clusters.files_of()
    model = seen(files)
    for _ in range(3):
        _WAYS[way](model, tmp_path)
    assert not os.listdir(tmp_path)
    lines = capsys.readouterr().out.splitlines()
    (said,) = [line for line in lines if "left to the chief" in line]
    assert "model." in said and str(tmp_path) in said
    assert "strategy.own_files()" in said
    with files.own():
        _WAYS[way](model, tmp_path)
    (written,) = os.listdir(tmp_path)
    assert written.startswith("a")
    os.rename(tmp_path / written, tmp_path / "before")
    _WAYS[way](model, tmp_path)
    assert os.listdir(tmp_path) == ["before"]


def test_an_evaluator_leaves_it_to_the_chief_as_well(tmp_path):
    model = seen(clusters.files_of("evaluator", 0))
    for way in ("save", "export"):
        _WAYS[way](model, tmp_path)
    assert not os.listdir(tmp_path)


class Fails(keras.layers.Layer):
    """A layer that cannot be saved when told so."""

    fails = False

    def build(self, input_shape):
        """Makes a weight, or nothing would be saved."""
        self.weight = self.add_weight(shape=())
        self.built = True

    def call(self, inputs):
        """Returns the input."""
        return inputs

    def save_own_variables(self, store):
        """Fails in the middle of a file of weights."""
        if self.fails:
            raise RuntimeError("in the middle")
        super().save_own_variables(store)

    def get_config(self):
        """Fails in the middle of a file of a model."""
        if self.fails:
            raise RuntimeError("in the middle")
        return super().get_config()


@pytest.mark.parametrize("ending", [".keras", ".weights.h5", ".h5"])
def test_a_save_that_fails_leaves_the_file_before(tmp_path, ending):
    layer = Fails()
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(2), layer])
    models.see(model, clusters.chief())
    path = tmp_path / f"a{ending}"
    save = model.save_weights if "weights" in ending else model.save
    save(path)
    before = path.read_bytes()
    layer.fails = True
    with pytest.raises(RuntimeError, match="in the middle"):
        save(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == [path.name]


def test_it_is_seen_as_what_it_was(tmp_path):
    plain = build()
    model = seen(clusters.chief())
    model.set_weights(plain.get_weights())
    model.save(tmp_path / "a.keras")
    loaded = keras.models.load_model(tmp_path / "a.keras")
    for one in (
        loaded,
        pickle.loads(pickle.dumps(model)),
        copy.deepcopy(model),
        keras.models.clone_model(model),
    ):
        assert type(one) is keras.Sequential is model.__class__
    for one, other in zip(
        loaded.get_weights(), plain.get_weights(), strict=True
    ):
        np.testing.assert_array_equal(one, other)
    assert isinstance(model, keras.Sequential)


def test_a_worker_can_copy_a_model_that_it_cannot_save():
    model = seen(clusters.files_of())
    assert type(pickle.loads(pickle.dumps(model))) is keras.Sequential


@pytest.mark.parametrize("first", ["placed", "seen"])
def test_placed_models(tmp_path, first):
    model = build()
    if first == "seen":
        seen(clusters.chief(), model)
    placement.place(model, {"dense*": "CPU:0"})
    files = clusters.files_of()
    seen(files, model).save(tmp_path / "a.keras")
    assert not os.listdir(tmp_path)
    seen(clusters.chief(), model).save(tmp_path / "a.keras")
    loaded = keras.models.load_model(tmp_path / "a.keras")
    assert type(loaded) is keras.Sequential
    assert os.listdir(tmp_path) == ["a.keras"]


def test_codistilled_models(tmp_path):
    student = build()
    model = codistillation.Codistilled(student, burn_in_steps=1)
    model.compile("adam", "mse")
    for one in (student, model):
        models.see(one, clusters.chief())
    model.save(tmp_path / "a.keras")
    model.save_weights(tmp_path / "a.weights.h5")
    assert sorted(os.listdir(tmp_path)) == ["a.keras", "a.weights.h5"]
    assert type(keras.models.load_model(tmp_path / "a.keras")) is type(build())


class WritesMore(keras.Sequential):
    """A model whose `save` writes two files."""

    def save(self, filepath, overwrite=True):
        """Writes the second beside the first."""
        super().save(filepath, overwrite=overwrite)
        pathlib.Path(f"{filepath}.txt").write_text("more")


@pytest.mark.nightly
def test_a_save_of_the_users_own_gets_the_path_that_was_given(tmp_path):
    model = WritesMore([keras.Input([3]), keras.layers.Dense(2)])
    seen(clusters.files_of(), model).save(tmp_path / "a.keras")
    assert not os.listdir(tmp_path)
    seen(clusters.chief(), model).save(tmp_path / "a.keras")
    assert sorted(os.listdir(tmp_path)) == ["a.keras", "a.keras.txt"]


def test_a_file_that_only_the_chief_has_is_missed_with_a_word_of_it(tmp_path):
    path = tmp_path / "a.weights.h5"
    for files in (clusters.files_of(), files_lib.Unshared()):
        model = seen(files)
        with pytest.raises(FileNotFoundError) as raised:
            model.load_weights(path)
        is_said = "`strategy.barrier()` after saving" in str(raised.value)
        assert is_said == files.is_shared
        with files.own():
            model.save_weights(path)
        model.load_weights(path)
        path.unlink()
