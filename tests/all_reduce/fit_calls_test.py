"""`FitCalls` without a cluster: when calls that were left end."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import nightly
from tests.all_reduce import fits
from tests.all_reduce import programs
import tfdist
from tfdist import private_keras_calls
from tfdist import running_fit
from tfdist.all_reduce import fit as fit_lib
from tfdist.all_reduce.consistency import DifferentValuesError
from tfdist.all_reduce.consistency import Moment


def test_left_calls_end_before_callbacks_of_the_next_begin():
    # Otherwise these might read a backup that the chief has yet to write.
    ended = []

    class Calls(fit_lib.FitCalls):
        def end_abandoned(self, frame=None):
            ended.append(frame)

    frame = private_keras_calls.current_frame()
    Calls(engine=None).watch(frame, running_fit.begin(frame))
    assert ended == [frame]


@pytest.mark.parametrize(
    ("callback", "acts"),
    [
        # Keras's own overrides `on_batch_end`.
        (keras.callbacks.TerminateOnNaN(), True),
        (keras.callbacks.EarlyStopping(), False),
        (keras.callbacks.ProgbarLogger(), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_callbacks_that_may_stop_between_batches_are_known(callback, acts):
    # After these, a worker that is not the chief takes its own stop back.
    assert fit_lib._acts_on_batches(callback) is acts


def test_steps_are_of_the_model_whose_step_is_any_function():
    # Else `fit` neither follows others nor tells them when to stop.
    strategy = tfdist.AllReduceStrategy()
    with strategy.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    keras_step = model.train_step
    model.train_step = lambda data: keras_step(data)
    x = np.ones([2, 1], "float32")
    model.fit(x, x, verbose=0)
    assert strategy._engine.lanes_of(model)
    assert strategy._engine.fits.model_of_step is None


@pytest.mark.nightly
def test_a_callback_that_trains_before_the_first_step_is_called_once():
    class Trains(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.model.train_on_batch(x[:2], x[:2])

    x = np.ones([8, 1], "float32")
    with tfdist.AllReduceStrategy().scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    model.fit(x, x, batch_size=2, callbacks=[Trains()], verbose=0)
    assert int(model.optimizer.iterations) == 5


@pytest.mark.parametrize(
    "strategy",
    nightly.also(
        [tfdist.AllReduceStrategy],
        [tfdist.PeerToPeerStrategy, tfdist.GossipStrategy],
    ),
)
@pytest.mark.parametrize(
    ("moment", "weight"), [(Moment.FIT, -2.0), (Moment.AFTER_FIT, -9.0)]
)
def test_layers_normalize_by_values_that_the_chief_alone_has_loaded(
    monkeypatch, strategy, moment, weight
):
    strategy = strategy()
    with strategy.scope():
        norm = keras.layers.Normalization(axis=None)
        model = programs.linear(before=[norm])
    consistency = strategy._engine.consistency
    adopt = consistency.adopt

    def adopt_chiefs(now, *args):
        chiefs = adopt(now, *args)
        if now is moment:
            norm.adapt_mean.assign(5.0)
            norm.adapt_variance.assign(4.0)
        return chiefs

    monkeypatch.setattr(consistency, "adopt", adopt_chiefs)
    model.fit(programs.batches([9.0]), verbose=0)
    assert model.get_weights()[-1].item() == weight
    assert model.predict(np.array([[7.0]]), verbose=0).item() == weight


def test_a_call_that_ends_with_different_weights_is_an_error(monkeypatch):
    strategy = tfdist.AllReduceStrategy()
    with strategy.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    compare = strategy._engine.consistency.compare

    def differ(moment, variables):
        if moment is Moment.END_OF_FIT:
            raise DifferentValuesError("kernel")
        compare(moment, variables)

    monkeypatch.setattr(strategy._engine.consistency, "compare", differ)
    x = np.ones([1, 1], "float32")
    with pytest.raises(DifferentValuesError):
        model.fit(x, x, verbose=0)


def test_workers_compare_the_epochs_with_which_a_call_begins(monkeypatch):
    # A callback may have resumed on one of them alone.
    strategy = tfdist.AllReduceStrategy()
    with strategy.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    adopted = []
    monkeypatch.setattr(
        strategy._engine.consistency,
        "adopt",
        lambda moment, _, settings, data: adopted.append((moment, settings)),
    )
    x = np.ones([1, 1], "float32")
    model.fit(x, x, initial_epoch=3, epochs=4, verbose=0)
    assert [
        (moment, "from epoch 4 on" in text) for moment, text in adopted
    ] == [
        (Moment.FIT, True),
        (Moment.STEP, False),
        (Moment.AFTER_FIT, False),
    ]


@pytest.mark.nightly
def test_epochs_end_with_the_chiefs_state_where_evaluations_assign_it(
    monkeypatch,
):
    # The chief alone may evaluate, in a callback.
    strategy = tfdist.AllReduceStrategy()
    engine, moments = strategy._engine, []
    adopt_model = engine.adopt_model

    def adopt(moment, *arguments):
        moments.append(moment)
        adopt_model(moment, *arguments)

    monkeypatch.setattr(engine, "adopt_model", adopt)
    with strategy.scope():
        layers = [keras.Input((1,)), fits.Counts(), keras.layers.Dense(1)]
        model = keras.Sequential(layers)
        model.compile("sgd", "mse")
    x = np.ones([2, 1], "float32")
    model.fit(x, x, validation_data=(x, x), verbose=0)
    assert moments == [Moment.FIT, Moment.END_OF_EPOCH, Moment.AFTER_FIT]
    assert float(layers[1].count) == 2.0


def test_what_a_step_trains_apart_from_its_model_is_shared(monkeypatch):
    """As a network that an object holds which is no layer."""
    strategy = tfdist.AllReduceStrategy()
    with strategy.scope():
        apart, optimizer = keras.Variable([1.0]), keras.optimizers.SGD(1.0)
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")

    def train_step(data):
        optimizer.apply([data[0][0]], [apart])
        return {"loss": tf.zeros([])}

    model.train_step = train_step
    x = np.ones([1, 1], "float32")
    model.fit(x, x, verbose=0)
    shared = []
    for name in ("adopt", "compare"):
        monkeypatch.setattr(
            strategy._engine.consistency,
            name,
            lambda moment, variables, *_: shared.append((moment, variables)),
        )
    model.fit(x, x, verbose=0)
    assert float(apart[0]) == -1.0
    moments, variables = zip(*shared, strict=True)
    assert moments == (Moment.FIT, Moment.END_OF_FIT, Moment.AFTER_FIT)
    for found in variables:
        assert any(variable is apart.value for variable in found)


def test_no_steps_are_followed_with_averages_of_weights(monkeypatch):
    """As those of another worker, whose `fit` has more epochs."""
    strategy = tfdist.AllReduceStrategy()
    engine, model, seen = strategy._engine, programs.averaged(strategy), []
    follow = engine.follow

    def spy(lanes, **mine):
        if mine.get("over"):
            seen.append(programs.weight_of(model))
        return follow(lanes, **mine)

    monkeypatch.setattr(engine, "follow", spy)
    model.fit(programs.batches(np.ones(2)), verbose=0)
    assert seen == [-2.0]
    assert programs.weight_of(model) == -1.5


def test_weights_that_are_set_after_the_last_step_are_told_without_one(
    monkeypatch,
):
    strategy = tfdist.AllReduceStrategy()
    engine, told = strategy._engine, []
    with strategy.scope():
        model = programs.linear()

    def set_weight(batch, logs=None):
        model.set_weights([np.ones([1, 1])])

    follow = engine.follow

    def spy(lanes, **mine):
        told.append(mine.get("wrote"))
        return follow(lanes, **mine)

    monkeypatch.setattr(engine, "follow", spy)
    # Only a call of the step finds out that the data has ended.
    model.fit(
        programs.batches(np.ones(1)).filter(lambda x, y: True),
        verbose=0,
        callbacks=[programs.on(on_train_batch_end=set_weight)],
    )
    # At the end of the epoch, behind its callbacks, and at the end of `fit`.
    assert told == [None, 1.0, None]


def test_another_worker_that_stops_before_an_epoch_loses_no_batch(monkeypatch):
    """No callback of it acts on batches; the chief decides when all stop."""
    strategy = tfdist.AllReduceStrategy()
    monkeypatch.setattr(strategy._engine, "is_chief", False)
    with strategy.scope():
        model = programs.linear()

    def stop(epoch, logs=None):
        model.stop_training = True

    model.fit(
        programs.batches(np.ones(3)),
        epochs=2,
        verbose=0,
        callbacks=[programs.on(on_epoch_begin=stop)],
    )
    # Its rate is the chief's, who is not here.
    assert int(model.optimizer.iterations) == 6
