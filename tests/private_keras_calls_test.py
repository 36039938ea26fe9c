"""Canaries: the call stack of Keras has what tfdist reads, or it raises.

Where one fails, Keras has changed; the docstrings of
`tfdist.private_keras_calls` say what its functions are for.
"""

import functools
import pathlib
import sys
import weakref

import keras
import pytest
import tensorflow as tf

from tests import private_keras_calls_data_test
from tests import private_names
from tests.one_layer import X
from tests.one_layer import Y
from tests.one_layer import build
from tests.one_layer import model
from tests.one_layer import strategy
import tfdist
from tfdist import private_keras_calls
from tfdist import private_tensorflow

__all__ = ["model", "strategy"]


def test_every_look_has_a_canary():
    files = __file__, private_keras_calls_data_test.__file__
    assert not private_names.without_a_canary(private_keras_calls, *files)


def test_this_keras_is_known():
    private_keras_calls.check.cache_clear()
    private_keras_calls.check()


RENAMED = {
    "a local variable of fit": (
        "_VARIABLES",
        {"fit": ("epoch_iterator", "gone")},
        "the local variable `gone` of `keras.Model.fit`",
    ),
    "a method": (
        "_VARIABLES",
        {"gone": ("callbacks",)},
        "the local variable `callbacks` of `keras.Model.gone`",
    ),
    "the call that builds": ("_BUILDS", "_gone", "`keras.Model._gone`"),
    "the call for shapes": (
        "_COMPUTES_SHAPES",
        "_gone",
        "`keras.Layer._gone`, which calls Keras's function of that name",
    ),
}


@pytest.mark.parametrize("renamed", RENAMED)
def test_a_strategy_refuses_a_keras_without(renamed, monkeypatch):
    private_names.check_refusal(
        monkeypatch, private_keras_calls, *RENAMED[renamed]
    )


def test_a_keras_that_is_too_old_is_refused(monkeypatch):
    monkeypatch.setattr(private_keras_calls, "_VERSION", (3, 11))
    private_keras_calls.check.cache_clear()
    with pytest.raises(RuntimeError, match=r"needs Keras 3\.12 or newer"):
        tfdist.AllReduceStrategy()
    setup = pathlib.Path(__file__).parents[1] / "setup.py"
    assert '"keras>=3.12,' in setup.read_text("utf-8")


def test_a_fit_that_keeps_its_callbacks_elsewhere_is_refused(monkeypatch):
    def fit(self, callbacks, steps_per_epoch):
        epoch_iterator, begin_step = callbacks, steps_per_epoch
        return epoch_iterator, begin_step

    fit.__module__ = "keras.src.backend.tensorflow.trainer"
    monkeypatch.setattr(keras.Model, "fit", fit, raising=False)
    private_keras_calls.check.cache_clear()
    with pytest.raises(RuntimeError, match=r"`callbacks = ...` in .*Model.fit"):
        private_keras_calls.check()


def test_a_tool_around_fit_is_looked_through(monkeypatch):
    monkeypatch.setattr(
        keras.Model, "fit", lambda *args, **kwargs: None, raising=False
    )
    private_keras_calls.check.cache_clear()
    private_keras_calls.check()


