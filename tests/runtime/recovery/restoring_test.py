"""What a worker puts back onto a server that lacks some of it."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import nightly
from tests.runtime.replicas import one_run
import tfdist
from tfdist.runtime.recovery import restoring
from tfdist.runtime.variables import server_scope
from tfdist.runtime.variables.variables import Role


def leave_word(runtime, number, without=None):
    """The first server takes itself to hold so many variables."""

    @tf.function(autograph=False)
    def call():
        if without is not None:
            tf.raw_ops.DestroyResourceOp(
                resource=runtime.store.resource(0, without, tf.string, [])
            )
        runtime.store.counter("held", 0).set(number)

    call()


def set_counter(runtime, number, name="version"):
    """The first server takes itself to be of another snapshot."""

    @tf.function(autograph=False)
    def call():
        runtime.store.counter(name, 0).set(number)

    call()


def test_a_worker_puts_back_what_a_snapshot_lacks_and_nothing_else():
    runtime, _ = one_run.trained()
    restorer = restoring.Restorer(
        runtime.store, runtime.gradient_counts, runtime.synchronizer, 1
    )
    assert restorer.complete(0) == 0
    # Counts of gradients: a snapshot of another number of workers has none.
    counts = runtime.gradient_counts.read()
    one_run.lose_named(runtime.store, "gradients/of-1")
    assert restorer.complete(0) == 0
    assert runtime.gradient_counts.read() == counts
    assert restorer.complete(0) == 0
    # Values.
    before = one_run.held(runtime)
    lost = [v for v in runtime.store.variables if "momentum" in v.name]
    for variable in lost:
        one_run.lose(runtime, variable)
    leave_word(runtime, 2, without="signature/4")
    names = {v.name for v in lost}
    for variable in runtime.store.variables:
        if variable.name not in names:
            variable.assign_replica(tf.zeros(variable.shape, variable.dtype))
    assert restorer.complete(0) == len(lost) == 2
    after = one_run.held(runtime)
    for variable in runtime.store.variables:
        expected = before[variable.name]
        if variable.name in names:
            # What was read of it last.
            expected = server_scope.read_replica(variable).numpy()
        np.testing.assert_array_equal(after[variable.name], expected)
    # The others, too, find all of it.
    assert runtime.synchronizer.held() == len(runtime.store.variables)
    runtime.synchronizer.first_values._checked = 0
    runtime.synchronizer.first_values.check(len(runtime.store.variables))
    assert restorer.complete(0) == 0
    # The word of what is held is never of less.
    number = len(runtime.store.variables)
    for held, without in ((1, None), (number + 4, "signature/0")):
        leave_word(runtime, held, without)
        assert restorer.complete(0) == 0
        assert runtime.synchronizer.held() == max(held, number)


@pytest.mark.nightly
def test_rows_that_begin_again_are_counted_as_lost():
    strategy = tfdist.AsyncStrategy(table_bytes=1)
    with strategy.scope():
        layer = keras.layers.Embedding(20, 2)
        model = keras.Sequential([keras.Input((3,), dtype="int64"), layer])
        model.compile("sgd", "mse")
    ids = np.arange(24).reshape(8, 3) % 20
    model.fit(ids, np.ones([8, 3, 2]), batch_size=2, verbose=0)
    runtime = strategy._runtime
    restorer = restoring.Restorer(
        runtime.store, runtime.gradient_counts, runtime.synchronizer, 1
    )
    assert restorer.lost_by_rows(0) == (0, 0)
    table = layer.embeddings.value
    name = runtime.store.held_name(table, table.pieces[0])
    one_run.lose_named(runtime.store, name)
    assert restorer.complete(0) == 1
    assert restorer.lost_by_rows(0) == (4, 4)


@pytest.mark.nightly
def test_state_that_update_rules_alone_touch_stays_as_in_the_snapshot():
    """Factors of Adafactor: workers have but their first values."""
    runtime, model = one_run.trained("adafactor")

    def held():
        return {
            v.ordinal: one_run.on_server(
                runtime,
                v,
                lambda handle, v=v: tf.raw_ops.ReadVariableOp(
                    resource=handle, dtype=v.dtype
                ),
            ).numpy()
            for v in runtime.store.variables
        }

    before = held()
    for variable in runtime.store.variables:
        value = tf.zeros(variable.shape, variable.dtype)
        variable.assign_replica(value)
    set_counter(runtime, 1)
    restorer = restoring.Restorer(
        runtime.store, runtime.gradient_counts, runtime.synchronizer, 1
    )
    restored = restorer.restore(0)
    assert restored.done
    after = held()
    factors = [
        v
        for v in runtime.store.variables
        if v.made_by_optimizer and v.role is Role.STATE
    ]
    # Of the rows and of the columns of the kernel; two slots besides.
    assert len(factors) == 2
    assert restored.kept == 4
    for variable in factors:
        assert np.all(before[variable.ordinal])
        np.testing.assert_array_equal(
            after[variable.ordinal], before[variable.ordinal]
        )
    for weight in model.weights:
        assert not np.any(after[weight.value.ordinal])


@pytest.mark.nightly
def test_what_was_assigned_since_a_snapshot_is_newer_though_no_update_is():
    runtime, model = one_run.trained()
    restorer = restoring.Restorer(
        runtime.store, runtime.gradient_counts, runtime.synchronizer, 1
    )
    (mine,) = restorer.offer(0, True).orders
    assert mine == restorer.offer(0, True).held
    # One more than the version.
    assert mine // restoring._WRITES_BASE == 5
    kernel = model.weights[0].value
    best = np.full(kernel.shape, 7.0)
    kernel.assign(best)
    runtime.pull()
    (mine,) = restorer.offer(0, True).orders
    assert mine == restorer.offer(0, True).held
    # The server goes back to the snapshot of before.
    kernel.assign(best + 1.0)
    kernel.assign_replica(tf.constant(best, kernel.dtype))
    set_counter(runtime, 0, "version/writes")
    assert restorer.offer(0, True).held < mine
    restored = restorer.restore(0)
    assert (restored.done, restored.before, restored.version) == (True, 4, 4)
    np.testing.assert_array_equal(one_run.held(runtime)[kernel.name], best)
    # What another worker has put there since is newer than this one knows.
    set_counter(runtime, 3, "version/writes")
    assert not restorer.restore(0).done


@pytest.mark.nightly
@pytest.mark.parametrize(
    "strategy",
    nightly.also([tfdist.AsyncStrategy], [tfdist.BoundedStalenessStrategy]),
)
def test_a_snapshot_of_steps_without_an_optimizer_stays(strategy):
    """A worker may have older values of what other workers' steps assign."""
    strategy = strategy()
    with strategy.scope():
        weight = keras.Variable(np.zeros(2, "float32"), name="w")
    runtime = strategy._runtime

    @tf.function
    def step():
        strategy.run(lambda: weight.assign_add([1.0, 1.0]))

    restorer = restoring.Restorer(
        runtime.store, runtime.gradient_counts, runtime.synchronizer, 1
    )
    # By that snapshots know that there is something new.
    counts = []
    for _ in range(3):
        step()
        held = restorer.offer(0, True).held
        counts.append(held % restoring._WRITES_BASE)
    assert counts == [1, 2, 3]
    # The server goes back to the snapshot of a step before.
    set_counter(runtime, 2, "version/writes")
    weight.value.assign_replica(tf.constant([0.0, 0.0]))
    assert not restorer.restore(0).done
    held = one_run.held(runtime)
    np.testing.assert_array_equal(held[weight.value.name], [3.0, 3.0])
    assert strategy.updates_applied() == [0]
    # What a worker has pulled as a whole, it knows.
    runtime.pull()
    set_counter(runtime, 1, "version/writes")
    assert restorer.restore(0).done
