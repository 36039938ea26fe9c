"""The checkpoint that a call of `fit` takes, and those that it refuses."""

import json
import types

import keras
import numpy as np
import pytest

from tests import nightly
from tests.callbacks.resumed_runs import ADAM
from tests.callbacks.resumed_runs import BATCH
from tests.callbacks.resumed_runs import SGD
from tests.callbacks.resumed_runs import X
from tests.callbacks.resumed_runs import Y
from tests.callbacks.resumed_runs import averages
from tests.callbacks.resumed_runs import fit
from tests.callbacks.resumed_runs import net
from tests.callbacks.resumed_runs import start
from tests.strategies.twins import assert_same
from tests.strategies.twins import compiled
from tests.strategies.twins import perceptron
from tests.strategies.twins import traces
import tfdist
from tfdist.callbacks import ClusterCheckpoint
from tfdist.callbacks import checkpoint_files
from tfdist.callbacks import fitted_model
from tfdist.callbacks import known_checkpoints
from tfdist.runtime.replicas.first_values import ModelMismatchError
from tfdist.saved_state import SavedState


@pytest.mark.nightly
def test_fits_of_one_model_and_of_others(tmp_path, monkeypatch, caplog):
    """The next `fit` begins where it is told, though Keras keeps the epoch.

    A full disk does not end the training; another model is refused.
    """
    _, model = start(tfdist.AsyncStrategy, SGD, perceptron)
    saved = tmp_path / "saved"
    fit(model, 1, callbacks=[ClusterCheckpoint(saved)])
    fit(model, 2, callbacks=[ClusterCheckpoint(saved)])
    checkpoint = ClusterCheckpoint(
        tmp_path / "made", delete_checkpoint=True, save_freq=4
    )
    history = model.fit(
        X, Y, batch_size=BATCH, epochs=2, verbose=0, callbacks=[checkpoint]
    )
    assert history.epoch == [0, 1]
    assert not (tmp_path / "made").exists()

    for strategy in (tfdist.AsyncStrategy, averages):
        _, other = start(strategy, SGD, net)
        with pytest.raises(ModelMismatchError, match="a weight: here .*gamma"):
            fit(other, 1, callbacks=[ClusterCheckpoint(saved)])

    def refuse(state, file):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint_files.saved_state, "write", refuse)
    full = tmp_path / "full"
    fit(model, 1, callbacks=[ClusterCheckpoint(full)])
    assert "No space left on device" in caplog.text
    assert not list(full.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"directory": ""},
            "`directory` must be a path. Received: directory=''",
        ),
        ({"save_freq": 0}, "`save_freq` must be .*Received: save_freq=0"),
        (
            {"save_freq": "batch"},
            "`save_freq` must be .*Received: save_freq='batch'",
        ),
        (
            {"keep": 0},
            "`keep` must be an integer of at least 1. Received: keep=0",
        ),
    ],
)
def test_malformed_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        ClusterCheckpoint(**{"directory": "somewhere", **arguments})


def test_model_without_a_strategy_is_refused(tmp_path):
    model = compiled(perceptron())
    with pytest.raises(ValueError, match="tfdist strategy.*PipelineStrategy"):
        fit(model, 1, callbacks=[ClusterCheckpoint(tmp_path)])


def _saved(model, directory, epochs=1):
    fit(model, epochs, callbacks=[ClusterCheckpoint(directory)])


def _built(make_optimizer):
    """The state of a strategy, and a model whose optimizer has its slots."""
    strategy, model = start(tfdist.AsyncStrategy, make_optimizer, perceptron)
    with strategy.scope():
        model.optimizer.build(model.trainable_variables)
    return strategy.state, model


@pytest.mark.parametrize(
    ("saved", "resumed", "message"),
    [
        # Of slots of the same number and shapes.
        (
            lambda: SGD(0.1, momentum=0.5),
            lambda: keras.optimizers.RMSprop(0.1),
            "the optimizer: here RMSprop; saved SGD",
        ),
        (
            lambda: keras.optimizers.RMSprop(0.1, momentum=0.5),
            lambda: keras.optimizers.RMSprop(0.1, centered=True),
            "here 'average_gradient'.*; saved 'momentum'",
        ),
        (
            lambda: SGD(0.1),
            lambda: SGD(0.1, momentum=0.5),
            "variable 2 of the optimizer: here 'momentum'.*; saved none",
        ),
        (
            lambda: SGD(0.1, momentum=0.5),
            lambda: SGD(0.1),
            "variable 2 of the optimizer: here none; saved 'momentum'",
        ),
    ],
)
def test_checkpoint_of_another_optimizer_is_refused(
    tmp_path, saved, resumed, message
):
    state, model = _built(saved)
    header = {fitted_model.KEY: fitted_model.describe(model, state)}
    # As JSON has it.
    there = SavedState(json.loads(json.dumps(header)), {})
    fitted_model.check(there, model, state)
    state, model = _built(resumed)
    with pytest.raises(ModelMismatchError, match=message):
        fitted_model.check(there, model, state)