@pytest.mark.parametrize("makes_block", [False, True])
def test_a_call_for_shapes_is_told_from_others(makes_block):
    """Of a model with an input, and of a layer of layers without `build`."""
    seen = []

    class Looks(keras.layers.Layer):
        def call(self, x):
            seen.append(private_keras_calls.is_computing_shapes())
            return x

    class Block(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.inner = [Looks(), keras.layers.Dense(1)]

        def call(self, x):
            for layer in self.inner:
                x = layer(x)
            return x

    layer = Block() if makes_block else Looks()
    if not makes_block:
        layer(keras.Input([1]))
    tf.function(lambda x: layer(x))(tf.ones([1, 1]))
    assert seen[0]
    assert seen[1:] and not any(seen[1:])


def test_the_first_step_of_an_epoch_is_known(model):
    seen = []

    class Looks(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            seen.append(private_keras_calls.is_first_step_of_epoch())

    looks = [Looks()]
    model.fit(X, Y, batch_size=4, epochs=2, callbacks=looks, verbose=0)
    assert seen == [True, False, True, False]
    assert not private_keras_calls.is_first_step_of_epoch()


def test_the_epoch_the_first_one_and_their_number_are_known(model):
    seen = []

    class Looks(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            frame = private_keras_calls.current_frame()
            while frame.f_code.co_name != "fit":
                frame = frame.f_back
            seen.append(
                (
                    private_keras_calls.initial_epoch_of(frame),
                    private_keras_calls.epoch_of(frame),
                    private_keras_calls.epochs_of(frame),
                )
            )

    looks = [Looks()]
    model.fit(X, Y, initial_epoch=1, epochs=3, callbacks=looks, verbose=0)
    assert sorted(set(seen)) == [(1, 1, 3), (1, 2, 3)]


def test_the_epoch_is_that_of_a_fit_of_keras_alone(model):
    class Own(keras.Model):
        def fit(self, x):
            epoch = 1
            return epoch, private_keras_calls.keras_epoch()

    seen = []
    look = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: seen.append(
            private_keras_calls.keras_epoch()
        )
    )
    model.fit(X, Y, epochs=2, callbacks=[look], verbose=0)
    assert seen == [0, 1]
    assert Own().fit(X) == (1, None)
    assert private_keras_calls.keras_epoch() is None


def test_it_is_known_whether_a_call_has_epochs(model):
    seen = []

    class Looks(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            frame = private_keras_calls.current_frame()
            while frame.f_code.co_name != "fit":
                frame = frame.f_back
            seen.append(private_keras_calls.has_epochs(frame))

    for first, end in ((0, 1), (2, 2), (3, 2)):
        model.fit(
            X,
            Y,
            initial_epoch=first,
            epochs=end,
            callbacks=[Looks()],
            verbose=0,
        )
    assert seen == [True, False, False]


def test_it_is_known_whether_fit_has_come_to_an_epoch(model):
    seen = []

    class Looks(keras.callbacks.Callback):
        def look(self, *args, **kwargs):
            frame = private_keras_calls.current_frame()
            while frame.f_code.co_name != "fit":
                frame = frame.f_back
            seen.append(private_keras_calls.is_before_epochs(frame))

        on_train_begin = on_epoch_begin = on_train_end = look

    model.fit(X, Y, epochs=2, callbacks=[Looks()], verbose=0)
    assert seen == [True, False, False, False]


def test_the_fit_under_way_is_found(model):
    seen = []

    class Looks(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            seen.append(private_keras_calls.fit_under_way())

    model.fit(X, Y, callbacks=[Looks()], verbose=0)
    assert private_keras_calls.model_of(seen[0]) is model
    assert private_keras_calls.fit_under_way() is None


def test_the_iterator_of_the_fit_under_way_is_found(model):
    seen = []

    class Looks(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            seen.append(private_keras_calls.epoch_iterator())

    model.fit(X, Y, callbacks=[Looks()], verbose=0)
    assert seen[0].data_adapter.num_batches == 1
    assert private_keras_calls.epoch_iterator() is None


def test_the_model_that_is_being_compiled_is_found():
    seen = []

    class Looks(keras.Sequential):
        # `compile` sets it.
        @property
        def optimizer(self):
            return None

        @optimizer.setter
        def optimizer(self, value):
            seen.append(private_keras_calls.compiling_model())

    model = Looks()
    model.compile("sgd", "mse")
    assert model in seen
    assert private_keras_calls.compiling_model() is None


def test_a_callback_of_keras_is_known_from_one_of_the_user_s(model):
    seen = []

    class Looks(keras.callbacks.LambdaCallback):
        def on_epoch_end(self, epoch, logs=None):
            seen.append(private_keras_calls.is_in_callback())

    looks = keras.callbacks.LearningRateScheduler(
        lambda epoch, rate: (
            seen.append(private_keras_calls.is_in_callback()) or rate
        )
    )
    model.fit(X, Y, callbacks=[Looks(), looks], verbose=0)
    # The scheduler's begins the epoch.
    assert seen == [True, False]
    assert not private_keras_calls.is_in_callback()


def test_callbacks_and_loops_are_found(model):
    seen = []

    class Looks(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            self.look()
            self.model.evaluate(X, Y, callbacks=[self], verbose=0)

        def on_test_batch_begin(self, batch, logs=None):
            self.look()
            if len(seen) == 2:
                self.model.predict(X, callbacks=[self], verbose=0)

        def on_predict_batch_begin(self, batch, logs=None):
            self.look()

        def look(self):
            loops = private_keras_calls.loops_from(sys._getframe())
            assert all(self in loop.callbacks for loop in loops)
            seen.append(len(loops))

    model.fit(X, Y, callbacks=[Looks()], verbose=0)
    assert seen == [1, 2, 3]
    assert private_keras_calls.loops_from(sys._getframe()) == []


def test_evaluations_and_predictions_are_found(model):
    seen = []

    class Looks(keras.callbacks.Callback):
        def look(self, *args, **kwargs):
            frame = private_keras_calls.evaluation()
            seen.append(frame and frame.f_code.co_name)

        on_train_begin = on_test_begin = on_predict_begin = look
        on_train_end = on_test_end = on_predict_end = look

    class Fits(keras.callbacks.Callback):
        def on_test_end(self, logs=None):
            self.model.fit(X, Y, callbacks=[Looks()], verbose=0)

    model.fit(X, Y, validation_data=(X, Y), callbacks=[Looks()], verbose=0)
    assert seen == [None, "evaluate", "evaluate", None]
    seen.clear()
    model.predict(X, callbacks=[Looks()], verbose=0)
    assert seen == ["predict"] * 2
    seen.clear()
    model.evaluate(X, Y, callbacks=[Fits()], verbose=0)
    assert seen == [None, None]
    assert private_keras_calls.evaluation() is None


def test_it_is_known_when_a_model_is_being_built(strategy):
    class Looks(keras.Model):
        def __init__(self):
            super().__init__()
            self.part = keras.layers.Dense(1)
            self.seen = []

        def call(self, x):
            self.seen.append(private_keras_calls.is_building_model())
            return self.part(x)

    with strategy.scope():
        model = Looks()
        model.compile("sgd", "mse")
    model.fit(X, Y, verbose=0)
    # Built first, then traced for the training step.
    assert model.seen[0]
    assert not model.seen[-1]


def test_it_is_known_what_a_step_is_of(strategy, monkeypatch):
    model, seen = build(strategy), []
    run = strategy.run

    def note(fn, *args, **kwargs):
        seen.append(private_keras_calls.step_of(fn))
        return run(fn, *args, **kwargs)

    monkeypatch.setattr(strategy, "run", note)
    model.fit(X, Y, verbose=0)
    model.evaluate(X, Y, verbose=0)
    model.predict(X, verbose=0)
    assert set(seen) == {(model, x) for x in ("train", "test", "predict")}
    assert private_keras_calls.step_of(build) == (None, None)


def _passed_on(method):
    @functools.wraps(method)
    def wrapper(*args):
        return method(*args)

    return wrapper


@pytest.mark.parametrize(
    "decorate",
    [tf.function, _passed_on, lambda method: tf.function(_passed_on(method))],
    ids=["tf.function", "wraps", "both"],
)
def test_it_is_known_what_a_decorated_step_is_of(decorate):
    class Decorated(keras.Model):
        @decorate
        def train_step(self, data):
            return {}

    model = Decorated()
    # As `Strategy.run` does in a step of Keras, where AutoGraph is off, too.
    convert = tf.__internal__.autograph.tf_convert
    context = tf.__internal__.autograph.control_status_ctx()
    off = tf.autograph.experimental.do_not_convert(
        lambda: convert(
            model.train_step, tf.__internal__.autograph.control_status_ctx()
        )
    )
    steps = [model.train_step, convert(model.train_step, context), off()]
    for step in steps:
        if isinstance(step, tf.types.experimental.PolymorphicFunction):
            steps.append(private_tensorflow.inlined(step))
        found = private_keras_calls.step_of(step)
        assert found == (model, "train")


def test_frames_are_walked_from_the_innermost_outward():
    class Looks:
        def look(self, frame=None):
            return list(private_keras_calls.frames(frame))

    looks = Looks()
    inner, outer, *_ = looks.look()
    assert outer is sys._getframe()
    assert looks.look(outer)[0] is outer
    assert private_keras_calls.self_of(inner) is looks
    assert private_keras_calls.self_of(outer) is None
    assert private_keras_calls.local_of(outer, "looks") is looks
    assert private_keras_calls.local_of(outer, "gone") is None
    assert private_keras_calls.module_of(outer) == __name__


@pytest.mark.parametrize(
    "look",
    [
        private_keras_calls.data_request,
        lambda: private_keras_calls.loops_from(None),
        private_keras_calls.evaluation,
        private_keras_calls.fit_under_way,
        private_keras_calls.compiling_model,
        private_keras_calls.is_in_callback,
        private_keras_calls.is_first_step_of_epoch,
    ],
)
def test_what_a_program_deletes_is_freed_before_its_function_ends(look):
    """Python keeps what was read of a frame: its strategy, or its model."""

    class Kept:
        pass

    kept = Kept()
    freed = weakref.ref(kept)
    look()
    del kept
    assert freed() is None


def test_a_keras_that_is_not_known_is_named_with_what_it_lacks():
    error = private_keras_calls.unknown_keras("`gone`")
    assert isinstance(error, RuntimeError)
    assert f"not support Keras {keras.version()}" in str(error)
    assert "relies on `gone`, which this version lacks" in str(error)


def test_the_frame_of_the_caller_is_found():
    assert private_keras_calls.current_frame() is sys._getframe()
