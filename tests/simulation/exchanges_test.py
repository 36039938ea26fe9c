"""Exchanges of virtual workers, against NumPy, Keras and `simulate`."""

import keras
import numpy as np
import pytest

from tests import nightly
from tests.simulation import quadratic
from tfdist import simulation
from tfdist.compression import Threshold
from tfdist.correction import DANA
from tfdist.simulation import methods
from tfdist.simulation.exchange_gossip import GossipExchange
from tfdist.simulation.exchange_peers import PeerExchange
from tfdist.simulation.exchange_server import ServerExchange
from tfdist.simulation.exchange_together import AveragingExchange
from tfdist.simulation.exchange_together import SynchronousExchange
from tfdist.simulation.flat_model import FlatModel

DATA = quadratic.X, quadratic.Y
SHORT = {"epochs": 2, "batch_size": quadratic.BATCH, "shuffle": False}
EXCHANGES = [
    PeerExchange(),
    AveragingExchange(period=2),
    ServerExchange(),
    GossipExchange(),
    SynchronousExchange(),
]
# A step is a power of 2, so that sums are exact in any order.
DYADIC = 2.0**-5


def constant_fn():
    """A model whose gradient is the same for every batch."""
    model = keras.Sequential(
        [
            keras.Input((3,)),
            keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros"),
            keras.layers.Reshape(()),
        ]
    )
    model.compile(keras.optimizers.SGD(DYADIC), lambda y, p: p)
    return model


ONES = np.ones((48, 3), "float32"), np.zeros(48, "float32")
SLOW = simulation.Network(latency_seconds=1e-3, bandwidth_gbps=1e-6)
TINY = Threshold(0.25, dense_below=0)


def adam():
    schedule = keras.optimizers.schedules.ExponentialDecay(0.05, 3, 0.7)
    # A rate is divided by the factor where losses are not multiplied by it.
    return keras.optimizers.Adam(
        schedule, epsilon=0.1, clipnorm=0.5, loss_scale_factor=8.0
    )


@pytest.mark.nightly
@pytest.mark.parametrize(
    "exchange",
    EXCHANGES,
    ids=lambda exchange: exchange.name,
)
def test_one_worker_is_keras_fit(exchange):
    build = quadratic.model_fn(adam)
    history = simulation.simulate(build, DATA, exchange, num_workers=1, **SHORT)
    model = build()
    quadratic.fit(model, epochs=2)
    np.testing.assert_allclose(
        quadratic.weights_of(history),
        model.get_weights()[0][:, 0],
        rtol=1e-5,
    )
    assert history.updates == (12 if exchange == EXCHANGES[1] else 24)
    optimizer = history.model.optimizer
    assert (optimizer.clipnorm, optimizer.loss_scale_factor) == (0.5, 8.0)


def test_all_reduce_clips_the_mean_of_all_gradients():
    norm = 0.5
    history = simulation.simulate(
        quadratic.model_fn(
            lambda: keras.optimizers.SGD(quadratic.RATE, clipnorm=norm)
        ),
        DATA,
        SynchronousExchange(),
        num_workers=2,
        **{**SHORT, "epochs": 1},
    )
    weights = quadratic.START.astype("float64")
    for batch in range(0, 12, 2):
        rows = np.concatenate([quadratic.rows_of(batch + k) for k in (0, 1)])
        mean = quadratic.gradient(weights, rows)
        length = np.linalg.norm(mean)
        assert length > norm
        weights -= quadratic.RATE * mean * norm / length
    np.testing.assert_allclose(
        quadratic.weights_of(history), weights, rtol=1e-5
    )


@pytest.mark.parametrize(
    "exchange", [SynchronousExchange(), PeerExchange()], ids=lambda e: e.name
)
def test_each_worker_has_dropout_masks_of_its_own(exchange):
    size = 256

    def build():
        model = keras.Sequential(
            [
                keras.Input((size,)),
                keras.layers.Dropout(0.5),
                keras.layers.Dense(
                    1, use_bias=False, kernel_initializer="zeros"
                ),
                keras.layers.Reshape(()),
            ]
        )
        model.compile(keras.optimizers.SGD(1.0), lambda y, p: p)
        return model

    # A batch of one example each: a gradient is 2 where an input is kept.
    history = simulation.simulate(
        build,
        (np.ones((2, size), "float32"), np.zeros(2, "float32")),
        exchange,
        num_workers=2,
        batch_size=1,
    )
    sums = -history.model.get_weights()[0][:, 0]
    if exchange == SynchronousExchange():
        sums *= 2  # Means of both.
    counts = [np.count_nonzero(sums == both) for both in (0, 2, 4)]
    # A quarter, a half, a quarter, within six standard deviations.
    assert abs(counts[1] - size / 2) < 6 * np.sqrt(size / 4)
    assert sum(counts) == size