def _tuned(make_strategy, tmp_path):
    """Trains, compiles with another optimizer and trains on; saves in both."""
    strategy, model = start(make_strategy, SGD, perceptron)
    _saved(model, tmp_path)
    with strategy.scope():
        compiled(model, ADAM(0.05))
    checkpoint = ClusterCheckpoint(tmp_path)
    fit(model, 2, callbacks=[checkpoint])
    return checkpoint.resumed_epoch, traces(model)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "make_strategy",
    nightly.also(
        [lambda: tfdist.ParameterAveragingStrategy(period=2)],
        [
            tfdist.AsyncStrategy,
            lambda: tfdist.DiLoCoStrategy(period=2),
            lambda: tfdist.PeerToPeerStrategy("threshold(tau=0.05)"),
        ],
    ),
)
def test_script_that_compiles_again_is_resumed(tmp_path, make_strategy):
    """In the first call the checkpoint is of an optimizer to come."""
    resumed, expected = _tuned(make_strategy, tmp_path)
    assert resumed == 1
    resumed, found = _tuned(make_strategy, tmp_path)
    assert resumed == 2
    assert_same(found, expected)


@pytest.mark.nightly
def test_script_that_trains_two_models_is_resumed(tmp_path):
    """The first one takes no step then, and has slots of an outer optimizer."""
    for expected in (0, 1):
        strategy = tfdist.DiLoCoStrategy(period=2)
        with strategy.scope():
            models = [
                compiled(keras.Sequential([keras.Input([4]), layer]), SGD())
                for layer in (keras.layers.Dense(1), keras.layers.Dense(1))
            ]
        x = np.ones([4, 4], "float32")
        for number, model in enumerate(models):
            checkpoint = ClusterCheckpoint(tmp_path / str(number))
            model.fit(x, 0 * x[:, :1], verbose=0, callbacks=[checkpoint])
            assert checkpoint.resumed_epoch == expected


