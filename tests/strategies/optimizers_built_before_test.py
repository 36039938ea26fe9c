"""The optimizer of a model with a `train_step` of its own, built before it.

By a `BackupAndRestore`, which restores its slots, and by a worker that comes
back to a call of `fit` that the others have ended.
"""

import types

import keras
import numpy as np
import pytest

from tests import nightly
from tests.strategies.twins import assert_same
import tfdist
from tfdist import private_keras
from tfdist.cluster import fit_progress
from tfdist.runtime.keras_hooks import fit_call
from tfdist.runtime.variables.variables import plain_name
from tfdist.saving import callbacks


def _all_of(model):
    return [v.numpy() for v in model.weights + model.optimizer.variables]


def _with_own_step():
    """A functional model: its layers are built, its optimizer is not."""

    class Own(keras.Model):
        def train_step(self, data):
            return super().train_step(data)

    x = keras.Input([1])
    model = Own(x, keras.layers.Dense(2)(x))
    model.compile("adam", "mse")
    return model


@pytest.mark.parametrize(
    "strategy", nightly.also([tfdist.AllReduceStrategy], [tfdist.AsyncStrategy])
)
def test_a_backup_is_restored_with_the_slots_of_the_optimizer(
    strategy, tmp_path
):
    saved = _with_own_step()
    saved.optimizer.build(saved.trainable_variables)
    for variable in saved.optimizer.variables[2:]:
        variable.assign(variable + 3.0)
    saved.optimizer.iterations.assign(5)
    backup = keras.callbacks.BackupAndRestore(tmp_path, delete_checkpoint=False)
    backup.set_model(saved)
    backup.on_epoch_end(0)
    with strategy().scope():
        model = _with_own_step()
    data = np.ones([4, 1]), np.ones([4, 2])
    backup = keras.callbacks.BackupAndRestore(tmp_path, delete_checkpoint=False)
    assert not model.fit(*data, verbose=0, callbacks=backup).history
    assert_same(_all_of(model), _all_of(saved))
    found = model.fit(*data, epochs=2, verbose=0, callbacks=backup)
    assert found.epoch == [1]
    assert int(model.optimizer.iterations) == 6


@pytest.mark.parametrize("finds", [False, True])
def test_the_optimizer_of_compile_is_built_whether_there_is_a_backup(
    finds, tmp_path
):
    """Of all workers, or one that is started again has other numbers."""
    with tfdist.AsyncStrategy().scope():
        model = _with_own_step()
        model.other_optimizer = keras.optimizers.SGD()
    backup = keras.callbacks.BackupAndRestore(tmp_path)
    callbacks.see_backups(backup)
    backup.set_model(model)
    if finds:
        backup.on_epoch_end(0)
    backup.on_train_begin()
    assert model.optimizer.built


def _with_several():
    """A model whose layers have optimizers of their own, in a wrapper."""
    parts = {".*kernel": keras.optimizers.SGD(0.5, momentum=0.5)}
    parts = keras.optimizers.OptimizerMap(keras.optimizers.Adam(0.25), parts)
    model = _with_own_step()
    model.compile(keras.optimizers.MultiOptimizer(parts), "mse")
    return model


@pytest.mark.parametrize("has_others", [False, True])
def test_a_wrapper_of_several_is_one_optimizer(has_others, tmp_path):
    with tfdist.AsyncStrategy().scope():
        model = _with_several()
        if has_others:
            model.other = keras.optimizers.SGD(0.125)
    assert fit_call.makes_all_when_built(model) != has_others
    backup = keras.callbacks.BackupAndRestore(tmp_path)
    callbacks.see_backups(backup)
    backup.set_model(model)
    backup.on_train_begin()
    assert model.optimizer.built
    call = fit_call.FitCall(types.SimpleNamespace(f_locals={"self": model}), 1)
    call.find_rates()
    # The chief's rates are told in this order.
    assert call.own_rates() == (0.125,) * has_others + (0.5, 0.25)


@pytest.mark.nightly
def test_a_wrapper_of_several_makes_in_a_step_what_it_does_when_built():
    """A worker that comes back and passes a call makes them without a step."""
    made = []
    for is_passed in (False, True):
        strategy = tfdist.AsyncStrategy()
        with strategy.scope():
            model = _with_several()
            if is_passed:
                fit_call.build_optimizer(model)
            else:
                model.train_on_batch(np.ones([4, 1]), np.ones([4, 2]))
        variables = [*model.variables, *model.optimizer.variables]
        made.append(
            {
                v.value.ordinal: (plain_name(v.value.name), v.shape)
                for v in variables
                if v.name not in ("total", "count")
            }
        )
    assert made[0] == made[1]


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["several", "averages"])
def test_a_call_that_is_over_needs_no_optimizer(kind, monkeypatch):
    """At its end Keras asks for averages, of the wrapped optimizers, too."""
    strategy = tfdist.AsyncStrategy()
    with strategy.scope():
        model = _with_several() if kind == "several" else _with_own_step()
        if kind == "averages":
            model.compile(keras.optimizers.Adam(use_ema=True), "mse")
        model.other = keras.optimizers.SGD()
    data = np.ones([4, 1]), np.ones([4, 2])

    def leave_out_all(size, skips):
        fit_call.build_optimizer(model)
        private_keras.set_initial_epoch(model, fit_progress.OVER[0])
        return 2, 0

    decisions = strategy._runtime.chief_decisions
    monkeypatch.setattr(decisions, "begin_data", leave_out_all)
    assert not model.fit(*data, epochs=2, verbose=0).history
    assert not model.optimizer.built
    monkeypatch.undo()
    private_keras.set_initial_epoch(model, None)
    model.fit(*data, epochs=2, verbose=0)
    assert int(model.optimizer.iterations) == 2
    if kind == "averages":
        averages = model.optimizer._model_variables_moving_average
        assert_same(model.trainable_variables, averages)


@pytest.mark.nightly
def test_a_model_with_a_head_that_is_not_built_is_not_built(tmp_path, caplog):
    class Own(keras.Model):
        def __init__(self, *args):
            super().__init__(*args)
            self.head = keras.layers.Dense(2)
            # It has nothing to build, and only a step would call it.
            self.augmentation = keras.Sequential([keras.layers.RandomFlip()])
            self.evaluated = 0

        def train_step(self, data):
            return super().train_step(data)

        def test_step(self, data):
            self.head(data[0])
            return super().test_step(data)

        def evaluate(self, *args, **kwargs):
            self.evaluated += 1
            return super().evaluate(*args, **kwargs)

    data = np.ones([4, 1]), np.ones([4, 2])
    with tfdist.AsyncStrategy().scope():
        x = keras.Input([1])
        model = Own(x, keras.layers.Dense(2)(x))
        model.compile("adam", "mse")
    assert model.built and not fit_call.makes_all_when_built(model)
    backup = keras.callbacks.BackupAndRestore(tmp_path)
    callbacks.see_backups(backup)
    backup.set_model(model)
    backup.on_train_begin()
    assert f"are: ['{model.head.name}']" in caplog.text
    assert not model.optimizer.built
    # Those that no step has built are not in the file.
    backup.on_epoch_end(0)
    backup.on_train_begin()
    assert model.optimizer.built
    tfdist.SidecarEvaluator(model, data, verbose=0).start()
    assert "in the order of its `test_step`" in caplog.text
    # First to build it, then what it has pulled.
    assert model.evaluated == 2
    assert fit_call.makes_all_when_built(model)
