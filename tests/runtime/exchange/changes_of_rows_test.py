"""A worker pulls rows that another has changed, in whatever way."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.runtime.exchange import delay_test
from tests.runtime.replicas import one_run
from tfdist.runtime.recovery import restoring
from tfdist.runtime.variables.server_scope import read_replica

ROWS, WIDTH = 20_000, 4


def _sgd():
    return keras.optimizers.SGD(0.05)


def _averaging():
    return keras.optimizers.SGD(
        0.05, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=4
    )


def _workers(make_optimizer=_sgd):
    run = next(delay_test._runs)
    workers = [delay_test.VirtualWorker(run, number) for number in range(2)]
    for worker in workers:
        with worker.scope():
            worker.model = keras.Sequential(
                [
                    keras.Input((1,), dtype="int32"),
                    keras.layers.Embedding(ROWS, WIDTH, "ones"),
                    keras.layers.Flatten(),
                    keras.layers.Dense(1, kernel_initializer="ones"),
                ]
            )
            worker.model.compile(make_optimizer(), "mse")
            worker.model.optimizer.build(worker.model.trainable_variables)
        worker.table = worker.model.layers[0].embeddings.value
    return workers


def _train(worker, number):
    """A step that has a gradient of one row."""
    worker.model.train_on_batch(np.array([[number]]), np.array([[3.0]]))


def _assert_pulled(worker):
    """Compares the table of `worker` with the server's."""
    here = read_replica(worker.table).numpy()
    worker.runtime.pull()
    there = read_replica(worker.table).numpy()
    assert len(np.unique(there)) > 1
    np.testing.assert_array_equal(here, there)


def _halve(worker):
    worker.table.assign(worker.table * 0.5)


def _train_all_rows(worker):
    variable = worker.model.layers[0].embeddings
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.convert_to_tensor(worker.table) ** 2)
    gradient = tape.gradient(loss, worker.table)
    worker.model.optimizer.apply([gradient], [variable])


def _add_to_some(worker):
    """Without an optimizer, whose step would count."""
    change = tf.IndexedSlices(
        tf.ones([2, WIDTH]), tf.constant([1, 8]), tf.constant([ROWS, WIDTH])
    )
    worker.extended.update(
        worker.table, lambda table, some: table.scatter_add(some), (change,)
    )


@pytest.mark.nightly
@pytest.mark.parametrize("change", [_add_to_some, _halve, _train_all_rows])
def test_rows_changed_in_a_step(change):
    first, other = _workers()
    for worker, number in ((first, 1), (other, 2), (first, 1), (other, 2)):
        _train(worker, number)

    @tf.function
    def step():
        first.run(change, (first,))

    step()
    _train(other, 2)
    _assert_pulled(other)


@pytest.mark.nightly
def test_rows_overwritten_with_their_averages():
    first, other = _workers(_averaging)
    order = [first, other, first, other]  # The last one overwrites.
    for number, worker in enumerate([*order, first], 1):
        _train(worker, number)
    _assert_pulled(first)


@pytest.mark.nightly
@pytest.mark.parametrize("has_trained", [True, False])
def test_rows_that_a_worker_has_assigned_for_itself(has_trained):
    first, other = _workers()
    for worker in (first, other):
        worker.runtime.commit()
    if has_trained:
        _train(first, 1)
        _train(other, 2)
    other.table.assign(tf.fill([ROWS, WIDTH], 9.0))
    _train(other, 2)
    here = read_replica(other.table).numpy()
    np.testing.assert_array_equal(here[5:], np.ones([ROWS - 5, WIDTH]))
    _assert_pulled(other)


def _restorer(worker):
    return restoring.Restorer(
        worker.runtime.store,
        worker.runtime.gradient_counts,
        worker.runtime.synchronizer,
        2,
    )


@pytest.mark.nightly
@pytest.mark.parametrize("is_restored", [True, False])
def test_rows_of_a_server_that_a_worker_without_rows_restores(is_restored):
    first, other = _workers()
    first.runtime.commit()
    _train(other, 2)
    _train(other, 3)
    first.runtime.pull()
    if is_restored:
        for worker in (first, other):
            one_run.lose_all_but(worker.runtime.store, {})
        assert _restorer(first).restore(0).done
        _restorer(first).complete(0)
    else:
        # Its snapshot had all else.
        ordinal = other.table.ordinal
        one_run.lose_named(other.runtime.store, f"rows/{ordinal}")
        _restorer(other).complete(0)
    other.runtime.synchronizer.pull_committed()
    for worker, number in ((other, 2), (first, 4), (other, 2)):
        _train(worker, number)
    _assert_pulled(other)