def test_later_fit_keeps_what_was_set_since_the_checkpoint(tmp_path):
    strategy, model = start(tfdist.AsyncStrategy, SGD, perceptron)
    _saved(model, tmp_path)
    model.optimizer.learning_rate = 0.25
    weights = [weight + 1.0 for weight in model.get_weights()]
    model.set_weights(weights)
    seen = []

    class Look(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if not seen:
                seen.append(model.get_weights())

    checkpoint = ClusterCheckpoint(tmp_path)
    fit(model, 2, callbacks=[checkpoint, Look()])
    assert checkpoint.resumed_epoch == 1
    assert_same(seen[0], weights)
    assert float(model.optimizer.learning_rate.numpy()) == 0.25
    # Another model of the process is not taken for this one.
    with strategy.scope():
        other = compiled(perceptron())
    with pytest.raises(ModelMismatchError, match="another model of this proc"):
        _saved(other, tmp_path, 3)


def _begun_as_worker(directory, word, call, has_used=False):
    """The epoch at which a worker begins; whether it has restored the file.

    Args:
      directory: Where checkpoint 1 is, of the start of epoch 3.
      word: What the chief has told last, of checkpoint 1 and epoch 3 unless it
        says otherwise; or None.
      call: The number of the call of `fit`.
      has_used: Whether an earlier `fit` has used the directory.
    """
    position = {"epoch": 3, "batch": 0}
    checkpoint_files.CheckpointFiles(directory, keep=1).write(
        SavedState({"position": position, "updates": 9}, {})
    )
    if word is not None:
        told = {"call": call, "directory": str(directory), "restored": True}
        word = {"chief": {**told, "number": 1, "epoch": 3, **word}}
    restored = []
    state = types.SimpleNamespace(
        fit_number=call,
        wait_for_word=lambda find: find(),
        restore=restored.append,
    )
    checkpoint = ClusterCheckpoint(directory)
    checkpoint.set_model(keras.Sequential())
    checkpoint._strategy = types.SimpleNamespace(
        cluster=types.SimpleNamespace(worker_names=("chief", "one")),
        state=state,
        commit=lambda: None,
        pull=lambda: None,
        collect=lambda topic: word or {},
    )
    checkpoint._known = known_checkpoints.KnownCheckpoints()
    if has_used:
        checkpoint._known.use(directory)
    checkpoint._begin_as_worker()
    return checkpoint.resumed_epoch, bool(restored)


@pytest.mark.parametrize(
    ("word", "call", "has_used", "expected"),
    [
        ({}, 2, False, (3, True)),
        ({"number": None, "epoch": 0}, 2, False, (0, False)),
        # The first server has lost it.
        (None, 2, False, (3, True)),
        (None, 2, True, (3, False)),
        # Of the call before, which is over; of one that this worker misses.
        ({"call": 1, "number": None}, 2, False, (3, True)),
        ({"call": 3, "epoch": 7}, 2, False, (3, True)),
        ({"directory": "other", "epoch": 7}, 2, False, (3, True)),
        # Where each decides for itself, calls are told apart by directories.
        ({"number": None, "epoch": 0}, 0, False, (0, False)),
        ({"directory": "other", "epoch": 7}, 0, False, (3, True)),
        # A later `fit` of this process, to which the chief has gone on, too.
        ({"restored": False}, 2, True, (3, False)),
        ({"restored": False}, 2, False, (3, True)),
        ({"restored": True}, 2, True, (3, True)),
    ],
)
def test_where_a_worker_begins_by_the_word_of_the_chief(
    tmp_path, word, call, has_used, expected
):
    assert _begun_as_worker(tmp_path, word, call, has_used) == expected


@pytest.mark.nightly
@pytest.mark.parametrize("is_passed", [True, False])
def test_a_call_that_others_have_ended_early_is_not_trained_to_its_end(
    tmp_path, monkeypatch, is_passed
):
    def build():
        return start(tfdist.AsyncStrategy, keras.optimizers.SGD, perceptron)

    # The chief has stopped training after the second epoch.
    _saved(build()[1], tmp_path, 2)
    strategy, model = build()
    kind = type(strategy.state)
    monkeypatch.setattr(kind, "is_passed", property(lambda self: is_passed))
    model._initial_epoch = 2**31
    checkpoint = ClusterCheckpoint(tmp_path)
    checkpoint.set_model(model)
    checkpoint.on_train_begin()
    assert checkpoint.resumed_epoch == 2
    assert model._initial_epoch == (2**31 if is_passed else 2)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "make_strategy",
    nightly.also(
        [tfdist.AsyncStrategy, tfdist.AllReduceStrategy],
        # It has an outer optimizer besides.
        [lambda: tfdist.DiLoCoStrategy(period=2)],
    ),
)
def test_a_model_that_has_gone_on_is_not_set_back_with_another(
    tmp_path, make_strategy
):
    def run(epochs):
        strategy, first = start(make_strategy, ADAM, net)
        fit(first, epochs, callbacks=[ClusterCheckpoint(tmp_path / "first")])
        # All that there is belongs to the first model, its seed as well.
        first.reset_metrics()
        before = strategy.state.read().arrays
        with strategy.scope():
            second = compiled(perceptron(), ADAM())
        fit(second, 2, callbacks=[ClusterCheckpoint(tmp_path / "second")])
        first.reset_metrics()
        after = strategy.state.read().arrays
        return before, {name: after[name] for name in before}, traces(second)

    *_, trained = run(2)
    before, after, resumed = run(4)
    assert_same(after, before, 0.0)
    assert_same(resumed, trained, 0.0)


@pytest.mark.nightly
def test_ids_and_rates_of_a_model_that_has_gone_on_are_not_set_back(tmp_path):
    def run(epochs):
        strategy = tfdist.AsyncStrategy(table_bytes=1)
        with strategy.scope():
            table = tfdist.layers.DynamicEmbedding(2, 100, admit_after=2)
            first = keras.Sequential(
                [
                    keras.Input((1,), dtype="int64"),
                    table,
                    keras.layers.Flatten(),
                    keras.layers.Dense(1),
                ]
            )
            second = keras.Sequential(
                [keras.Input((1,)), keras.layers.Dense(1)]
            )
            for model in (first, second):
                model.compile(SGD(0.5), "mse")
        checkpoints = [ClusterCheckpoint(tmp_path / str(k)) for k in range(2)]
        x = np.arange(8)[:, None]
        first.fit(x, x, epochs=epochs, callbacks=checkpoints[:1], verbose=0)
        first.optimizer.learning_rate = 1 / epochs
        second.fit(x, x, callbacks=checkpoints[1:], verbose=0)
        (counts,) = table.counts()
        return counts["used"], float(first.optimizer.learning_rate)

    # An id has a row when it has come twice.
    assert run(1) == (0, 1.0)
    assert run(2) == (8, 0.5)


