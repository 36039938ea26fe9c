"""What workers give to servers that nobody was there to restore."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import nightly
from tests.runtime.replicas.one_run import commit_in_two_parts
from tests.runtime.replicas.one_run import held
from tests.runtime.replicas.one_run import joined
from tests.runtime.replicas.one_run import lose
from tests.runtime.replicas.one_run import lose_all_but
from tests.runtime.replicas.one_run import lose_named
from tests.runtime.replicas.one_run import on_server
from tests.runtime.replicas.one_run import short_names
from tests.runtime.replicas.one_run import trained
import tfdist
from tfdist.saved_state import ModelMismatchError


@pytest.mark.nightly
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


@pytest.mark.nightly
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


@pytest.mark.parametrize("may_lack", nightly.also([False], [True]))
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


@pytest.mark.nightly
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


@pytest.mark.nightly
def test_a_worker_does_not_wait_for_the_last_model_if_that_was_freed():
    """The chief shows that with the next one."""
    runtime, _ = trained()
    store, freed = runtime.store, list(runtime.store.variables)
    for variable in freed:
        lose(runtime, variable)
        lose_named(store, f"signature/{variable.ordinal}")

    @tf.function(autograph=False)
    def make_another():
        name = f"signature/{len(freed)}"
        tf.raw_ops.AssignVariableOp(
            resource=store.resource(0, name, tf.string, []),
            value="dense/kernel parameter float32 [3, 7]",
        )
        store.counter("held", 0).set(len(freed) + 1)

    worker = joined(runtime, may_lack=True, is_chief=False)
    lacks = worker.first_values.lacks

    def look(*args):
        found = lacks(*args)
        if found:
            make_another()
        return found

    worker.first_values.lacks = look
    worker.commit()
    assert all(variable.is_over for variable in freed)
