"""Models of calls of `fit` that a restarted process leaves out."""

import re

import keras
import numpy as np
import pytest

from tests.sandblaster import tasks
from tests.sandblaster.fits import fit
from tests.sandblaster.fits import later_call_under_way
from tests.sandblaster.fits import small_model
import tfdist
from tfdist.program_error import ProgramError
from tfdist.saving import files

pytestmark = pytest.mark.usefixtures("float64")


@pytest.fixture
def left_out(alone):
    """A model whose call is left out, before that of another one."""
    model, other = tasks.make_model(alone), tasks.make_model(alone)
    with later_call_under_way(alone):
        fit(model, 2)
    fit(other, 1)
    return model


def test_a_model_left_out_before_another_is_not_saved(
    left_out, tmp_path, caplog
):
    path = tmp_path / "model.keras"
    path.write_text("what the process before has saved")
    caplog.clear()
    for _ in range(2):
        left_out.evaluate(*tasks.data(), verbose=0)
        left_out.predict(tasks.data()[0], verbose=0)
        left_out.save(path)
    assert path.read_text() == "what the process before has saved"
    assert f"model.save of {path} is left out" in caplog.text
    # Once for a model.
    told = f"Model {left_out.name!r} has the weights that it had before call 1"
    assert caplog.text.count(told) == 1


@pytest.mark.nightly
def test_a_model_that_takes_part_in_a_call_is_saved(alone, tmp_path):
    """Also beside one that is left out after it."""
    trained, model = tasks.make_model(alone), tasks.make_model(alone)
    fit(trained, 1)
    with later_call_under_way(alone):
        fit(model, 2)
    trained.evaluate(*tasks.data(), verbose=0)
    trained.save(tmp_path / "model.keras")
    keras.models.load_model(tmp_path / "model.keras")


def test_a_new_call_with_untrained_weights_is_refused(left_out, tmp_path):
    path = tmp_path / "model.keras"
    with pytest.raises(ProgramError, match=r"call 3 of `fit`.*left out.*1"):
        fit(left_out, 1)
    left_out.save(path)
    assert not path.exists()


@pytest.mark.nightly
@pytest.mark.parametrize("add", [1, 0])
def test_weights_that_were_set_are_trained_further(
    left_out, tmp_path, caplog, add
):
    """Also those that the model was made with."""
    path = tmp_path / "model.keras"
    left_out.set_weights([w + add for w in left_out.get_weights()])
    caplog.clear()
    left_out.evaluate(*tasks.data(), verbose=0)
    assert not caplog.text
    fit(left_out, 1)
    assert "cannot be known here" in caplog.text
    left_out.save(path)
    keras.models.load_model(path)


@pytest.mark.nightly
def test_weights_that_were_set_are_saved(left_out, tmp_path):
    """Without a `fit` after them."""
    path = tmp_path / "model.keras"
    left_out.set_weights(left_out.get_weights())
    left_out.evaluate(*tasks.data(), verbose=0)
    left_out.save(path)
    keras.models.load_model(path)


def unbuilt_model(strategy):
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile(tfdist.sandblaster.LBFGS(), "mse")
    return model


@pytest.mark.nightly
@pytest.mark.parametrize("is_built", [False, True])
def test_layers_that_another_model_trains_are_saved(alone, tmp_path, is_built):
    path = tmp_path / "model.weights.h5"
    model = unbuilt_model(alone)
    if is_built:
        model.build((None, tasks.FEATURES))
    with later_call_under_way(alone):
        fit(model, 2)
    model.save_weights(path)
    assert not path.exists()
    fit(small_model(alone, *model.layers), 1)
    trained = model.get_weights()
    model.save_weights(path)
    model.set_weights([0 * w for w in trained])
    model.load_weights(path)
    for found, expected in zip(model.get_weights(), trained, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_a_model_that_a_left_out_call_builds_is_not_saved(
    alone, tmp_path, monkeypatch
):
    """On a chief beside which other tasks run."""
    shared = files.Files(alone.cluster)
    for one in (alone.extended, alone._training.left_out):
        monkeypatch.setattr(one, "_files", shared)
    model = unbuilt_model(alone)
    with later_call_under_way(alone):
        fit(model, 2)
    path = tmp_path / "model.weights.h5"
    model.save_weights(path)
    assert not path.exists()


@pytest.mark.nightly
def test_a_refusal_names_what_lets_equal_weights_pass(left_out):
    """Assignments of the values that are there leave no trace."""
    for variable in left_out.weights:
        variable.assign(variable)
    way_out = "model.set_weights(model.get_weights())"
    with pytest.raises(ProgramError, match=re.escape(way_out)):
        fit(left_out, 1)
    left_out.set_weights(left_out.get_weights())
    fit(left_out, 1)


@pytest.mark.nightly
def test_a_left_out_call_without_epochs_has_trained_nothing(alone, tmp_path):
    model, other = tasks.make_model(alone), tasks.make_model(alone)
    with later_call_under_way(alone):
        fit(model, 2, initial_epoch=2)
    fit(other, 1)
    model.save(tmp_path / "model.keras")
    keras.models.load_model(tmp_path / "model.keras")
    fit(model, 1)


@pytest.mark.nightly
def test_a_left_out_call_without_epochs_leaves_an_earlier_one_left_out(alone):
    model = tasks.make_model(alone)
    with later_call_under_way(alone):
        fit(model, 2)
        fit(model, 0)
    with pytest.raises(ProgramError, match=r"left out call 1 of `fit`"):
        fit(model, 1)


@pytest.mark.nightly
def test_untrained_weights_of_a_model_that_was_not_built_are_refused(alone):
    """The call that was left out has built it."""
    model = unbuilt_model(alone)
    with later_call_under_way(alone):
        fit(model, 2)
    fit(small_model(alone, keras.layers.Dense(1)), 1)
    with pytest.raises(ProgramError, match=r"left out call 1 of `fit`"):
        fit(model, 1)
