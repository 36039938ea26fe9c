"""A run that is stopped and resumed is the one that never stopped."""

import json
import types

import keras
import pytest
import tensorflow as tf

from tests import nightly
from tests.strategies.twins import assert_same
from tests.strategies.twins import classification
from tests.strategies.twins import compiled
from tests.strategies.twins import perceptron
from tests.strategies.twins import traces
import tfdist
from tfdist import averaging
from tfdist import correction
from tfdist.callbacks import ClusterCheckpoint
from tfdist.callbacks import checkpoint_files
from tfdist.callbacks import fitted_model
from tfdist.callbacks import known_checkpoints
from tfdist.runtime.replicas.first_values import ModelMismatchError
from tfdist.saved_state import SavedState
from tfdist.synchronization import Async

_BATCH = 6
# Eight steps of an epoch: no period of 5 and no accumulation of 3 ends with
# an epoch, so that a save comes in the middle of each.
X, Y = classification(8 * _BATCH)
_PARTS = tf.distribute.experimental.partitioners.FixedShardsPartitioner(2)
_SGD = keras.optimizers.SGD
_ADAM = keras.optimizers.Adam


def _net():
    return keras.Sequential(
        [
            keras.Input((5,)),
            keras.layers.Dense(4, activation="tanh"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(3),
        ]
    )


def _corrected(method, **kwargs):
    return lambda: tfdist.ParameterServerStrategy(correction=method, **kwargs)


_CASES = {
    "adam, schedule, accumulation": (
        tfdist.AsyncStrategy,
        lambda: _ADAM(
            keras.optimizers.schedules.CosineDecay(0.05, 12),
            gradient_accumulation_steps=3,
        ),
        _net,
    ),
    "DANA zero": (
        _corrected(correction.DANA("zero"), variable_partitioner=_PARTS),
        lambda: _SGD(0.02),
        perceptron,
    ),
    "DANA slim": (
        _corrected(correction.DANA("slim")),
        lambda: _SGD(0.02),
        perceptron,
    ),
    "DiLoCo": (
        lambda: tfdist.DiLoCoStrategy(5, synchronization=Async()),
        lambda: _ADAM(0.02),
        _net,
    ),
    "BMUF": (
        lambda: tfdist.BMUFStrategy(
            5, block_momentum=0.5, synchronization=Async()
        ),
        lambda: _SGD(0.05, momentum=0.9),
        perceptron,
    ),
    "elastic averaging": (
        lambda: tfdist.ElasticAveragingStrategy(5, alpha=0.3),
        lambda: _SGD(0.05, momentum=0.9),
        perceptron,
    ),
    "Downpour": (
        lambda: tfdist.ParameterServerStrategy(
            local_steps=averaging.AccruedGradients(3, 5)
        ),
        lambda: _SGD(0.05),
        perceptron,
    ),
}


def _start(make_strategy, make_optimizer, net):
    keras.utils.set_random_seed(5)
    strategy = make_strategy()
    with strategy.scope():
        model = compiled(net(), make_optimizer())
    return strategy, model


def _fit(model, epochs, **kwargs):
    model.fit(
        X,
        Y,
        batch_size=_BATCH,
        epochs=epochs,
        shuffle=False,
        verbose=0,
        **kwargs,
    )


_SLOW = [
    "BMUF",
    "Downpour",
    "DANA slim",
    "DANA zero",
    "DiLoCo",
    "elastic averaging",
]

# Workers compute with the look-ahead: a save must not put the parameters in
# its place.
_SAVED_IS_NOT_WORKED_WITH = "DANA zero"


def _leave_two_epochs(directory):
    """Removes what a run has saved that was killed after two epochs."""
    files = checkpoint_files.CheckpointFiles(directory, keep=1)
    number, state = files.newest()
    while state.header["position"] != {"epoch": 2, "batch": 0}:
        files.path(number).unlink()
        number, state = files.newest()


@pytest.mark.parametrize(
    "name",
    nightly.also([name for name in _CASES if name not in _SLOW], _SLOW),
)
def test_resumed_training_is_the_one_that_never_stopped(tmp_path, name):
    strategy, model = _start(*_CASES[name])
    _fit(model, 3, callbacks=[ClusterCheckpoint(tmp_path, save_freq=5)])
    strategy.barrier()
    expected, updates = traces(model), strategy.updates_applied()
    if name == _SAVED_IS_NOT_WORKED_WITH:
        plain, model = _start(*_CASES[name])
        _fit(model, 3)
        plain.barrier()
        assert_same(traces(model), expected)
    _leave_two_epochs(tmp_path)

    strategy, model = _start(*_CASES[name])
    resumed = ClusterCheckpoint(tmp_path)
    _fit(model, 3, callbacks=[resumed])
    strategy.barrier()
    assert resumed.resumed_epoch == 2
    assert_same(traces(model), expected)
    assert strategy.updates_applied() == updates


@pytest.mark.nightly
def test_what_others_have_done_since_is_not_undone_by_a_resumed_worker():
    """It pushes what it has made of what it was given, not of what is there."""
    x, y = classification(10 * _BATCH)
    before = 8 * _BATCH
    strategy, model = _start(*_CASES["BMUF"])
    saved = []

    class Save(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch + 1 == 8:
                saved.append(strategy.state.read())

    kwargs = {"batch_size": _BATCH, "shuffle": False, "verbose": 0}
    model.fit(x, y, callbacks=[Save()], **kwargs)
    expected = [weight + 1.0 for weight in model.get_weights()]

    (state,) = saved
    for number, (_, role, *_) in enumerate(state.header["variables"]):
        if role == "parameter":
            state.arrays[f"variable/{number}"] = (
                state.arrays[f"variable/{number}"] + 1.0
            )
    strategy, model = _start(*_CASES["BMUF"])
    with strategy.scope():
        model.optimizer.build(model.trainable_variables)
    strategy.state.restore(state)
    # The second exchange is that of the tenth step.
    model.fit(x[before:], y[before:], **kwargs)
    assert_same(model.get_weights(), expected)


@pytest.mark.nightly
def test_tensorflow_checkpoint_with_the_state_of_the_strategy(tmp_path):
    """With the model it holds the outer momentum, and steps in a period."""
    case = _CASES["DiLoCo"]
    strategy, model = _start(*case)
    _fit(model, 2)
    expected = traces(model)

    strategy, model = _start(*case)

    class Save(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if not epoch:
                tf.train.Checkpoint(model=model, state=strategy.state).write(
                    tmp_path / "checkpoint"
                )

    _fit(model, 1, callbacks=[Save()])

    strategy, model = _start(*case)
    with strategy.scope():
        model.optimizer.build(model.trainable_variables)
    tf.train.Checkpoint(model=model, state=strategy.state).read(
        tmp_path / "checkpoint"
    ).assert_existing_objects_matched()
    _fit(model, 1)
    assert_same(traces(model), expected)


_OTHER_STEPS = {
    "Async": tfdist.AsyncStrategy,
    "averaging": lambda: tfdist.ParameterServerStrategy(
        synchronization=tfdist.synchronization.Sync(), local_steps=4
    ),
    "averaging of slots": lambda: tfdist.ParameterServerStrategy(
        synchronization=tfdist.synchronization.Sync(),
        local_steps=averaging.ParameterAveraging(
            4, average_optimizer_state=True
        ),
    ),
    "DiLoCo": lambda: tfdist.DiLoCoStrategy(4, synchronization=Async()),
}


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("saved", "resumed"),
    nightly.also(
        [("Async", "averaging"), ("averaging", "Async")],
        [
            ("Async", "averaging of slots"),
            ("averaging of slots", "averaging"),
            ("DiLoCo", "Async"),
        ],
    ),
)
def test_local_steps_take_up_a_training_without_and_the_reverse(
    tmp_path, caplog, saved, resumed
):
    _, model = _start(_OTHER_STEPS[saved], lambda: _ADAM(0.05), _net)
    model.optimizer.learning_rate = 0.01
    _fit(model, 1, callbacks=[ClusterCheckpoint(tmp_path)])
    expected = traces(model)

    strategy, model = _start(_OTHER_STEPS[resumed], lambda: _ADAM(0.05), _net)
    seen = []

    class Look(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if not seen:
                seen.append(traces(model))

    checkpoint = ClusterCheckpoint(tmp_path)
    _fit(model, 2, callbacks=[checkpoint, Look()])
    assert checkpoint.resumed_epoch == 1
    assert_same(seen[0], expected)
    assert "what local steps and corrections keep starts afresh" in caplog.text
    assert int(model.optimizer.iterations.numpy()) == 16
    assert strategy.updates_applied()[0] > 0


def test_fits_of_one_model_and_of_others(tmp_path, monkeypatch, caplog):
    """The next `fit` begins where it is told, though Keras keeps the epoch.

    A full disk does not end the training; another model is refused.
    """
    _, model = _start(tfdist.AsyncStrategy, _SGD, perceptron)
    saved = tmp_path / "saved"
    _fit(model, 1, callbacks=[ClusterCheckpoint(saved)])
    _fit(model, 2, callbacks=[ClusterCheckpoint(saved)])
    checkpoint = ClusterCheckpoint(
        tmp_path / "made", delete_checkpoint=True, save_freq=4
    )
    history = model.fit(
        X, Y, batch_size=_BATCH, epochs=2, verbose=0, callbacks=[checkpoint]
    )
    assert history.epoch == [0, 1]
    assert not (tmp_path / "made").exists()

    for strategy in (tfdist.AsyncStrategy, _OTHER_STEPS["averaging"]):
        _, other = _start(strategy, _SGD, _net)
        with pytest.raises(ModelMismatchError, match="a weight: here .*gamma"):
            _fit(other, 1, callbacks=[ClusterCheckpoint(saved)])

    def refuse(state, file):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint_files.saved_state, "write", refuse)
    full = tmp_path / "full"
    _fit(model, 1, callbacks=[ClusterCheckpoint(full)])
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
        _fit(model, 1, callbacks=[ClusterCheckpoint(tmp_path)])


def _saved(model, directory, epochs=1):
    _fit(model, epochs, callbacks=[ClusterCheckpoint(directory)])


def _built(make_optimizer):
    """The state of a strategy, and a model whose optimizer has its slots."""
    strategy, model = _start(tfdist.AsyncStrategy, make_optimizer, perceptron)
    with strategy.scope():
        model.optimizer.build(model.trainable_variables)
    return strategy.state, model


@pytest.mark.parametrize(
    ("saved", "resumed", "message"),
    [
        # Of slots of the same number and shapes.
        (
            lambda: _SGD(0.1, momentum=0.5),
            lambda: keras.optimizers.RMSprop(0.1),
            "the optimizer: here RMSprop; saved SGD",
        ),
        (
            lambda: keras.optimizers.RMSprop(0.1, momentum=0.5),
            lambda: keras.optimizers.RMSprop(0.1, centered=True),
            "here 'average_gradient'.*; saved 'momentum'",
        ),
        (
            lambda: _SGD(0.1),
            lambda: _SGD(0.1, momentum=0.5),
            "variable 2 of the optimizer: here 'momentum'.*; saved none",
        ),
        (
            lambda: _SGD(0.1, momentum=0.5),
            lambda: _SGD(0.1),
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


def _tuned(tmp_path):
    """Trains, compiles with another optimizer and trains on; saves in both."""
    strategy, model = _start(tfdist.AsyncStrategy, _SGD, perceptron)
    _saved(model, tmp_path)
    with strategy.scope():
        compiled(model, _ADAM(0.05))
    checkpoint = ClusterCheckpoint(tmp_path)
    _fit(model, 2, callbacks=[checkpoint])
    return checkpoint.resumed_epoch, traces(model)


@pytest.mark.nightly
def test_script_that_compiles_again_is_resumed(tmp_path):
    """In the first call the checkpoint is of an optimizer to come."""
    resumed, expected = _tuned(tmp_path)
    assert resumed == 1
    resumed, found = _tuned(tmp_path)
    assert resumed == 2
    assert_same(found, expected)


def test_later_fit_keeps_what_was_set_since_the_checkpoint(tmp_path):
    strategy, model = _start(tfdist.AsyncStrategy, _SGD, perceptron)
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
    _fit(model, 2, callbacks=[checkpoint, Look()])
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
    checkpoint._strategy = types.SimpleNamespace(
        cluster=types.SimpleNamespace(worker_names=("chief", "one")),
        state=state,
        commit=lambda: None,
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
