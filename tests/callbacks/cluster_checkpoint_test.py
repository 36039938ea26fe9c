"""A run that is stopped and resumed is the one that never stopped."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import nightly
from tests.all_reduce import programs
from tests.callbacks.resumed_runs import ADAM
from tests.callbacks.resumed_runs import BATCH
from tests.callbacks.resumed_runs import SGD
from tests.callbacks.resumed_runs import averages
from tests.callbacks.resumed_runs import fit
from tests.callbacks.resumed_runs import net
from tests.callbacks.resumed_runs import start
from tests.strategies.twins import assert_same
from tests.strategies.twins import classification
from tests.strategies.twins import perceptron
from tests.strategies.twins import traces
import tfdist
from tfdist import averaging
from tfdist import correction
from tfdist.callbacks import ClusterCheckpoint
from tfdist.callbacks import checkpoint_files
from tfdist.synchronization import Async

_PARTS = tf.distribute.experimental.partitioners.FixedShardsPartitioner(2)


def _corrected(method, **kwargs):
    return lambda: tfdist.ParameterServerStrategy(correction=method, **kwargs)


_CASES = {
    "adam, schedule, accumulation": (
        tfdist.AsyncStrategy,
        lambda: ADAM(
            keras.optimizers.schedules.CosineDecay(0.05, 12),
            gradient_accumulation_steps=3,
        ),
        net,
    ),
    "DANA zero": (
        _corrected(correction.DANA("zero"), variable_partitioner=_PARTS),
        lambda: SGD(0.02),
        perceptron,
    ),
    "DANA zero, local steps": (
        _corrected(correction.DANA("zero"), local_steps=4),
        lambda: SGD(0.05),
        perceptron,
    ),
    "DANA slim": (
        _corrected(correction.DANA("slim")),
        lambda: SGD(0.02),
        perceptron,
    ),
    "FASGD, momentum": (
        _corrected(correction.FASGD()),
        lambda: SGD(0.02, momentum=0.9),
        perceptron,
    ),
    "DiLoCo": (
        lambda: tfdist.DiLoCoStrategy(5, synchronization=Async()),
        lambda: ADAM(0.02),
        net,
    ),
    "BMUF": (
        lambda: tfdist.BMUFStrategy(
            5, block_momentum=0.5, synchronization=Async()
        ),
        lambda: SGD(0.05, momentum=0.9),
        perceptron,
    ),
    "elastic averaging": (
        lambda: tfdist.ElasticAveragingStrategy(5, alpha=0.3),
        lambda: SGD(0.05, momentum=0.9),
        perceptron,
    ),
    "Downpour": (
        lambda: tfdist.ParameterServerStrategy(
            local_steps=averaging.AccruedGradients(3, 5)
        ),
        lambda: SGD(0.05),
        perceptron,
    ),
}
# It has slots of the correction, and of the optimizer.
_FIRST = ["FASGD, momentum"]
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
    nightly.also(_FIRST, [name for name in _CASES if name not in _FIRST]),
)
def test_resumed_training_is_the_one_that_never_stopped(tmp_path, name):
    strategy, model = start(*_CASES[name])
    checkpoint = ClusterCheckpoint(tmp_path, save_freq=5, keep=9)
    fit(model, 3, callbacks=[checkpoint])
    strategy.barrier()
    expected, updates = traces(model), strategy.updates_applied()
    if name == _SAVED_IS_NOT_WORKED_WITH:
        plain, model = start(*_CASES[name])
        fit(model, 3)
        plain.barrier()
        assert_same(traces(model), expected)
    _leave_two_epochs(tmp_path)

    strategy, model = start(*_CASES[name])
    resumed = ClusterCheckpoint(tmp_path)
    fit(model, 3, callbacks=[resumed])
    strategy.barrier()
    assert resumed.resumed_epoch == 2
    assert_same(traces(model), expected)
    assert strategy.updates_applied() == updates


@pytest.mark.nightly
def test_what_others_have_done_since_is_not_undone_by_a_resumed_worker():
    """It pushes what it has made of what it was given, not of what is there."""
    x, y = classification(10 * BATCH)
    before = 8 * BATCH
    strategy, model = start(*_CASES["BMUF"])
    saved = []

    class Save(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch + 1 == 8:
                saved.append(strategy.state.read())

    kwargs = {"batch_size": BATCH, "shuffle": False, "verbose": 0}
    model.fit(x, y, callbacks=[Save()], **kwargs)
    expected = [weight + 1.0 for weight in model.get_weights()]

    (state,) = saved
    for number, (_, role, *_) in enumerate(state.header["variables"]):
        if role == "parameter":
            state.arrays[f"variable/{number}"] = (
                state.arrays[f"variable/{number}"] + 1.0
            )
    strategy, model = start(*_CASES["BMUF"])
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
    strategy, model = start(*case)
    fit(model, 2)
    expected = traces(model)

    strategy, model = start(*case)

    class Save(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if not epoch:
                tf.train.Checkpoint(model=model, state=strategy.state).write(
                    tmp_path / "checkpoint"
                )

    fit(model, 1, callbacks=[Save()])

    strategy, model = start(*case)
    with strategy.scope():
        model.optimizer.build(model.trainable_variables)
    tf.train.Checkpoint(model=model, state=strategy.state).read(
        tmp_path / "checkpoint"
    ).assert_existing_objects_matched()
    fit(model, 1)
    assert_same(traces(model), expected)


_OTHER_STEPS = {
    "Async": tfdist.AsyncStrategy,
    "averaging": averages,
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
    _, model = start(_OTHER_STEPS[saved], lambda: ADAM(0.05), net)
    model.optimizer.learning_rate = 0.01
    fit(model, 1, callbacks=[ClusterCheckpoint(tmp_path)])
    expected = traces(model)

    strategy, model = start(_OTHER_STEPS[resumed], lambda: ADAM(0.05), net)
    seen = []

    class Look(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if not seen:
                seen.append(traces(model))

    checkpoint = ClusterCheckpoint(tmp_path)
    fit(model, 2, callbacks=[checkpoint, Look()])
    assert checkpoint.resumed_epoch == 1
    assert_same(seen[0], expected)
    assert "what local steps and corrections keep starts afresh" in caplog.text
    assert int(model.optimizer.iterations.numpy()) == 16
    assert strategy.updates_applied()[0] > 0


@pytest.mark.parametrize(
    ("strategy", "epochs"),
    nightly.also(
        [(tfdist.AllReduceStrategy, 1)],
        [
            (tfdist.AllReduceStrategy, 2),
            *(
                (strategy, epochs)
                for strategy in (tfdist.AsyncStrategy, tfdist.GossipStrategy)
                for epochs in (1, 2)
            ),
        ],
    ),
)
def test_a_script_adapts_its_layers_in_its_first_run_alone(
    strategy, epochs, tmp_path
):
    """The checkpoint has what they normalize by; also where all is trained."""

    def run(epochs, data=None):
        made = strategy()
        with made.scope():
            norm = keras.layers.Normalization(axis=None)
            if data is not None:
                norm.adapt(np.array(data, "float32"))
            model = programs.linear(before=[norm])
        model.fit(
            np.array([[9.0]]),
            np.array([[0.0]]),
            epochs=epochs,
            verbose=0,
            callbacks=[ClusterCheckpoint(tmp_path)],
        )
        return model.predict(np.array([[7.0]]), verbose=0).item()

    run(1, data=[[3.0], [7.0]])  # Mean 5, variance 4.
    # Each epoch is a step of the gradient (9 - 5) / 2; 7 becomes 1.
    assert run(epochs) == -2.0 * epochs
