"""Corrections of late gradients on a server, with real delays.

Several virtual workers (see `delay_test`) train a Keras model in a given
order; the oracles of `tests.correction` say what each must see.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.correction import oracles
from tests.runtime.coordination.coordinated_exchange_test import make_workers
from tests.runtime.exchange import delay_test
from tests.runtime.exchange.delay_test import FEATURES
from tests.runtime.exchange.delay_test import LATE
from tests.runtime.exchange.delay_test import RATE
from tests.runtime.exchange.delay_test import RULES
from tfdist import correction
from tfdist.synchronization import Async
from tfdist.synchronization import BoundedStaleness
from tfdist.synchronization import SoftSync

WORKERS = 3
_runs = iter(range(10**6))


# A correction, and its oracle where an update is of `s` gradients. Others, and
# others' orders: `tests.correction`, and `tests.multi_process` on servers.
CASES = {
    "delay compensation by workers": (
        lambda: correction.DelayCompensation(0.3, None, backups="worker"),
        lambda s: oracles.DelayCompensation(0.3),
    ),
    "adaptive delay compensation": (
        lambda: correction.DelayCompensation(variance_decay=0.9),
        lambda s: oracles.DelayCompensation(2.0, 0.9),
    ),
    "gap aware by workers": (
        lambda: correction.GapAware(backups="worker"),
        lambda s: oracles.GapAware(RATE),
    ),
    "DANA-Zero": (
        lambda: correction.DANA("zero"),
        lambda s: oracles.DanaZero(WORKERS, RATE, share=s),
    ),
    "DANA-DC": (
        lambda: correction.DANA("dc", lambda_0=0.2),
        lambda s: oracles.DanaZero(WORKERS, RATE, strength=0.2, share=s),
    ),
}
# Method, and how many gradients make an update.
METHODS = {
    "async": (Async(), 1),
    "softsync": (SoftSync(2), 2),
    "bounded": (BoundedStaleness(99), 1),
}


def check(name, rule, method, order, seed=0, partitioner=None):
    """Takes steps in `order` and compares each with the oracle."""
    make, make_oracle = CASES[name]
    make_optimizer, make_rule = RULES[rule] if rule in RULES else rule
    method, share = METHODS[method]
    workers = make_workers(
        f"corrections {next(_runs)}",
        WORKERS,
        method,
        make(),
        make_optimizer,
        partitioner=partitioner,
    )
    server = oracles.Server(
        [1.0] * FEATURES + [0.0],
        WORKERS,
        make_oracle(share),
        make_rule().apply,
        share,
    )
    data = delay_test.batches(len(order), seed)
    for k, (x, y) in zip(order, data, strict=True):
        staleness = workers[k].step(x, y)
        gradient = delay_test.gradient(server.copies[k], x, y)
        assert staleness == server.arrive(k, gradient)
        np.testing.assert_allclose(
            workers[k].weights(), server.copies[k], rtol=2e-3, atol=2e-4
        )
    assert workers[0].runtime.updates_applied() == [len(order) // share]
    return workers, server


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "rule", "method"),
    [
        ("DANA-Zero", "sgd", "bounded"),
        ("adaptive delay compensation", "adam", "softsync"),
        ("gap aware by workers", "momentum", "softsync"),
        ("DANA-DC", "sgd", "softsync"),
    ],
)
def test_late_gradients_are_corrected(name, rule, method):
    check(name, rule, method, LATE)


class DecayedSgd:
    """w <- (1 - rate * decay) * w - rate * g: the decay is of the newest w."""

    def apply(self, weights, gradient):
        return weights - RATE * 0.5 * weights - RATE * gradient


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["DANA-Zero", "delay compensation by workers"])
def test_weight_decay_is_not_corrected(name):
    rule = (lambda: keras.optimizers.SGD(RATE, weight_decay=0.5), DecayedSgd)
    check(name, rule, "async", LATE)


@pytest.mark.nightly
def test_pieces_are_corrected_as_the_whole():
    partitioner = tf.distribute.experimental.partitioners.FixedShardsPartitioner
    workers, _ = check(
        "DANA-DC", "sgd", "async", LATE, partitioner=partitioner(2)
    )
    kernel = workers[0].model.layers[-1].kernel.value
    assert len(kernel.pieces) == 2


@pytest.mark.nightly
def test_look_ahead_follows_the_rate():
    """Of the update that was last made, as a schedule gives it."""
    schedule = keras.optimizers.schedules.InverseTimeDecay(RATE, 1, 1.0)
    workers = make_workers(
        f"corrections {next(_runs)}",
        2,
        Async(),
        correction.DANA("zero", 0.5),
        lambda: keras.optimizers.SGD(schedule),
    )
    theta = np.array([1.0] * FEATURES + [0.0])
    copies, momenta = [theta, theta], [0.0, 0.0]
    order = [0, 1, 1, 0]
    for step, (k, (x, y)) in enumerate(
        zip(order, delay_test.batches(len(order), seed=2), strict=True)
    ):
        workers[k].step(x, y)
        gradient = delay_test.gradient(copies[k], x, y)
        rate = RATE / (1 + step)
        momenta[k] = 0.5 * momenta[k] + gradient
        theta = theta - rate * momenta[k]
        copies[k] = theta - rate * 0.5 * sum(momenta)
        np.testing.assert_allclose(
            workers[k].weights(), copies[k], rtol=1e-4, atol=1e-5
        )


@pytest.mark.nightly
def test_traffic_of_copies():
    """Kept by servers they cost none; sent by workers, as much as a push."""
    pushed = {}
    for backups in ("server", "worker", None):
        made = correction.InverseStaleness()
        if backups is not None:
            made = correction.DelayCompensation(backups=backups)
        (worker,) = make_workers(f"corrections {next(_runs)}", 1, Async(), made)
        ((x, y),) = delay_test.batches(1, seed=0)
        worker.model.train_on_batch(x, y)
        (exchange,) = worker.runtime.journal.read_new()
        pushed[backups] = exchange.bytes_sent
    assert pushed["server"] == pushed[None]
    parameters = 4 * (FEATURES + 1)
    assert pushed["worker"] == pushed[None] + parameters


@pytest.mark.nightly
def test_copy_is_of_what_the_worker_pulled_not_of_what_it_then_changed():
    """Muon's weight decay changes the replica before the update.

    Nor are weights that the chief sets a delay of its own gradient.
    """
    for backups in ("server", "worker"):
        made = correction.DelayCompensation(1e3, None, backups=backups)
        run = f"corrections {next(_runs)}"
        (worker,) = make_workers(
            run, 1, Async(), made, lambda: delay_test.Shrinking(RATE)
        )
        weights = np.array([1.0] * FEATURES + [0.0])
        for step, (x, y) in enumerate(delay_test.batches(4, seed=0)):
            if step == 2:
                weights = np.array([2.0] * FEATURES + [0.0])
                kernel, bias = weights[:FEATURES, None], weights[FEATURES:]
                worker.model.set_weights([kernel, bias])
            worker.step(x, y)
            gradient = delay_test.gradient(weights, x, y)
            weights = weights - 0.25 * weights - RATE * gradient
            np.testing.assert_allclose(
                worker.weights(), weights, rtol=2e-5, atol=2e-6
            )


@pytest.mark.nightly
def test_half_precision_does_not_lose_the_compensation():
    """2e-4 squared, times 1e6: neither factor fits float16; 0.08 does."""
    made = correction.DelayCompensation(1e6, None)
    keras.config.set_floatx("float16")
    try:
        early, late = make_workers(
            f"corrections {next(_runs)}",
            2,
            Async(),
            made,
            lambda: keras.optimizers.SGD(1.0),
        )
    finally:
        keras.config.set_floatx("float32")
    x = np.zeros((1, FEATURES), "float16")

    def step(worker, g):
        """A step whose gradient is g for the bias, and else 0."""
        bias = float(worker.weights()[-1])
        worker.model.train_on_batch(x, np.full((1, 1), bias - g / 2, "float16"))
        return float(worker.weights()[-1])

    assert step(early, -2.0) == 2.0  # The late one's delay.
    found = step(late, 2e-4)
    wanted = 2.0 - (2e-4 + 1e6 * 4e-8 * 2)
    np.testing.assert_allclose(found, wanted, atol=3e-3)


@pytest.mark.nightly
def test_double_precision():
    keras.config.set_floatx("float64")
    try:
        check("adaptive delay compensation", "sgd", "async", [0, 1, 0, 0, 1, 2])
    finally:
        keras.config.set_floatx("float32")


@pytest.mark.nightly
def test_momentum_of_a_worker_that_has_left_leaves_the_sum():
    """Before and after, late gradients are corrected as DANA-Zero says."""
    method, made = Async(), correction.DANA("zero")
    workers = make_workers(
        f"corrections {next(_runs)}", WORKERS, method, made, "sgd"
    )
    oracle = oracles.DanaZero(WORKERS, RATE)
    server = oracles.Server(
        [1.0] * FEATURES + [0.0], WORKERS, oracle, RULES["sgd"][1]().apply
    )
    order = [0, 1, 2, 1, None, 0, 1, 0, 2, 1]
    data = delay_test.batches(len(order), seed=7)
    for k, (x, y) in zip(order, data, strict=True):
        if k is None:
            workers[2].runtime.coordination.leave()
            oracle.gone(2)
            continue
        staleness = workers[k].step(x, y)
        gradient = delay_test.gradient(server.copies[k], x, y)
        assert staleness == server.arrive(k, gradient)
        np.testing.assert_allclose(
            workers[k].weights(), server.copies[k], rtol=1e-4, atol=1e-5
        )
    # What is evaluated and saved are the parameters, without a look-ahead.
    runtime = workers[0].runtime
    runtime.pull()
    np.testing.assert_allclose(
        workers[0].weights(), server.theta, rtol=1e-4, atol=1e-5
    )
    # A fit begins with one, unless all momenta are about to leave the sum.
    for k in range(WORKERS):
        runtime.corrector.show_ahead()
        np.testing.assert_allclose(
            workers[0].weights(),
            oracle.given(server.theta),
            rtol=1e-4,
            atol=1e-5,
        )
        runtime.pull()
        workers[k].runtime.coordination.leave()
    runtime.corrector.show_ahead()
    np.testing.assert_allclose(
        workers[0].weights(), server.theta, rtol=1e-4, atol=1e-5
    )


@pytest.mark.nightly
def test_momenta_begin_anew_where_a_snapshot_is_of_fewer_workers():
    """What decides over their gradients does as well."""
    run, method, made = f"corrections {next(_runs)}", Async(), "zero"
    batches = delay_test.batches(9, seed=3)
    workers = make_workers(run, 2, method, correction.DANA(made), "sgd")
    for k, (x, y) in enumerate(batches[:3]):
        workers[k % 2].step(x, y)
    # As if their server was started again with what it holds.
    workers = make_workers(run, WORKERS, method, correction.DANA(made), "sgd")
    server = oracles.Server(
        workers[0].weights(),
        WORKERS,
        oracles.DanaZero(WORKERS, RATE),
        RULES["sgd"][1]().apply,
    )
    for k, (x, y) in zip([0, 2, 1, 2, 0, 1], batches[3:], strict=True):
        staleness = workers[k].step(x, y)
        gradient = delay_test.gradient(server.copies[k], x, y)
        assert staleness == server.arrive(k, gradient)
        np.testing.assert_allclose(
            workers[k].weights(), server.copies[k], rtol=1e-4, atol=1e-5
        )
    assert workers[0].runtime.updates_applied() == [9]
    counts = workers[0].runtime.coordination.counts()
    assert [counts[f"worker {k}"]["accepted"] for k in range(3)] == [2, 2, 2]


@pytest.mark.nightly
def test_constrained_parameters_are_looked_ahead_too():
    """A constraint is an exchange of its own, after the optimizer's."""

    def make_dense():
        return keras.layers.Dense(1, kernel_constraint="non_neg")

    workers = make_workers(
        f"corrections {next(_runs)}",
        2,
        Async(),
        correction.DANA("zero"),
        "sgd",
        [make_dense],
    )
    order = [0, 1, 1, 0]
    for k, (x, y) in zip(
        order, delay_test.batches(len(order), seed=0), strict=True
    ):
        workers[k].step(x, y)
    kernel = workers[0].model.layers[0].kernel
    ahead = kernel.numpy()
    workers[0].runtime.pull()
    theta = kernel.numpy()
    assert (theta >= 0).all()
    assert np.abs(ahead - theta).max() > 1e-3
