"""Canaries: it is known what Keras asks for data for, and whose callbacks run.

As `private_keras_calls_test`, for calls of `fit`, `evaluate` and `predict`.
"""

import keras
import pytest
import tensorflow as tf

from tests import nightly
from tests.one_layer import X
from tests.one_layer import Y
from tests.one_layer import model
from tests.one_layer import strategy
from tfdist import private_keras_calls

__all__ = ["model", "strategy"]


@pytest.fixture
def requests(monkeypatch):
    """What strategies were asked for data for, a list of `DataRequest`."""
    seen, kind = [], private_keras_calls.DataRequest

    def record(purpose, call, adapter):
        seen.append(kind(purpose, call, adapter))
        return seen[-1]

    monkeypatch.setattr(private_keras_calls, "DataRequest", record)
    return seen


def test_it_is_known_what_keras_asks_for_data_for(model, requests):
    model.fit(X, Y, epochs=2, validation_data=(X, Y), verbose=0)
    model.fit(X, Y, validation_split=0.5, steps_per_epoch=1, verbose=0)
    model.evaluate(X, Y, verbose=0)
    model.predict(X, verbose=0)
    assert [request.purpose for request in requests] == [
        "train",
        "validate",
        "train",
        "validate",
        "evaluate",
        "evaluate",
    ]
    for request in requests:
        assert private_keras_calls.model_of(request.call) is model
        assert request.adapter.num_batches == 1
    steps = private_keras_calls.steps_per_epoch_of
    assert steps(requests[0].call) is None
    assert steps(requests[2].call) == 1


def test_steps_per_epoch_are_no_more_than_keras_s_maximum(
    model, requests, request
):
    request.addfinalizer(lambda: keras.config.set_max_steps_per_epoch(None))
    keras.config.set_max_steps_per_epoch(2)
    for steps in (None, 1, 3):
        model.fit(X, Y, steps_per_epoch=steps, verbose=0)
    steps = private_keras_calls.steps_per_epoch_of
    assert [steps(one.call) for one in requests] == [2, 1, 2]


@pytest.mark.nightly
def test_a_layer_with_a_fit_of_keras_s_is_known_as_a_model(strategy, requests):
    trainer = next(one for one in keras.Model.__mro__ if "fit" in vars(one))

    class Trains(trainer, keras.layers.Dense):
        def __init__(self):
            keras.layers.Dense.__init__(self, units=1)
            trainer.__init__(self)

    with strategy.scope():
        layer = Trains()
        layer.compile("sgd", "mse")
    layer.fit(X, Y, validation_data=(X, Y), verbose=0)
    layer.evaluate(X, Y, verbose=0)
    assert [request.purpose for request in requests] == [
        "train",
        "validate",
        "evaluate",
    ]


def test_an_evaluation_in_a_callback_is_a_validation(model, requests):

    class Evaluates(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.evaluate(X, Y, verbose=0)

    model.fit(X, Y, callbacks=[Evaluates()], verbose=0)
    assert [r.purpose for r in requests] == ["train", "validate"]


class OwnFit(keras.Sequential):
    """Evaluates when Keras's `fit` has returned."""

    def fit(self, *args, **kwargs):
        history = super().fit(*args, **kwargs)
        self.evaluate(X, Y, verbose=0)
        return history


class OwnLoop(keras.Sequential):
    """Evaluates while Keras has no `fit` under way."""

    def fit(self, x, y, **kwargs):
        self.train_on_batch(x, y)
        self.predict(x, verbose=0)


@pytest.mark.parametrize(
    "make, expected",
    nightly.also(
        [(OwnFit, ["train", "validate", "evaluate"])], [(OwnLoop, ["evaluate"])]
    ),
)
def test_an_evaluation_in_a_fit_of_the_user_s_is_none_within_keras_s(
    make, expected, strategy, requests
):
    with strategy.scope():
        model = make([keras.Input([3]), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    model.fit(X, Y, validation_data=(X, Y), verbose=0)
    assert [request.purpose for request in requests] == expected


def test_an_evaluation_in_the_loop_of_a_copy_of_fit_is_a_validation(
    strategy, requests
):
    class Copies(keras.Sequential):
        def fit(self, data):
            epoch_iterator = self.distribute_strategy
            self.evaluate(data, verbose=0)
            return epoch_iterator

    with strategy.scope():
        model = Copies([keras.Input([3]), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    model.fit(tf.data.Dataset.from_tensors((X, Y)))
    assert [request.purpose for request in requests] == ["validate"]


def test_data_that_the_user_asks_for_is_not_keras_s(strategy, requests):
    data = tf.data.Dataset.range(2)
    strategy.experimental_distribute_dataset(data)
    assert requests == [(None, None, None)]
    assert private_keras_calls.data_request() == (None, None, None)


def keras_model(strategy, program):
    """A model with a method that a future Keras may have."""
    names = {"__name__": "keras.src.future", "strategy": strategy}
    exec(program, names)

    class Future(keras.Model):
        pass

    for name, function in names.items():
        if callable(function) and name != "strategy":
            setattr(Future, name, function)
    with strategy.scope():
        return Future()


ASKS = "strategy.experimental_distribute_dataset(data)"


def test_data_is_not_shared_out_for_a_fit_that_is_not_known(strategy):
    model = keras_model(
        strategy,
        f"""def fit(self, data):
    epochs_of_data = {ASKS}
    validation = {ASKS}
""",
    )
    with pytest.raises(
        RuntimeError, match="variable `epoch_iterator` of `fit`"
    ):
        model.fit(tf.data.Dataset.range(4))


def test_data_is_not_shared_out_for_an_adapter_that_is_not_known(strategy):
    model = keras_model(
        strategy,
        f"""def fit(self, data, epoch_iterator=None):
    del epoch_iterator
    epoch_iterator = {ASKS}
""",
    )
    with pytest.raises(RuntimeError, match="a `data_adapter` around `fit`"):
        model.fit(tf.data.Dataset.range(4))


def test_data_is_not_shared_out_for_a_method_that_is_not_known(strategy):
    model = keras_model(strategy, f"def learn(self, data):\n    {ASKS}\n")
    with pytest.raises(
        RuntimeError, match="`predict` of a model and a `data_adap"
    ):
        model.learn(tf.data.Dataset.range(4))


def test_a_first_step_that_is_not_known_is_not_guessed(strategy):
    model = keras_model(strategy, "def fit(self, look):\n    return look()\n")
    with pytest.raises(RuntimeError, match="variable `(begin_)?step` of `fit`"):
        model.fit(private_keras_calls.is_first_step_of_epoch)


def test_callbacks_of_a_call_are_first_the_user_s_then_keras_s(
    strategy, requests
):
    seen = []

    def look():
        seen.append(private_keras_calls.callbacks_of(requests[0].call))

    class Builds(keras.layers.Dense):
        """Is built before the loop begins."""

        def build(self, input_shape):
            look()
            super().build(input_shape)

    with strategy.scope():
        model = keras.Sequential([Builds(1)])
        model.compile("sgd", "mse")
    given = [keras.callbacks.LambdaCallback(on_train_begin=lambda _: look())]
    model.fit(X, Y, callbacks=given, verbose=0)
    assert seen[0] is given
    assert isinstance(seen[-1], keras.callbacks.CallbackList)