def _diloco():
    """Whose only exchange is at the end of `fit`."""
    return tfdist.DiLoCoStrategy(500)


def _averaged():
    """Keras ends `fit` with its averages, before callbacks set others."""
    return SGD(use_ema=True)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("make_strategy", "make_optimizer"),
    nightly.also(
        [
            (tfdist.AsyncStrategy, _averaged),
            (tfdist.AllReduceStrategy, _averaged),
        ],
        [
            (_diloco, SGD),
            (tfdist.AsyncStrategy, SGD),
            (tfdist.AllReduceStrategy, SGD),
        ],
    ),
)
def test_a_finished_script_that_is_run_again_has_what_it_ended_with(
    tmp_path, make_strategy, make_optimizer
):
    def run(*callbacks):
        _, model = start(make_strategy, make_optimizer, perceptron)
        fit(model, 2, callbacks=[*callbacks, ClusterCheckpoint(tmp_path)])
        return traces(model)

    class Restore(keras.callbacks.Callback):
        """As `EarlyStopping` does with weights of the best epoch."""

        def on_train_end(self, logs=None):
            if make_strategy is not _diloco:
                self.model.set_weights(
                    [w + 1.0 for w in self.model.get_weights()]
                )

    expected = run(Restore())
    assert_same(run(), expected, 0.0)


@pytest.mark.nightly
def test_earlier_calls_of_a_resumed_run_leave_weights_and_averages(tmp_path):
    """Both calls have one directory; an exception ends the second one."""

    class Fails(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            raise ZeroDivisionError

    def run(directory, *callbacks):
        _, model = start(tfdist.AsyncStrategy, _averaged, perceptron)
        fit(model, 1, callbacks=[ClusterCheckpoint(directory)])
        fit(model, 3, callbacks=[ClusterCheckpoint(directory), *callbacks])
        return traces(model)

    with pytest.raises(ZeroDivisionError):
        run(tmp_path / "resumed", Fails())
    expected = run(tmp_path / "whole")
    assert_same(run(tmp_path / "resumed"), expected, 0.0)


class Killed(Exception):
    """What ends a process of a test."""


@pytest.mark.parametrize(
    ("make_strategy", "make_optimizer"),
    nightly.also(
        [(tfdist.AllReduceStrategy, _averaged)],
        [
            (tfdist.AsyncStrategy, _averaged),
            (lambda: tfdist.DiLoCoStrategy(3), SGD),
        ],
    ),
    ids=["async", "all_reduce", "diloco"],
)
def test_who_was_killed_after_the_last_epoch_ends_its_fit(
    tmp_path, make_strategy, make_optimizer
):
    """Averages are put in place, and no local step is lost."""

    def kill(epoch, logs=None):
        if epoch == 1:
            raise Killed

    def run(name, *callbacks):
        _, model = start(make_strategy, make_optimizer, perceptron)
        fit(
            model, 2, callbacks=[ClusterCheckpoint(tmp_path / name), *callbacks]
        )
        return traces(model)

    with pytest.raises(Killed):
        run("killed", keras.callbacks.LambdaCallback(on_epoch_end=kill))
    assert_same(run("killed"), run("whole"), 0.0)


class OwnStep(keras.Model):
    def train_step(self, data):
        return super().train_step(data)


def test_variables_in_other_places_than_when_saved_are_refused(tmp_path):
    """A step made a metric, which a run that takes no step does not make."""

    def run():
        strategy = tfdist.AllReduceStrategy()
        with strategy.scope():
            inputs = keras.Input((5,))
            model = OwnStep(inputs, keras.layers.Dense(3)(inputs))
            compiled(model, metrics=["accuracy"])
        fit(model, 1, callbacks=[ClusterCheckpoint(tmp_path)])
        with strategy.scope():
            keras.layers.Dense(2).build((None, 5))

    run()
    with pytest.raises(ModelMismatchError, match="build metrics and further"):
        run()
