"""Saved states that meet servers which hold a run already."""

import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import nightly
from tests.runtime.replicas.one_run import commit_in_two_parts
from tests.runtime.replicas.one_run import held
from tests.runtime.replicas.one_run import joined
from tests.runtime.replicas.one_run import lose
from tests.runtime.replicas.one_run import put
from tests.runtime.replicas.one_run import put_version
from tests.runtime.replicas.one_run import trained
import tfdist
from tfdist.runtime.keras_hooks import values_between
from tfdist.runtime.variables import variable_list


@pytest.mark.nightly
def test_a_saved_state_is_put_back_as_a_whole_where_servers_lack_some():
    runtime, model = trained()
    saved = runtime.state.read()
    expected = held(runtime)
    x = np.ones([2, 3], "float32")
    model.train_on_batch(x, x[:, :2])
    # A chief that comes back finds that servers hold a run.
    synchronizer = joined(runtime, may_lack=True)
    runtime.synchronizer = synchronizer
    runtime.journal = types.SimpleNamespace(exchanges=0, count=0)
    runtime.state.restore(saved)
    lose(runtime, runtime.store.variables[0])
    synchronizer.commit()
    for name, value in held(runtime).items():
        np.testing.assert_array_equal(value, expected[name], name)
    np.testing.assert_array_equal(
        model.weights[0].numpy(), expected[model.weights[0].value.name]
    )


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("has_trained", "has_added", "is_kept"),
    [(True, False, True), (False, False, False), (True, True, False)],
)
def test_first_values_of_a_chief_that_died_are_no_run(
    has_trained, has_added, is_kept
):
    """It has evaluated, and put nothing back yet; or servers have lost some."""
    saved = trained()[0].state.read()
    strategy = tfdist.AsyncStrategy()
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
        model.optimizer.build(model.trainable_variables)
    runtime = strategy._runtime
    x = np.ones([2, 3], "float32")
    if has_trained:
        model.train_on_batch(x, x[:, :2])
    model.evaluate(x, x[:, :2], verbose=0)
    expected = held(runtime)
    runtime.synchronizer = joined(runtime, may_lack=False)
    runtime.journal = types.SimpleNamespace(exchanges=0, count=0)
    runtime.pull()
    runtime.synchronizer.has_added = has_added
    assert runtime.has_come_back() == is_kept
    runtime.state.restore(saved)
    for variable in model.weights:
        name, ordinal = variable.value.name, variable.value.ordinal
        after = held(runtime)[name]
        if is_kept:
            np.testing.assert_array_equal(after, expected[name])
        else:
            np.testing.assert_array_equal(
                after, saved.arrays[f"variable/{ordinal}"]
            )


@pytest.mark.nightly
def test_what_was_trained_since_is_not_put_back_with_a_later_model():
    runtime, model = trained()
    saved = runtime.state.read()
    runtime.synchronizer = joined(runtime, may_lack=True)
    runtime.state.restore(saved)
    variables = list(runtime.store.variables)
    first = len(model.weights)
    runtime.store.variables = variable_list.VariableList(variables[:first])
    runtime.synchronizer.commit()
    kernel, *_, slot = variables
    kernel.assign(np.full(kernel.shape, 7.0))
    lose(runtime, slot)
    for variable in variables[first:]:
        runtime.store.variables.append(variable)
    runtime.synchronizer.commit()
    after = held(runtime)
    assert np.all(after[kernel.name] == 7.0)
    np.testing.assert_array_equal(
        after[slot.name], saved.arrays[f"variable/{slot.ordinal}"]
    )


@pytest.mark.nightly
def test_chief_that_evaluates_before_fit_leaves_newer_values_on_servers():
    """It is started again, and its checkpoint is older than the servers."""
    runtime, model = trained()
    saved = runtime.state.read()
    x = np.ones([2, 3], "float32")
    model.train_on_batch(x, x[:, :2])
    expected = held(runtime)
    runtime.synchronizer = joined(runtime, may_lack=False)
    runtime.journal = types.SimpleNamespace(exchanges=0, count=0)
    runtime.pull()
    runtime.state.restore(saved)
    for name, value in held(runtime).items():
        np.testing.assert_array_equal(value, expected[name], name)
    # A state that is restored after it has trained counts.
    runtime.journal.exchanges = 1
    runtime.state.restore(saved)
    kernel = model.weights[0].value
    np.testing.assert_array_equal(
        held(runtime)[kernel.name],
        saved.arrays[f"variable/{kernel.ordinal}"],
    )


