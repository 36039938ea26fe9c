"""Whose learning rate an update of several workers' gradients takes."""

import numpy as np
import pytest

from tests.runtime.coordination import coordinated_exchange_test
from tests.runtime.exchange import delay_test
from tfdist.synchronization import SoftSync

RATES = [0.0625, 0.03125, 0.25]


def trained(workers, order, size):
    """Steps in `order`, compared with an oracle after each update.

    Args:
        workers: whose rates are `RATES`.
        order: numbers of workers.
        size: gradients in an update.
    """
    for worker, rate in zip(workers, RATES, strict=True):
        worker.model.optimizer.learning_rate = rate
    server = workers[0].weights()
    copies, members = [server] * len(workers), []
    data = delay_test.batches(len(order), seed=4)
    for k, (x, y) in zip(order, data, strict=True):
        workers[k].step(x, y)
        gradient = delay_test.gradient(copies[k], x, y)
        members.append((k, gradient))
        if len(members) == size:
            # The rule: that of the lowest number among them.
            rate = RATES[min(number for number, _ in members)]
            server = server - rate * sum(g for _, g in members) / size
            members = []
        copies[k] = server
        np.testing.assert_allclose(
            workers[k].weights(), server, rtol=2e-5, atol=2e-6
        )


@pytest.mark.nightly
def test_an_update_takes_the_rate_of_the_lowest_whoever_carries_it_out():
    workers = coordinated_exchange_test.make_workers(
        "settings of softsync", 3, SoftSync(3), rule="sgd"
    )
    trained(workers, [0, 1, 2, 2, 1, 0, 1, 0, 2, 2, 1, 2], 3)
