import keras
import numpy as np

from tfdist import guarded_steps


def compiled():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse")
    return model


def fit(model):
    x = np.ones([4, 1], "float32")
    return model.fit(x, x, batch_size=2, verbose=0).history["loss"]


def test_steps_of_fit_go_through_the_call():
    model, called = compiled(), []

    def call(function, *args):
        called.append(function)
        return function(*args)

    guarded_steps.guard(model, call)
    fit(model)
    fit(model)
    assert len(called) == 4
    # The function that Keras made, once.
    assert len(set(map(id, called))) == 1
    # Once more does not wrap what is wrapped.
    guarded_steps.guard(model, call)
    fit(model)
    assert len(called) == 6
    assert not isinstance(called[0], guarded_steps.GuardedFunction)


def test_what_was_made_before_is_used_and_compile_makes_it_anew():
    model, called = compiled(), []
    model.make_train_function()
    first = model.train_function

    def call(function, *args):
        called.append(function)
        return function(*args)

    guarded_steps.guard(model, call)
    fit(model)
    assert called == [first] * 2
    model.compile(optimizer="adam", loss="mse")
    guarded_steps.guard(model, call)
    fit(model)
    assert called[-1] is not first
