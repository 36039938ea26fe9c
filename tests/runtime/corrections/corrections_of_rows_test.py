"""Corrections of sparse gradients: those of the rows of a table.

Several virtual workers (see `delay_test`) train an embedding in a given order;
their batches have different numbers of rows, some of them several times.
"""

import keras
import numpy as np
import pytest

from tests.runtime.coordination.coordinated_exchange_test import make_workers
from tests.runtime.exchange.delay_test import FEATURES
from tests.runtime.exchange.delay_test import LATE
from tests.runtime.exchange.delay_test import RATE
from tfdist import correction
from tfdist.synchronization import Async

WORKERS = 3
_runs = iter(range(10**6))
ROWS, WIDTH = 6, 2


@pytest.mark.nightly
@pytest.mark.parametrize("backups", ["server", "worker"])
def test_rows_of_tables_are_compensated(backups):
    """Row by row g + lambda g^2 d, where a row's gradient is the sum."""
    strength = 3.0
    made = correction.DelayCompensation(strength, None, backups=backups)
    layers = [
        lambda: keras.layers.Embedding(
            ROWS, WIDTH, embeddings_initializer="ones"
        ),
        keras.layers.GlobalAveragePooling1D,
    ]
    workers = make_workers(
        f"rows {next(_runs)}", WORKERS, Async(), made, layers=layers
    )
    random = np.random.default_rng(3)
    tables = [np.ones((ROWS, WIDTH))] * WORKERS
    kernels = [np.ones(WIDTH)] * WORKERS
    biases = [0.0] * WORKERS
    table, kernel, bias = tables[0], kernels[0], 0.0
    for k in LATE:
        count = int(random.integers(2, 5))  # Batches differ in their rows.
        x = random.integers(0, ROWS, (count, FEATURES))
        y = random.normal(size=(count, 1)).astype("float32")
        workers[k].step(x.astype("float32"), y)
        hidden = tables[k][x].mean(1)
        error = 2 * (hidden @ kernels[k] + biases[k] - y[:, 0]) / count
        g_table = np.zeros_like(table)
        share = error[:, None] * kernels[k] / FEATURES
        for column in range(FEATURES):
            np.add.at(g_table, x[:, column], share)
        g_kernel, g_bias = error @ hidden, error.sum()

        def compensated(g, now, then):
            return now - RATE * (g + strength * g * g * (now - then))

        table = compensated(g_table, table, tables[k])
        kernel = compensated(g_kernel, kernel, kernels[k])
        bias = compensated(g_bias, bias, biases[k])
        tables[k], kernels[k], biases[k] = table, kernel, bias
        found = workers[k].model.get_weights()
        np.testing.assert_allclose(found[0], table, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(found[1][:, 0], kernel, rtol=1e-4, atol=1e-5)


def rows_and_whole(made, method, number):
    """What `number` workers see that train a table by rows, and as a whole."""

    class Whole(keras.layers.Layer):
        def build(self, shape):
            del shape
            self.table = self.add_weight(
                shape=(ROWS, WIDTH), initializer="ones", name="table"
            )

        def call(self, x):
            return keras.ops.one_hot(keras.ops.cast(x, "int32"), ROWS) @ (
                self.table
            )

    def embedding():
        return keras.layers.Embedding(
            ROWS, WIDTH, embeddings_initializer="ones"
        )

    for make in (embedding, Whole):
        workers = make_workers(
            f"rows {next(_runs)}",
            number,
            method,
            made,
            layers=[make, keras.layers.GlobalAveragePooling1D],
        )
        random = np.random.default_rng(3)
        seen = []
        for k in (0, 1, 0, 0, 0, 1, 1, 0):
            count = int(random.integers(2, 5))  # Batches differ in their rows.
            x = random.integers(0, ROWS, (count, FEATURES)).astype("float32")
            y = random.normal(size=(count, 1)).astype("float32")
            k = k % number
            workers[k].step(x, y)
            seen.append(workers[k].model.get_weights()[0])
        yield np.array(seen)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("made", "method", "number"),
    [(correction.DANA("slim"), None, 1), (correction.DANA("zero"), Async(), 2)],
)
def test_rows_of_tables_are_corrected_as_the_whole(made, method, number):
    rows, whole = rows_and_whole(made, method, number)
    np.testing.assert_allclose(rows, whole, rtol=1e-4, atol=1e-5)
