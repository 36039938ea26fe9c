"""Corrections of late gradients on a server, with real delays.

Several virtual workers (see `delay_test`) train a Keras model in a given
order; the oracles of `tests.correction` say what each must see.
"""

import dataclasses

from hypothesis import Phase
from hypothesis import given
from hypothesis import strategies as st
import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import laws
from tests import nightly
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


@dataclasses.dataclass
class Case:
    """A correction, its oracle for updates of `s`, and rules that it fits."""

    make: object
    oracle: object
    rules: tuple


ANY = ("adam", "momentum", "sgd")
CASES = {
    "inverse staleness": Case(
        lambda: correction.InverseStaleness(0.5),
        lambda s: oracles.InverseStaleness(0.5),
        ANY,
    ),
    "delay compensation": Case(
        lambda: correction.DelayCompensation(0.3, None),
        lambda s: oracles.DelayCompensation(0.3),
        ANY,
    ),
    "delay compensation by workers": Case(
        lambda: correction.DelayCompensation(0.3, None, backups="worker"),
        lambda s: oracles.DelayCompensation(0.3),
        ANY,
    ),
    "adaptive delay compensation": Case(
        lambda: correction.DelayCompensation(variance_decay=0.9),
        lambda s: oracles.DelayCompensation(2.0, 0.9),
        ANY,
    ),
    "gap aware": Case(
        correction.GapAware, lambda s: oracles.GapAware(RATE), ANY
    ),
    "gap aware by workers": Case(
        lambda: correction.GapAware(backups="worker"),
        lambda s: oracles.GapAware(RATE),
        ANY,
    ),
    "FASGD": Case(correction.FASGD, lambda s: oracles.FASGD(), ("sgd",)),
    "DANA-Zero": Case(
        lambda: correction.DANA("zero"),
        lambda s: oracles.DanaZero(WORKERS, RATE, share=s),
        ("sgd",),
    ),
    "DANA-DC": Case(
        lambda: correction.DANA("dc", lambda_0=0.2),
        lambda s: oracles.DanaZero(WORKERS, RATE, strength=0.2, share=s),
        ("sgd",),
    ),
    "DANA-DC by workers": Case(
        lambda: correction.DANA("dc", lambda_0=0.2, backups="worker"),
        lambda s: oracles.DanaZero(WORKERS, RATE, strength=0.2, share=s),
        ("sgd",),
    ),
    "DANA-Slim": Case(
        correction.DANA, lambda s: oracles.DanaSlim(WORKERS), ("sgd",)
    ),
}
# Method, and how many gradients make an update; None has no ledger.
METHODS = {
    "async": (Async(), 1),
    "softsync": (SoftSync(2), 2),
    "bounded": (BoundedStaleness(99), 1),
}


def check(name, rule, method, order, seed=0, partitioner=None):
    """Takes steps in `order` and compares each with the oracle."""
    case = CASES[name]
    make_optimizer, make_rule = RULES[rule] if rule in RULES else rule
    method, share = METHODS[method]
    made = case.make()
    if made.on_worker and share == 1:
        method = None  # As the strategy does.
    workers = make_workers(
        f"corrections {next(_runs)}",
        WORKERS,
        method,
        made,
        make_optimizer,
        partitioner=partitioner,
    )
    server = oracles.Server(
        [1.0] * FEATURES + [0.0],
        WORKERS,
        case.oracle(share),
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


@pytest.mark.parametrize(
    ("name", "method"),
    nightly.also(
        [("DANA-Zero", "bounded")],
        [
            ("inverse staleness", "async"),
            ("delay compensation", "async"),
            ("gap aware", "async"),
            ("DANA-Slim", "softsync"),
            ("FASGD", "async"),
            ("DANA-DC by workers", "async"),
            ("delay compensation by workers", "async"),
            ("adaptive delay compensation", "softsync"),
            ("gap aware by workers", "softsync"),
            ("DANA-DC", "softsync"),
        ],
    ),
)
def test_late_gradients_are_corrected(name, method):
    rule = CASES[name].rules[0]
    workers, server = check(name, rule, method, LATE)
    # What is evaluated and saved are the parameters, without a look-ahead.
    workers[2].runtime.pull()
    np.testing.assert_allclose(
        workers[2].weights(), server.theta, rtol=2e-3, atol=2e-4
    )


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
@laws.settings(max_examples=2, phases=[Phase.generate])
@given(
    order=st.lists(st.integers(0, WORKERS - 1), min_size=9, max_size=18),
    name_and_rule=st.sampled_from(
        [(name, rule) for name in sorted(CASES) for rule in CASES[name].rules]
    ),
    method=st.sampled_from(sorted(METHODS)),
)
def test_any_order_of_workers(order, name_and_rule, method):
    check(*name_and_rule, method, order)


@pytest.mark.nightly
def test_no_compensation_is_asynchronous_sgd_to_the_bit():
    def trajectory(made, method):
        run = f"corrections {next(_runs)}"
        workers = make_workers(run, WORKERS, method, made, "adam_decay")
        seen = []
        for k, (x, y) in zip(
            LATE, delay_test.batches(len(LATE), seed=1), strict=True
        ):
            workers[k].step(x, y)
            seen.append(workers[k].weights())
        return seen

    none = correction.DelayCompensation(0, None)
    np.testing.assert_array_equal(
        trajectory(none, Async()), trajectory(None, None)
    )


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


def test_copy_is_of_what_the_worker_pulled_not_of_what_it_then_changed():
    """Muon's weight decay changes the replica before the update."""
    for backups in ("server", "worker"):
        made = correction.DelayCompensation(1e3, None, backups=backups)
        run = f"corrections {next(_runs)}"
        (worker,) = make_workers(
            run, 1, Async(), made, lambda: delay_test.Shrinking(RATE)
        )
        weights = np.array([1.0] * FEATURES + [0.0])
        for x, y in delay_test.batches(3, seed=0):
            worker.step(x, y)
            gradient = delay_test.gradient(weights, x, y)
            weights = weights - 0.25 * weights - RATE * gradient
            np.testing.assert_allclose(
                worker.weights(), weights, rtol=2e-5, atol=2e-6
            )


def test_what_the_chief_sets_is_what_it_pulled():
    """New weights are no delay of the chief's own gradient."""
    for backups in ("server", "worker"):
        made = correction.DelayCompensation(1e3, None, backups=backups)
        (worker,) = make_workers(f"corrections {next(_runs)}", 1, Async(), made)
        (first, second) = delay_test.batches(2, seed=0)
        worker.step(*first)
        worker.model.set_weights([np.full((FEATURES, 1), 2.0), np.zeros(1)])
        worker.step(*second)
        weights = np.array([2.0] * FEATURES + [0.0])
        weights -= RATE * delay_test.gradient(weights, *second)
        np.testing.assert_allclose(worker.weights(), weights, rtol=2e-5)


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


def test_momentum_of_a_worker_that_has_left_leaves_the_sum():
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
        workers[k].step(x, y)
        server.arrive(k, delay_test.gradient(server.copies[k], x, y))
        np.testing.assert_allclose(
            workers[k].weights(), server.copies[k], rtol=1e-4, atol=1e-5
        )


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
