"""`FitCalls` without a cluster: calls that an exception has ended."""

import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import nightly
from tests.all_reduce import programs
import tfdist
from tfdist.all_reduce import tail
from tfdist.all_reduce.consistency import Moment
from tfdist.program_error import ProgramError
from tfdist.saved_state import ModelMismatchError
from tfdist.strategies import without_servers


class Expected(Exception):
    """What a callback of a test raises."""


def fail(*_, **__):
    raise Expected


def fit_that_fails(model, steps, **methods):
    """Trains on some ones, until a method of a callback raises."""
    with pytest.raises(Expected):
        model.fit(
            programs.batches(np.ones(steps)),
            verbose=0,
            callbacks=[programs.on(**methods)],
        )


def test_averages_of_an_optimizer_that_keras_does_not_know_stay_there(
    monkeypatch,
):
    """Keras puts those of the compiled one in place, which is none."""
    strategy = tfdist.AllReduceStrategy()
    # Another worker has had no exception.
    consistency = strategy._engine.consistency
    meet = consistency.meet
    monkeypatch.setattr(consistency, "meet", lambda *n: meet(*n) + 1)
    with strategy.scope():
        model = programs.linear()
        model.compile(None, "mse")
        own = keras.optimizers.SGD(1.0, use_ema=True, ema_momentum=0.5)

    def train_step(data):
        own.apply([data[0]], model.trainable_variables)
        return {"loss": tf.zeros([])}

    model.own, model.train_step = own, train_step
    fit_that_fails(model, 2, on_epoch_end=fail)
    strategy.barrier()
    assert programs.weight_of(model) == -2.0


@pytest.mark.parametrize("others_have", [False, True])
def test_after_an_exception_there_are_averages_where_others_have_them(
    monkeypatch, others_have
):
    strategy = tfdist.AllReduceStrategy()
    consistency, model = (
        strategy._engine.consistency,
        programs.averaged(strategy),
    )
    meet = consistency.meet
    monkeypatch.setattr(
        consistency, "meet", lambda *numbers: meet(*numbers) + others_have
    )

    def fail_in_second(batch, logs=None):
        if batch == 1:
            fail()

    fit_that_fails(model, 4, on_train_batch_end=fail_in_second)
    strategy.barrier()
    assert programs.weight_of(model) == (-1.5 if others_have else -2.0)


@pytest.mark.parametrize("has_failed", [True, False])
def test_where_a_worker_is_gone_who_is_left_saves_and_loads(
    monkeypatch, tmp_path, has_failed
):
    strategy = tfdist.AllReduceStrategy()
    engine = strategy._engine
    with strategy.scope():
        model = programs.linear()
    fit_that_fails(model, 2, on_train_batch_end=fail)

    def follow(*_, **__):
        raise tf.errors.UnavailableError(None, None, "task:1 is gone")

    monkeypatch.setattr(engine, "follow", follow)
    monkeypatch.setattr(engine.collectives, "has_failed", has_failed)
    if not has_failed:  # Others may still come.
        with pytest.raises(tf.errors.UnavailableError):
            model.set_weights([np.array([[3.0]])])
        return
    model.save_weights(tmp_path / "rescued.weights.h5")
    model.set_weights([np.array([[3.0]])])
    with strategy.scope():
        loaded = programs.linear()
    loaded.load_weights(tmp_path / "rescued.weights.h5")
    assert programs.weight_of(loaded) == -1.0
    assert programs.weight_of(model) == 3.0


@pytest.mark.nightly
@pytest.mark.parametrize("way", ["train_on_batch", "run", "eagerly"])
def test_steps_after_an_exception_come_after_the_end_of_its_fit(
    monkeypatch, way
):
    """Else the others would take them for steps of theirs."""
    strategy = tfdist.AllReduceStrategy()
    with strategy.scope():
        model = programs.linear()
    fit_that_fails(model, 4, on_train_batch_end=fail)
    at_end = []
    monkeypatch.setattr(
        strategy._engine,
        "note_end",
        lambda lanes: at_end.append(programs.weight_of(model)),
    )

    def step():
        model.optimizer.apply([tf.ones([1, 1])], model.trainable_variables)

    if way == "train_on_batch":
        model.train_on_batch(np.ones([1, 1]), np.ones([1, 1]))
    else:
        strategy.run(tf.function(step) if way == "run" else step)
    assert at_end == [-1.0]
    assert programs.weight_of(model) == -2.0


