"""Models of calls of `fit` that a restarted process leaves out."""

import keras
import pytest

from tests.sandblaster import tasks
from tests.sandblaster.fits import fit
from tests.sandblaster.fits import later_call_under_way
from tests.sandblaster.fits import small_model
import tfdist
from tfdist.program_error import ProgramError

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
    told = f"Model {left_out.name!r} has not been trained"
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
def test_a_model_that_was_not_built_is_trained_with_a_warning(alone, caplog):
    with alone.scope():
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile(tfdist.sandblaster.LBFGS(), "mse")
    with later_call_under_way(alone):
        fit(model, 2)
    fit(small_model(alone, keras.layers.Dense(1)), 1)
    fit(model, 1)
    assert "cannot be known here" in caplog.text