@pytest.mark.parametrize(
    ("exchange", "strategy"),
    nightly.also(
        [(SynchronousExchange(), "sync")], [(ServerExchange(), "async")]
    ),
    ids=["server", "all_reduce"],
)
def test_dense_exchanges_are_the_methods_of_the_other_simulator(
    exchange, strategy
):
    arguments = dict(SHORT, num_workers=4, seed=3)
    one, other = (
        simulation.simulate(quadratic.model_fn(), DATA, method, **arguments)
        for method in (exchange, strategy)
    )
    np.testing.assert_allclose(
        quadratic.weights_of(one), quadratic.weights_of(other), rtol=1e-5
    )
    np.testing.assert_array_equal(one.staleness, other.staleness)
    assert one.updates == other.updates
    np.testing.assert_allclose(one.update_seconds, other.update_seconds)


def test_peers_are_what_their_definition_says():
    # Less than a step: no update waits for the one before it.
    latency = 0.07
    history = simulation.simulate(
        quadratic.model_fn(),
        DATA,
        PeerExchange(TINY),
        num_workers=3,
        network=simulation.Network(latency_seconds=latency),
        seed=5,
        **SHORT,
    )
    assert history.num_servers == 0
    jobs = history.jobs
    residuals = np.zeros((3, quadratic.SIZE))
    # Of all steps so far: worker, when they ended, what they changed.
    made = []
    for job in np.sort(jobs, order="computed"):
        weights = quadratic.START.astype("float64")
        staleness = 0
        for worker, ended, change in made:
            own = worker == job["worker"]
            if own or ended + latency <= job["began"]:
                weights += change
            else:
                staleness += 1
        total = quadratic.gradient(weights, quadratic.rows_of(job["batch"]))
        total += residuals[job["worker"]]
        sent = TINY.tau * np.sign(total) * (abs(total) > TINY.tau)
        residuals[job["worker"]] = total - sent
        total = sent
        made.append((job["worker"], job["computed"], -quadratic.RATE * total))
        assert job["staleness"] == staleness
    expected = quadratic.START + sum(change for _, _, change in made)
    np.testing.assert_allclose(
        quadratic.weights_of(history), expected, rtol=1e-4
    )


@pytest.mark.nightly
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_at_rate_0_the_residual_stays_and_momentum_is_sent_whole(momentum):
    def build():
        model = constant_fn()
        schedule = keras.optimizers.schedules.PiecewiseConstantDecay(
            [3], [DYADIC, 0.0]
        )
        sgd = keras.optimizers.SGD(schedule, momentum=momentum)
        model.compile(sgd, lambda y, p: p)
        return model

    history = simulation.simulate(
        build, ONES, PeerExchange(TINY), num_workers=2, **SHORT
    )
    # Of one worker's 12 steps, 4 are sent by the threshold, as each is above.
    weight, velocity = -DYADIC * 4 * TINY.tau, 0.0
    for step in range(12):
        velocity = momentum * velocity - DYADIC * (step < 4)
        weight += velocity * (step >= 4)
    weights = history.model.get_weights()[0]
    np.testing.assert_allclose(weights, 2 * weight, rtol=1e-6)
    # Nothing is sent of a step that changes nothing.
    assert history.updates == (24 if momentum else 8)


def test_gradients_of_eight_workers_are_computed_in_one_call(monkeypatch):
    sizes = []
    several = FlatModel._build_several

    def build(self, weights, states, rows):
        sizes.append(rows.shape[0])  # Once for each size.
        return several(self, weights, states, rows)

    monkeypatch.setattr(FlatModel, "_build_several", build)
    simulation.simulate(
        quadratic.model_fn(),
        DATA,
        SynchronousExchange(),
        num_workers=8,
        compute=simulation.Constant(0.1),
        **SHORT,
    )
    assert 8 in sizes