def test_steps_of_another_model_come_after_the_end_of_a_fit_that_raised(
    monkeypatch,
):
    """It has never been in `fit`, where Keras's step is put in our hands."""
    strategy = tfdist.AllReduceStrategy()
    with strategy.scope():
        model, other = programs.linear(), programs.linear()
    fit_that_fails(model, 2, on_train_batch_end=fail)
    engine, seen = strategy._engine, []
    monkeypatch.setattr(
        engine, "note_end", lambda lanes: seen.append(programs.weight_of(other))
    )
    other.train_on_batch(np.ones([1, 1]), np.ones([1, 1]))
    assert seen == [0.0]
    assert not engine.fits.has_abandoned
    assert programs.weight_of(other) == -1.0


@pytest.mark.parametrize("run_eagerly", [False, True])
def test_a_prediction_after_an_exception_waits_for_nobody(run_eagerly):
    """The others may go on for long, or be gone."""
    strategy = tfdist.AllReduceStrategy()
    with strategy.scope():
        model = programs.linear()
    model.run_eagerly = run_eagerly
    fit_that_fails(model, 2, on_train_batch_end=fail)
    model.predict(np.ones([1, 1]), verbose=0)
    assert strategy._engine.fits.has_abandoned


@pytest.mark.nightly
def test_an_optimizer_made_after_an_exception_is_none_of_that_fit(monkeypatch):
    """Else this worker would compare other variables than the others do."""
    strategy = tfdist.AllReduceStrategy()
    with strategy.scope():
        model = programs.linear()
    fit_that_fails(model, 2, on_train_batch_end=fail)
    first, compared = model.optimizer, []
    compare = strategy._engine.compare_model

    def spy(moment, model):
        compared.append(model.optimizer)
        compare(moment, model)

    monkeypatch.setattr(strategy._engine, "compare_model", spy)
    with strategy.scope():
        model.compile(keras.optimizers.SGD(0.5), programs.Mean())
    assert compared == [first]
    model.fit(programs.batches(np.ones(2)), verbose=0)
    assert compared == [first, model.optimizer]


@pytest.mark.parametrize("moment", ["on_train_batch_end", "on_train_end"])
def test_a_script_that_ends_after_an_exception_ends_its_fit(
    monkeypatch, moment
):
    """Once, and not as one that has trained in a loop: nobody else has."""
    strategy = tfdist.AllReduceStrategy()
    with strategy.scope():
        model = programs.linear()
    engine, closed, loops = strategy._engine, [], []
    fit_that_fails(model, 2, **{moment: fail})
    adopt_model = engine.adopt_model

    def adopt(moment, model, *more):
        closed.append(moment)
        return adopt_model(moment, model, *more)

    monkeypatch.setattr(engine, "adopt_model", adopt)
    monkeypatch.setattr(engine, "end_loops", lambda: loops.append(True))
    without_servers._end(weakref.ref(engine))
    assert closed == [Moment.AFTER_FIT]
    assert not loops


