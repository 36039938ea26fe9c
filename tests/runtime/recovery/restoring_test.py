"""What a worker puts back onto a server that lacks some of it."""

import numpy as np
import pytest
import tensorflow as tf

from tests.runtime.replicas import first_values_test
from tfdist.runtime.recovery import restoring
from tfdist.runtime.variables import server_scope


def leave_word(store, number, without=None):
    """The first server takes itself to hold so many variables."""

    @tf.function(autograph=False)
    def call():
        if without is not None:
            tf.raw_ops.DestroyResourceOp(
                resource=store.resource(0, without, tf.string, [])
            )
        store.counter("held", 0).set(number)

    call()


def test_a_worker_puts_back_what_a_snapshot_lacks_and_nothing_else():
    store, _ = first_values_test.trained()
    restorer = restoring.Restorer(store, store.synchronizer, 1)
    before = first_values_test.held(store)
    assert restorer.complete(0) == 0
    lost = [v for v in store.variables if "momentum" in v.name]
    for variable in lost:
        first_values_test.lose(store, variable)
    leave_word(store, 2, without="signature/4")
    names = {v.name for v in lost}
    for variable in store.variables:
        if variable.name not in names:
            variable.assign_replica(tf.zeros(variable.shape, variable.dtype))
    assert restorer.complete(0) == len(lost) == 2
    after = first_values_test.held(store)
    for variable in store.variables:
        expected = before[variable.name]
        if variable.name in names:
            # What was read of it last.
            expected = server_scope.read_replica(variable).numpy()
        np.testing.assert_array_equal(after[variable.name], expected)
    # The others, too, find all of it.
    assert store.synchronizer.held() == len(store.variables)
    store.synchronizer.first_values._checked = 0
    store.synchronizer.first_values.check(len(store.variables))
    assert restorer.complete(0) == 0


@pytest.mark.parametrize(("held", "without"), [(1, None), (9, "signature/0")])
def test_word_of_what_is_held_is_never_of_less(held, without):
    store, _ = first_values_test.trained()
    restorer = restoring.Restorer(store, store.synchronizer, 1)
    leave_word(store, held, without)
    assert restorer.complete(0) == 0
    assert store.synchronizer.held() == max(held, len(store.variables))