@pytest.mark.nightly
@pytest.mark.parametrize("count", [0, 10000])
def test_a_step_counter_that_a_restarted_chief_assigns_shifts_no_others(count):
    """Its script does what it did before the training, such as loading."""
    runtime, model = trained()
    turns = types.SimpleNamespace(position=lambda call: (0, 1))
    values = values_between.ValuesBetween(runtime, turns, True, 1.0)
    runtime.chief_decisions.before_write = values.note_write
    runtime.synchronizer = joined(runtime, may_lack=False)
    journal = runtime.journal
    runtime.journal = types.SimpleNamespace(exchanges=0, count=0)
    runtime.pull()
    counter = model.optimizer.iterations
    counter.assign(count)
    values.take_over()
    runtime.journal = journal
    x = np.ones([2, 3], "float32")
    model.train_on_batch(x, x[:, :2])
    # Four steps before it came, and this one.
    assert held(runtime)[counter.value.name] == 5
    assert counter.numpy() == 5


@pytest.mark.nightly
@pytest.mark.parametrize("resumes", ["ClusterCheckpoint", "BackupAndRestore"])
def test_what_was_saved_replaces_weights_that_a_script_sets_again(resumes):
    """All of it, though the servers hold a later run when the chief joins."""
    runtime, model = trained()
    saved, values = runtime.state.read(), held(runtime)
    x = np.ones([2, 3], "float32")
    model.train_on_batch(x, x[:, :2])
    runtime.synchronizer = joined(runtime, may_lack=False)
    runtime.journal = types.SimpleNamespace(exchanges=0, count=0)
    variables = list(runtime.store.variables)
    weights = variables[: len(model.weights)]
    # An evaluation, and `load_weights`; `fit` makes the optimizer's variables.
    runtime.store.variables = variable_list.VariableList(weights)
    runtime.pull()
    for variable in weights:
        variable.assign(tf.ones_like(variable))
    for variable in variables[len(weights) :]:
        runtime.store.variables.append(variable)
    if resumes == "ClusterCheckpoint":
        runtime.state.restore(saved)
    else:
        with runtime.state.loading():
            for variable in variables:
                variable.assign(values[variable.name])
    runtime.pull()
    for name, value in held(runtime).items():
        np.testing.assert_array_equal(value, values[name], name)
    assert runtime.updates_applied() == [5]


@pytest.mark.parametrize(
    ("evaluates", "others_train"),
    nightly.also([(True, False)], [(False, False), (True, True)]),
)
@pytest.mark.parametrize(
    ("may_lack", "version", "is_put_back"),
    nightly.also([(True, 4, False)], [(True, 3, True), (False, 3, False)]),
)
def test_what_was_saved_after_the_snapshots_is_put_over_them(
    evaluates, others_train, may_lack, version, is_put_back
):
    """All servers have begun with snapshots, and nobody has restored them."""
    runtime, model = trained()
    # Others may have gone on with snapshots while the chief was away.
    turns = types.SimpleNamespace(position=lambda call: (0, int(others_train)))
    values = values_between.ValuesBetween(runtime, turns, True, 1.0)
    runtime.chief_decisions.before_write = values.note_write
    saved = runtime.state.read()
    expected = held(runtime)
    for variable in runtime.store.variables:
        value = tf.cast(tf.fill(variable.shape, 3), variable.dtype)
        put(runtime, variable, value)
        if not is_put_back:
            expected[variable.name] = value.numpy()
    put_version(runtime.store, version)
    runtime.synchronizer = synchronizer = joined(runtime, may_lack)
    runtime.journal = types.SimpleNamespace(exchanges=0, count=0)
    if evaluates:
        runtime.pull()
    runtime.state.restore(saved)
    if not evaluates:
        # Optimizers may make variables later, as that of local steps does.
        commit_in_two_parts(runtime, synchronizer, len(model.weights))
    for name, value in held(runtime).items():
        np.testing.assert_array_equal(value, expected[name], name)
    # It counts on from there: snapshots that come are newer.
    assert runtime.updates_applied() == [4 if is_put_back else version]