@pytest.mark.parametrize(
    "moment",
    nightly.also(
        ["on_train_batch_end"],
        ["on_test_end", "on_epoch_begin", "on_epoch_end", "on_train_end"],
    ),
)
def test_a_fit_in_a_callback_that_has_raised_ends_there(monkeypatch, moment):
    """Else the others would wait for its end, and this worker for them."""
    strategy = tfdist.AllReduceStrategy()
    with strategy.scope():
        outer, inner = programs.linear(), programs.linear()
    x = programs.batches(np.ones(2))
    ended, exceptions = [], []

    def fit_inner(*_, **__):
        if exceptions:
            return
        with pytest.raises(Expected) as caught:
            inner.fit(
                x, verbose=0, callbacks=[programs.on(on_train_batch_end=fail)]
            )
        exceptions.append(caught)

    adopt_model = strategy._engine.adopt_model

    def adopt(moment, model, *more):
        if moment is Moment.AFTER_FIT:
            ended.append((model, programs.weight_of(outer)))
        return adopt_model(moment, model, *more)

    monkeypatch.setattr(strategy._engine, "adopt_model", adopt)
    outer.fit(
        x,
        epochs=2,
        validation_data=x,
        verbose=0,
        callbacks=[programs.on(**{moment: fit_inner})],
    )
    steps = {"on_epoch_begin": 0, "on_train_batch_end": 1, "on_train_end": 4}
    assert ended == [(inner, -steps.get(moment, 2)), (outer, -4.0)]


@pytest.mark.nightly
def test_a_comparison_of_workers_that_were_elsewhere_is_made_again(
    monkeypatch,
):
    """The other one, whose step was refused, comes to it first."""
    strategy = tfdist.AllReduceStrategy()
    with strategy.scope():
        model = programs.linear()
    engine, met = strategy._engine, []
    meet = engine.consistency.meet

    def spy(moment, *numbers):
        met.append(moment)
        return meet(moment, *numbers)

    monkeypatch.setattr(
        engine.consistency, "meet", fails_once_at_end(spy, ProgramError)
    )
    with pytest.raises(ProgramError):
        model.fit(programs.batches(np.ones(2)), verbose=0)
    del met[:]
    engine.fits.end_if_abandoned()
    assert met == [Moment.END_OF_FIT, Moment.AFTER_FIT]


def fails_once_at_end(meet, error):
    """Returns a `meet` that raises an error at the first end of `fit`."""
    errors = [error]

    def call(moment, *numbers):
        if moment is Moment.END_OF_FIT and errors:
            raise errors.pop()
        return meet(moment, *numbers)

    return call


@pytest.mark.parametrize("method", ["compare_model", "adopt_model"])
def test_a_fit_whose_workers_made_other_models_is_over(
    monkeypatch, caplog, method
):
    """As where one of them has compiled before an exception."""
    strategy = tfdist.AllReduceStrategy()
    with strategy.scope():
        model = programs.linear()
    fit_that_fails(model, 2, on_train_batch_end=fail)
    engine = strategy._engine
    with monkeypatch.context() as patched:

        def refuse(*_):
            raise ModelMismatchError("other models")

        patched.setattr(engine, method, refuse)
        engine.fits.end_if_abandoned()
    assert "keeps its own model of this `fit`: other models" in caplog.text
    assert not engine.fits.is_running
    model.fit(programs.batches(np.ones(1)), verbose=0)
    assert programs.weight_of(model) == -2.0


def test_what_a_step_has_told_counts_if_the_next_one_in_its_call_raises(
    monkeypatch,
):
    """At the end of their epoch the others compare what they have set."""
    strategy = tfdist.AllReduceStrategy()
    with strategy.scope():
        model = programs.linear()
    engine = strategy._engine

    def call(function, *args):
        logs = function(*args)
        if int(model.optimizer.iterations) == 2:
            raise Expected
        return logs

    monkeypatch.setattr(engine, "call", call)

    def set_weight(batch, logs=None):
        model.set_weights([np.ones([1, 1])])

    with pytest.raises(Expected):
        model.fit(
            programs.batches(np.ones(4)),
            verbose=0,
            callbacks=[programs.on(on_train_batch_end=set_weight)],
        )
    # They come to that end first, and then to the end of `fit`.
    over, moments = iter([0.0, 1.0]), []
    monkeypatch.setattr(
        engine, "follow", lambda *_, **__: tail.Tail(over=next(over))
    )
    monkeypatch.setattr(
        engine, "compare_model", lambda moment, _: moments.append(moment)
    )
    engine.fits.end_if_abandoned()
    assert moments == [Moment.END_OF_EPOCH, Moment.END_OF_FIT]
