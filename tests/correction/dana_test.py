"""DANA: golden values, one worker, what is refused.

Hakimi et al. 2019 (papers.md 7).
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.correction.eager_server import EagerServer
from tests.correction.eager_server import late
from tests.correction.eager_server import make_slots
from tfdist.correction import DANA
from tfdist.strategies.method import Method
from tfdist.synchronization import Async
from tfdist.synchronization import BoundedStaleness
from tfdist.synchronization import SoftSync
from tfdist.synchronization import Sync


def test_first_updates_of_zero():
    """Gamma = 1/2, eta = 1, gradients 4 of worker 0, 2 of 1, 1 of 0, by hand.

    v_0 = 4,             theta = -4,  worker 0 gets -4 - (4)/2     = -6
    v_1 = 2,             theta = -6,  worker 1 gets -6 - (4 + 2)/2 = -9
    v_0 = 2 + 1 = 3,     theta = -9,  worker 0 gets -9 - (3 + 2)/2 = -11.5
    """
    server = EagerServer([0.0], 2, DANA("zero", 0.5), 1.0)
    for worker, g, theta, given in (
        (0, 4.0, -4.0, -6.0),
        (1, 2.0, -6.0, -9.0),
        (0, 1.0, -9.0, -11.5),
    ):
        server.arrive(worker, [g])
        assert server.theta.numpy() == [theta]
        assert server.copies[worker].numpy() == [given]


def test_first_updates_of_slim():
    """The same: u = 0.5 * 4 + 4 = 6, 0.5 * 2 + 2 = 3, 0.5 * 3 + 1 = 2.5."""
    server = EagerServer([0.0], 2, DANA("slim", 0.5), 1.0)
    for worker, g, theta in ((0, 4.0, -6.0), (1, 2.0, -9.0), (0, 1.0, -11.5)):
        server.arrive(worker, [g])
        assert server.theta.numpy() == [theta]


def test_first_updates_of_dc():
    """As Zero with g + lambda g^2 d, where d is from what was given, lambda=2.

    Worker 1 still has 0 when theta is -4: g = 2 becomes 2 + 2 * 4 * -4 = -30.
    """
    server = EagerServer([0.0], 2, DANA("dc", 0.5), 1.0)
    server.arrive(0, [4.0])
    server.arrive(1, [2.0])
    assert server.theta.numpy() == [-4.0 + 30.0]


@pytest.mark.parametrize("variant", ["zero", "slim"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_one_worker_has_nesterovs_momentum(variant, momentum):
    """Keras's own rule: m <- gamma m - eta g; w <- w + gamma m - eta g.

    Its w is what gradients are computed at: the look-ahead.
    """
    rate, start = 0.1, [1.0, -2.0]
    server = EagerServer(start, 1, DANA(variant, momentum), rate)
    variable = keras.Variable(start)
    optimizer = keras.optimizers.SGD(rate, momentum, nesterov=True)
    for step in range(12):
        wave = np.sin([step, step + 1.0])
        server.arrive(0, server.copies[0] * [0.5, 2.0] + wave)
        gradient = variable.numpy() * [0.5, 2.0] + wave
        optimizer.apply([keras.ops.cast(gradient, "float32")], [variable])
        np.testing.assert_allclose(
            server.copies[0], variable.numpy(), rtol=1e-6, atol=1e-6
        )


@pytest.mark.parametrize("variant", ["zero", "dc", "slim"])
def test_sparse_gradients_have_momentum_in_all_rows(variant):
    correction = DANA(variant, 0.5)
    dense_slots = make_slots(correction, [3, 1], num_workers=2)
    slots = make_slots(correction, [3, 1], num_workers=2)
    now = np.array([[1.0], [2.0], [4.0]], "float32")
    then = np.zeros((3, 1), "float32")
    for rows in ([0, 2], [2, 2], [1, 0]):
        values = np.array([[1.0], [3.0]], "float32")
        gradient = np.zeros((3, 1), "float32")
        np.add.at(gradient, rows, values)
        dense = late(gradient, worker=1, now=now, then=then)
        sparse = late(
            values, worker=1, now=now[rows], then=then[rows], rows=rows
        )
        np.testing.assert_allclose(
            correction.correct(sparse, slots),
            correction.correct(dense, dense_slots),
            rtol=1e-6,
        )


def test_takes_sgd_without_momentum():
    DANA().check_optimizer(keras.optimizers.SGD(weight_decay=0.1))
    for optimizer, received in (
        (keras.optimizers.Adam(), "Adam"),
        (
            keras.optimizers.SGD(momentum=0.9, nesterov=True),
            "SGD(momentum=0.9, nesterov=True)",
        ),
    ):
        with pytest.raises(ValueError) as error:
            DANA("zero", 0.8).check_optimizer(optimizer)
        assert str(error.value) == (
            "Argument `optimizer` must be a keras.optimizers.SGD without "
            "momentum with DANA, because the momentum is DANA's own "
            f"(momentum=0.8). Received: optimizer={received}"
        )


def test_which_methods_it_fits():
    for method in (Async(), BoundedStaleness(1), SoftSync(2)):
        DANA("zero").resolve(method, 4)
    with pytest.raises(ValueError, match="DANA is for gradients that are late"):
        DANA("zero").resolve(Sync(1), 4)


def test_a_look_ahead_is_of_the_workers_at_the_start():
    """Of eight places two are used, and each update is of one gradient."""
    method = Method(SoftSync(n=2), correction=DANA("zero", 0.5))
    for initial, gradients in ((None, 4), (6, 3), (2, 1), (1, 1)):
        made = method.resolve(8, initial_workers=initial).correction
        slots = make_slots(made, [1], 8)
        slots.assign("rate", 1.0)
        slots.assign("sum", [6.0])
        ahead = made.look_ahead(tf.constant([0.0]), slots)
        np.testing.assert_allclose(ahead, [-0.5 / gradients * 6.0])


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        (
            {"variant": "one"},
            r"`variant` of DANA must be one of \['zero', 'slim', 'dc'\]. "
            r"Received: variant='one'",
        ),
        (
            {"momentum": 1.0},
            "`momentum` of DANA must be .* less than 1. Received: momentum=1.0",
        ),
        (
            {"lambda_0": 1.0},
            "`lambda_0` of DANA .* variant='dc'. Received: .*'slim'",
        ),
        (
            {"variant": "zero", "backups": "server"},
            "`backups` of DANA .* variant='dc'. Received: .*'zero'",
        ),
        (
            {"variant": "dc", "lambda_0": -1},
            "`lambda_0` .* must be .*Received: lambda_0=-1",
        ),
        (
            {"variant": "dc", "backups": "disk"},
            "`backups` .* must be .* backups='disk'",
        ),
    ],
)
def test_bad_arguments(kwargs, message):
    with pytest.raises(ValueError, match=message):
        DANA(**kwargs)


def test_repr_tells_settings_apart():
    assert repr(DANA()) == "DANA('slim', momentum=0.9)"
    assert repr(DANA("dc", 0.8, backups="worker")) == (
        "DANA('dc', momentum=0.8, lambda_0=2, backups='worker')"
    )


@pytest.mark.parametrize("num_workers", [1, 2, 3])
def test_saved_momenta_go_to_another_number_of_workers(num_workers):
    """Those of workers who are no more leave the sum."""
    momenta = np.array([[1.0, 2.0], [10.0, 20.0]])
    saved = {"momenta": momenta, "sum": momenta.sum(0), "rate": np.array(0.1)}
    found = DANA("zero").for_workers(saved, num_workers)
    expected = {
        1: [[1.0, 2.0]],
        2: [[1.0, 2.0], [10.0, 20.0]],
        3: [[1.0, 2.0], [10.0, 20.0], [0.0, 0.0]],
    }[num_workers]
    assert found["momenta"].tolist() == expected
    assert found["sum"].tolist() == np.sum(expected, 0).tolist()
    assert found["rate"] == 0.1
