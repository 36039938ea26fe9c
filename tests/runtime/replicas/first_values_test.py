"""What workers give to servers that nobody was there to restore."""

import types

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.runtime.keras_hooks import values_between
from tfdist.runtime.replicas import replica_sync
from tfdist.runtime.variables import variable_list
from tfdist.saved_state import ModelMismatchError


def trained(optimizer=None):
    """A runtime after a few steps; its model has momentum by default."""
    strategy = tfdist.AsyncStrategy()
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        model.compile(
            optimizer or keras.optimizers.SGD(0.1, momentum=0.9), "mse"
        )
    x = np.ones([8, 3], "float32")
    model.fit(x, x[:, :2], batch_size=2, verbose=0)
    return strategy._runtime, model


def on_server(runtime, variable, build):
    """What `build` builds with the handle of a variable on its server."""

    @tf.function(autograph=False)
    def call():
        return build(runtime.store.handle(variable, variable.shard, None))

    return call()


def held(runtime):
    """What the server holds, by name."""
    return {
        v.name: on_server(
            runtime,
            v,
            lambda handle, v=v: tf.raw_ops.ReadVariableOp(
                resource=handle, dtype=v.dtype
            ),
        ).numpy()
        for v in runtime.store.variables
    }


def put(runtime, variable, value):
    """Puts a value onto a variable's server."""

    def build(handle):
        tf.raw_ops.AssignVariableOp(resource=handle, value=value)

    on_server(runtime, variable, build)


def put_version(store, number):
    """The server takes itself to have applied so many updates."""

    @tf.function(autograph=False)
    def call():
        store.counter("version", 0).set(number)

    call()


def lose(runtime, variable):
    """Takes a variable's value from its server."""

    def build(handle):
        tf.raw_ops.DestroyResourceOp(resource=handle)

    on_server(runtime, variable, build)


def joined(runtime, may_lack, is_chief=True):
    """The traffic of a worker that has come back, with first values."""
    for variable in runtime.store.variables:
        for replica in (variable, variable.pulled):
            if replica is not None:
                value = tf.fill(variable.shape, variable.dtype.max)
                replica.assign_replica(value)
    runtime.recovery = types.SimpleNamespace(
        wait_until_settled=lambda is_chief, timeout: may_lack,
        call=lambda function, *args: function(*args),
    )
    return replica_sync.Synchronizer(runtime, is_chief=is_chief, timeout=60.0)


def commit_in_two_parts(runtime, synchronizer, first):
    """As `compile` and `fit` do, with the model's and the optimizer's."""
    variables = list(runtime.store.variables)
    runtime.store.variables = variable_list.VariableList(variables[:first])
    synchronizer.commit()
    for variable in variables[first:]:
        runtime.store.variables.append(variable)
    synchronizer.commit()


def test_what_nobody_restores_is_filled_and_nothing_else():
    runtime, model = trained()
    _lost_counts_are_filled_and_no_others(runtime, model)
    before = held(runtime)
    lost = {v.name for v in runtime.store.variables if "kernel" in v.name}
    assert len(lost) == 2
    for variable in runtime.store.variables:
        if variable.name in lost:
            lose(runtime, variable)
    synchronizer = joined(runtime, may_lack=True)
    commit_in_two_parts(runtime, synchronizer, len(model.weights))
    after = held(runtime)
    for variable in runtime.store.variables:
        if variable.name in lost:
            expected = np.full(variable.shape, variable.dtype.max)
        else:
            expected = before[variable.name]
        np.testing.assert_array_equal(
            after[variable.name], expected, variable.name
        )
        # Its replica as well.
        np.testing.assert_array_equal(
            variable.read_value().numpy(), expected, variable.name
        )
    assert synchronizer.held() == len(runtime.store.variables)
    assert synchronizer.versions() == [5]


def test_a_worker_leaves_what_servers_lack_to_the_chief():
    """Which finds that they lacked it, and puts all of a checkpoint back."""
    runtime, _ = trained()
    lose(runtime, runtime.store.variables[0])
    worker, chief = (joined(runtime, True, is_chief=k) for k in (False, True))
    lacks = worker.first_values.lacks

    def look(*args):
        found = lacks(*args)
        if found:
            chief.commit()
        return found

    worker.first_values.lacks = look
    worker.commit()
    assert (worker.has_added, chief.has_added) == (False, True)


def _lost_counts_are_filled_and_no_others(runtime, model):
    synchronizer = joined(runtime, may_lack=True)
    (before,) = runtime.gradient_counts.read().values()
    assert before["accepted"] == 4
    commit_in_two_parts(runtime, synchronizer, len(model.weights))
    assert list(runtime.gradient_counts.read().values()) == [before]
    lose_named(runtime.store, "gradients/of-1")
    synchronizer = joined(runtime, may_lack=True)
    commit_in_two_parts(runtime, synchronizer, len(model.weights))
    (after,) = runtime.gradient_counts.read().values()
    # As this worker has read them last.
    assert after["accepted"] == 4
    # The next gradient finds what it adds to.
    x = np.ones([2, 3], "float32")
    model.train_on_batch(x, x[:, :2])
    (after,) = runtime.gradient_counts.read().values()
    assert after["accepted"] == 5