def test_the_last_update_is_evaluated_when_it_is_made():
    """And not when the last worker has pulled."""
    history = simulation.simulate(
        constant_fn,
        ONES,
        ServerExchange(),
        num_workers=2,
        network=simulation.Network(latency_seconds=0.05),
        **SHORT,
    )
    last = history.evaluations[-1]
    assert (last["epoch"], last["updates"]) == (2, 24)
    assert last["seconds"] == history.update_seconds[-1]


@pytest.mark.parametrize(
    ("exchange", "epochs"),
    [
        (AveragingExchange(period=12), [0, 2]),
        (SynchronousExchange(), [0, 4 / 3, 2]),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_an_update_is_evaluated_when_all_its_steps_are_counted(
    exchange, epochs
):
    workers = 2 if epochs == [0, 2] else 8
    history = simulation.simulate(
        constant_fn,
        ONES,
        exchange,
        num_workers=workers,
        validation_data=ONES,
        **SHORT,
    )
    evaluated = [row["epoch"] for row in history.evaluations]
    # Synchronous updates are of 8, 8, 4 and 4 of 2 * 12 steps.
    assert evaluated == pytest.approx(epochs)


# Updates of 24 steps; of those that average, as many as each worker has.
SUMS = [
    (PeerExchange(), 24),
    (PeerExchange(TINY), 24),
    (GossipExchange(), 8),
    (ServerExchange(TINY), 24),
    (SynchronousExchange(TINY), 8),
    (AveragingExchange(period=3), 8),
]


@pytest.mark.parametrize(
    ("exchange", "steps"),
    nightly.also(SUMS[1:3], [SUMS[0], *SUMS[3:]]),
    ids=lambda value: getattr(value, "name", ""),
)
def test_every_update_counts_once_where_links_are_far_too_slow(exchange, steps):
    """12 bytes take 0.1 s, which is what a step takes."""
    history = simulation.simulate(
        constant_fn, ONES, exchange, num_workers=3, network=SLOW, **SHORT
    )
    # Gradients are 1, of which a threshold of 1/4 sends a quarter.
    if exchange.compression is not None:
        steps /= 4
    weights = history.model.get_weights()[0]
    np.testing.assert_allclose(weights, -DYADIC * steps, rtol=1e-6)
    sent, received = history.link_bytes.sum(0)
    assert sent == received


# Of three epochs of 8 batches, of which workers have 9, 9 and 6.
UNEVEN = [
    (PeerExchange(), 24),
    (GossipExchange(), 8),
    (ServerExchange(), 24),
    (SynchronousExchange(), 9),
]


@pytest.mark.parametrize(
    ("exchange", "steps"),
    nightly.also(UNEVEN[:1], UNEVEN[1:]),
    ids=lambda value: getattr(value, "name", ""),
)
def test_nobody_waits_for_a_worker_that_has_less_data(exchange, steps):
    history = simulation.simulate(
        constant_fn,
        tuple(array[:37] for array in ONES),
        exchange,
        num_workers=3,
        batch_size=5,
        epochs=3,
    )
    assert np.bincount(history.jobs["worker"]).tolist() == [9, 9, 6]
    assert history.jobs["accepted"].all()
    weights = history.model.get_weights()[0]
    np.testing.assert_allclose(weights, -DYADIC * steps, rtol=1e-6)


@pytest.mark.nightly
def test_a_worker_without_more_data_applies_what_others_send():
    history = simulation.simulate(
        constant_fn,
        ONES,
        PeerExchange(),
        num_workers=2,
        compute=simulation.SlowWorkers(simulation.Constant(1.0), {1: 10}),
        validation_data=ONES,
        evaluate_every=1 / 12,
        **{**SHORT, "epochs": 1},
    )
    # Six steps each. The first worker has made its own after 6 s; at each of
    # the other's from 10 s on it has the others but the one under way, which
    # after the last one it is evaluated with.
    applied = {
        row["seconds"]: row["loss"] / (-3 * DYADIC)
        for row in history.evaluations
        if row["seconds"] > 6
    }
    assert applied == {10: 6, 20: 7, 30: 8, 40: 9, 50: 10, 60: 12}


@pytest.mark.nightly
def test_updates_that_wait_for_a_link_are_sent_as_one_vector():
    dense = 4 * quadratic.SIZE
    arguments = dict(SHORT, num_workers=3, seed=1)
    fast = simulation.simulate(constant_fn, ONES, PeerExchange(), **arguments)
    np.testing.assert_array_equal(fast.link_bytes[:3], 24 / 3 * 2 * dense)
    assert fast.push_bytes == 2 * dense
    assert fast.update_bytes == dense
    assert fast.largest_link_bytes == 24 / 3 * 2 * dense
    slow = simulation.simulate(
        constant_fn,
        ONES,
        PeerExchange(),
        network=simulation.Network(bandwidth_gbps=1e-7),
        **arguments,
    )
    # A message takes about 10 steps: the second one has all that waited.
    assert slow.link_bytes[:3].max() <= 3 * 2 * dense


@pytest.mark.parametrize(
    "exchange", [PeerExchange(), GossipExchange()], ids=lambda e: e.name
)
def test_the_overhead_of_an_exchange_lengthens_each_step(exchange):
    history = simulation.simulate(
        constant_fn,
        ONES,
        exchange,
        num_workers=2,
        compute=simulation.Constant(1.0),
        network=simulation.Network(overhead_seconds=0.5),
        **SHORT,
    )
    # Twelve steps of each of two workers.
    assert history.seconds == 12 * 1.5
    assert history.utilization == 12 / 18


@pytest.mark.nightly
def test_encoding_and_decoding_take_virtual_time():
    def seconds(exchange):
        return simulation.simulate(
            constant_fn,
            ONES,
            exchange,
            num_workers=2,
            compute=simulation.Constant(1.0),
            **SHORT,
        ).seconds

    # Twelve steps of each of two workers.
    assert seconds(PeerExchange(TINY)) == pytest.approx(12)
    assert seconds(PeerExchange(TINY, 0.5)) == pytest.approx(18)
    # Nobody decodes after the last step.
    assert seconds(PeerExchange(TINY, 0, 0.25)) == pytest.approx(
        12 + 11 / 4, abs=0.3
    )
    # The server decodes one after the other.
    assert seconds(ServerExchange(TINY, 0.5, 2.0)) == pytest.approx(
        2 + 24 * 2, abs=2
    )
    assert seconds(SynchronousExchange(TINY, 0.5, 0.25)) == pytest.approx(24)


def test_registered_names_mean_exchanges():
    text = "peer_to_peer:compression=threshold(tau=0.25:dense_below=0)"
    exchange, name = methods.as_exchange(text)
    assert isinstance(exchange, PeerExchange) and exchange.compression == TINY
    assert name == text
    assert isinstance(methods.as_exchange("gossip")[0], GossipExchange)
    assert methods.as_exchange("async") == (None, "")
    with pytest.raises(ValueError, match="without `warmup_peers`"):
        methods.as_exchange("peer_to_peer:warmup_peers=2:warmup_updates=500")
    with pytest.raises(ValueError, match="`correction` must be None"):
        methods.as_exchange(
            simulation.Method(communication="gossip", correction=DANA())
        )


def test_what_is_not_simulated_is_refused():
    def simulate(exchange=None, **arguments):
        simulation.simulate(
            constant_fn,
            ONES,
            PeerExchange() if exchange is None else exchange,
            **{"num_workers": 2, **SHORT, **arguments},
        )

    with pytest.raises(ValueError, match="`num_servers` must be 1"):
        simulate(num_servers=2)
    with pytest.raises(ValueError, match="`failures` must be"):
        simulate(failures=[simulation.Failure(0, at=1.0)])
    with pytest.raises(ValueError, match="`compression` must be None"):
        GossipExchange("threshold(tau=1)")
    with pytest.raises(ValueError, match="`encode_seconds` must be"):
        PeerExchange(None, -1.0)
    with pytest.raises(ValueError, match="`period` must be"):
        AveragingExchange(period=0)
    with pytest.raises(ValueError, match="method with servers"):
        simulation.timing("peer_to_peer", num_workers=2, steps=4)
