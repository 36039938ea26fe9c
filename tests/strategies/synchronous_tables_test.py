"""Tables beside synchronous updates of all else, in one process."""

import keras
import numpy as np
import pytest

from tests.strategies import tables_test
from tests.strategies import twins
import tfdist
from tfdist.synchronization import Sync


def synchronous():
    """A strategy in one process in which rows are not averaged."""
    return tfdist.ParameterServerStrategy(
        synchronization=Sync(), table_bytes=tables_test.TABLE_BYTES
    )


@pytest.mark.nightly
def test_one_worker_of_sync_trains_as_keras_to_the_bit():
    found = tables_test.train(
        synchronous().scope(), tables_test.OPTIMIZERS["adagrad"]
    )
    twins.assert_same(found, tables_test.plain("adagrad"), tolerance=0.0)


def _train(optimizer="adam", **compiled):
    return lambda strategy: tables_test.train(
        strategy.scope(), tables_test.OPTIMIZERS[optimizer], **compiled
    )


def _mixed(strategy):
    before = keras.mixed_precision.dtype_policy()
    keras.mixed_precision.set_dtype_policy("mixed_float16")
    try:
        return _train()(strategy)
    finally:
        keras.mixed_precision.set_dtype_policy(before)


def _frozen(strategy):
    """Three fits, the second one of all but the table, compiled anew."""
    model, table = tables_test.build(
        strategy.scope(), tables_test.OPTIMIZERS["adam"]
    )
    for trainable in (True, False, True):
        table.trainable = trainable
        with strategy.scope():
            model.compile(tables_test.OPTIMIZERS["adam"](), "mse")
        model.fit(
            *tables_test.examples(), batch_size=8, shuffle=False, verbose=0
        )
    assert strategy.updates_applied() == [9]
    (counts,) = strategy.gradient_counts().values()
    assert counts["accepted"] == counts["pushed"] == 9
    return keras.ops.take(table.embeddings, np.arange(tables_test.ROWS), axis=0)


def _dynamic(strategy):
    with strategy.scope():
        table = tfdist.layers.DynamicEmbedding(
            tables_test.WIDTH, tables_test.ROWS, initializer=1.0
        )
    model, _ = tables_test.build(
        strategy.scope(), tables_test.OPTIMIZERS["adam"], table=table
    )
    model.fit(*tables_test.examples(), batch_size=8, shuffle=False, verbose=0)
    return np.asarray(table(np.arange(tables_test.ROWS)))


ONE_WORKER = {
    "adam": _train(),
    "nadam": _train("nadam"),
    "eager": _train(run_eagerly=True),
    "compiled": _train(jit_compile=True),
    "mixed": _mixed,
    "frozen": _frozen,
    "dynamic": _dynamic,
}


@pytest.mark.nightly
@pytest.mark.parametrize("way", ONE_WORKER)
def test_one_worker_of_sync_trains_as_one_of_async(way):
    found, expected = (
        ONE_WORKER[way](made)
        for made in (synchronous(), tables_test.strategy_with_tables())
    )
    twins.assert_same(found, expected, tolerance=1e-6)


def test_dense_rule_is_for_async():
    with pytest.raises(ValueError, match=r'`table_rule` must be "lazy" with'):
        tfdist.ParameterServerStrategy(
            synchronization=Sync(), table_bytes=1, table_rule="dense"
        )
