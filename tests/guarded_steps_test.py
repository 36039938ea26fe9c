import keras
import numpy as np
import pytest

from tfdist import guarded_steps
from tfdist.runtime.keras_hooks import data_hooks


def compiled():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse")
    return model


def fit(model, **arguments):
    x = np.ones([4, 1], "float32")
    model.fit(x, x, batch_size=2, verbose=0, **arguments)


def guarded_by(model, name, called):
    """Guards the steps of a model; the call notes the name and function."""

    def call(function, *args):
        called.append((name, function))
        return function(*args)

    guarded_steps.guard(model, call)


def test_steps_of_fit_go_through_the_call_of_that_fit():
    model, called = compiled(), []
    guarded_by(model, "first", called)
    fit(model)
    guarded_by(model, "second", called)
    fit(model)
    names, functions = zip(*called, strict=True)
    assert names == ("first", "first", "second", "second")
    # The function that Keras made, once.
    assert len(set(map(id, functions))) == 1
    assert not isinstance(functions[0], guarded_steps.GuardedFunction)


class MakesAgain(keras.callbacks.Callback):
    """Has Keras make the training step again."""

    def on_train_begin(self, logs=None):
        self.model.make_train_function(force=True)

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            self.model.compile(optimizer="sgd", loss="mse")
            self.model.make_train_function()


def test_what_is_made_before_within_and_after_fit_is_guarded():
    model, called = compiled(), []
    model.make_train_function()
    first = model.train_function
    guarded_by(model, "first", called)
    fit(model)
    assert [function for _, function in called] == [first] * 2
    fit(model, epochs=2, callbacks=[MakesAgain()])
    assert len(called) == 6
    assert len({id(function) for _, function in called}) == 3
    model.compile(optimizer="adam", loss="mse")
    guarded_by(model, "second", called)
    fit(model)
    assert [name for name, _ in called[6:]] == ["second"] * 2
    assert len({id(function) for _, function in called}) == 4


def test_a_repeated_call_of_train_on_batch_has_its_batch_again():
    model = compiled()

    def twice(function, *args):
        function(*args)
        return function(*args)

    guarded_steps.guard(model, twice)
    x = np.ones([4, 1], "float32")
    assert model.train_on_batch(x, x) >= 0
    assert int(model.optimizer.iterations) == 2


@pytest.mark.nightly
def test_steps_of_evaluations_and_predictions_go_through_theirs():
    """Of batches of their own they can be made again."""
    model, called = compiled(), []
    x = np.ones([4, 1], "float32")

    def evaluate(function, *args):
        called.append("evaluate")
        return function(*args)

    def predict(function, *args):
        called.append("predict")
        function(*args)
        return function(*args)

    for _ in range(2):
        guarded_steps.guard_looks(model, evaluate, predict)
        model.evaluate(x, x, batch_size=2, verbose=0)
        np.testing.assert_array_equal(
            model.predict(x, batch_size=2, verbose=0), model(x)
        )
    fit(model, validation_data=(x, x))
    rounds = (["evaluate"] * 2 + ["predict"] * 2) * 2
    assert called == [*rounds, "evaluate", "evaluate"]


def test_a_step_of_evaluation_that_was_made_again_is_said(caplog):
    def call(function, *args):
        function(*args)
        return function(*args)

    taken = iter([1, 2])
    assert data_hooks._evaluate(call, next, taken) == 2
    assert "are left out of it" in caplog.text