def lose_named(store, name):
    """Takes a resource from the server, by its short name."""
    dtype = store.known[0, store.name_of(name)]

    @tf.function(autograph=False)
    def call():
        tf.raw_ops.DestroyResourceOp(
            resource=store.resource(0, name, dtype, None),
            ignore_lookup_error=True,
        )

    call()


def lose_all_but(store, kept):
    """Leaves on the server what a snapshot has that knew of `kept`.

    Args:
      store: The `ParameterStore`.
      kept: Some of `store.known`.
    """
    for shard, name in list(store.known):
        if (shard, name) not in kept:
            lose_named(store, store.short_name(name))


def short_names(runtime):
    """The names of what a worker tells servers to keep, in their order."""
    return [runtime.store.short_name(name) for _, name in runtime.store.known]


# What a heartbeat told of was all before the one or the other.
@pytest.mark.nightly
@pytest.mark.parametrize(
    "first_missing",
    ["variable/3", "signature/0", "held", "variable/0", "signature/3"],
)
def test_what_an_early_snapshot_lacks_is_filled(first_missing):
    runtime, model = trained()
    before = held(runtime)
    names = short_names(runtime)
    kept = list(runtime.store.known)[: names.index(first_missing)]
    # On a cluster it is told of first, and without it there is no snapshot.
    kept.append((0, runtime.store.name_of("version")))
    lose_all_but(runtime.store, kept)
    synchronizer = joined(runtime, may_lack=True)
    commit_in_two_parts(runtime, synchronizer, len(model.weights))
    after = held(runtime)
    for variable in runtime.store.variables:
        name = runtime.store.name_of(f"variable/{variable.ordinal}")
        expected = np.full(variable.shape, variable.dtype.max)
        if (0, name) in kept:
            expected = before[variable.name]
        np.testing.assert_array_equal(after[variable.name], expected)
    assert synchronizer.held() == len(runtime.store.variables)
    assert synchronizer.versions() == [4]
    x = np.ones([2, 3], "float32")
    model.train_on_batch(x, x[:, :2])


@pytest.mark.parametrize("may_lack", [True, False])
def test_a_model_that_differs_from_that_of_a_snapshot_is_refused(may_lack):
    runtime, _ = trained()

    @tf.function(autograph=False)
    def sign():
        tf.raw_ops.AssignVariableOp(
            resource=runtime.store.resource(0, "signature/0", tf.string, []),
            value="dense/kernel parameter float32 [3, 7]",
        )

    sign()
    with pytest.raises(ModelMismatchError, match="3, 7.* order") as refused:
        joined(runtime, may_lack).commit()
    assert ("remove `snapshot_dir`" in str(refused.value)) == may_lack


def test_layers_that_are_built_in_another_order_are_refused():
    strategy = tfdist.AsyncStrategy()
    with strategy.scope():
        made = [keras.Variable([1.0], name=name) for name in ("one", "two")]
    strategy.commit()
    store = strategy._runtime.store

    @tf.function(autograph=False)
    def sign():
        for number, name in enumerate(["two", "one"]):
            tf.raw_ops.AssignVariableOp(
                resource=store.resource(
                    0, f"signature/{number}", tf.string, []
                ),
                value=f"{name} parameter float32 [1]",
            )

    sign()
    with pytest.raises(ModelMismatchError, match="0: here one.*; there two"):
        joined(strategy._runtime, may_lack=False).commit()
    assert len(made) == len(store.variables)


def test_what_workers_have_freed_is_not_filled():
    runtime, model = trained()
    freed = list(runtime.store.variables)[: len(model.weights)]
    for variable in freed:
        lose(runtime, variable)
        lose_named(runtime.store, f"signature/{variable.ordinal}")
    synchronizer = joined(runtime, may_lack=True)
    commit_in_two_parts(runtime, synchronizer, len(model.weights))
    assert all(variable.is_over for variable in freed)
    assert len(list(runtime.store.variables)) > 0
    for variable in freed:
        with pytest.raises(tf.errors.FailedPreconditionError):
            on_server(
                runtime,
                variable,
                lambda handle, v=variable: tf.raw_ops.ReadVariableOp(
                    resource=handle, dtype=v.dtype
                ),
            )


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


@pytest.mark.parametrize(
    ("has_trained", "has_added", "is_kept"),
    [(False, False, False), (True, False, True), (True, True, False)],
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
    ("evaluates", "others_train"), [(False, False), (True, False), (True, True)]
)
@pytest.mark.parametrize(
    ("may_lack", "version", "is_put_back"),
    [(True, 3, True), (True, 4, False), (False, 3, False)],
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
