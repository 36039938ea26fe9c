"""How methods with local steps are named, and what is refused of them."""

import keras
import pytest

from tests.simulation import quadratic
import tfdist
from tfdist import averaging
from tfdist import correction
from tfdist import simulation
from tfdist import synchronization
from tfdist.simulation import Method
from tfdist.simulation import exchanges
from tfdist.simulation import measurement as measurement_lib
from tfdist.strategies import registry


@pytest.mark.parametrize(
    ("text", "make"),
    [
        ("parameter_averaging", tfdist.ParameterAveragingStrategy),
        ("bmuf", tfdist.BMUFStrategy),
        ("diloco", tfdist.DiLoCoStrategy),
        ("easgd", tfdist.ElasticAveragingStrategy),
        ("async_local_sgd", tfdist.AsyncLocalSGDStrategy),
        ("downpour", tfdist.DownpourStrategy),
    ],
)
def test_names_mean_what_strategies_are(text, make):
    named, strategy = map(simulation.methods.as_method, (text, make()))
    for part in ("synchronization", "local_steps"):
        found = (
            getattr(method.resolve(4), part) for method in (named, strategy)
        )
        one, other = map(repr, found)
        assert one == other


def test_settings_of_texts_reach_the_method():
    method = registry.method(
        "parameter_averaging:period=7:average_optimizer_state=true:warmup_steps=3:"
        "synchronization=softsync:correction=inverse_staleness"
    )
    steps = method.local_steps
    assert (steps.period, steps.warmup_steps) == (7, 3)
    assert steps.average_optimizer_state is True
    assert isinstance(method.synchronization, synchronization.SoftSync)
    assert isinstance(method.correction, correction.InverseStaleness)


def test_a_number_is_the_period_of_averaging():
    method = Method(synchronization.Sync(), local_steps=5)
    assert repr(method.local_steps) == repr(averaging.ParameterAveraging(5))
    # As `local_steps=` of strategies without another synchronization.
    alone = simulation.methods.as_method(averaging.ParameterAveraging(5))
    assert isinstance(alone.synchronization, synchronization.Async)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "parameter_averaging:synchronization=ring",
            "synchronization must be one of",
        ),
        ("parameter_averaging:s=2", "averaging has the settings period="),
        ("parameter_averaging:period=0", "must be an integer"),
        ("sync:synchronization=async", "sync has the settings"),
        ("easgd:moving_rate=0.5:alpha=0.1", "not both be given"),
    ],
)
def test_texts_that_do_not_fit_are_refused(text, message):
    with pytest.raises(ValueError, match=message):
        registry.method(text)


def _averages_weights():
    return keras.optimizers.SGD(0.1, use_ema=True)


@pytest.mark.parametrize(
    ("strategy", "optimizer", "message"),
    [
        ("parameter_averaging", _averages_weights, "use_ema"),
        ("easgd:synchronization=softsync", None, r"must be Async\(\)"),
        ("easgd:correction=gap_aware", None, "nothing is late"),
        (
            "parameter_averaging:average_optimizer_state=true:synchronization=async",
            None,
            "with average_optimizer_state",
        ),
        (
            "async_local_sgd:synchronization=sync",
            None,
            "dynamic=True is for workers that do not wait",
        ),
        (
            Method(synchronization.Sync(on_drop="retry"), local_steps=2),
            None,
            "on_drop='retry'",
        ),
        (
            "downpour:n_fetch=2:synchronization=bounded_staleness",
            None,
            "each push is answered",
        ),
    ],
)
def test_what_real_workers_refuse_is_refused(strategy, optimizer, message):
    with pytest.raises(ValueError, match=message):
        simulation.simulate(
            quadratic.model_fn(optimizer),
            (quadratic.X, quadratic.Y),
            strategy,
            num_workers=2,
        )


def test_local_steps_of_another_kind_are_refused():
    with pytest.raises(TypeError, match="`local_steps` must be a number"):
        Method(local_steps="parameter_averaging")


def test_rates_of_local_steps_are_not_predicted():
    variable = measurement_lib.Variable((250_000,))
    measurement = simulation.Measurement(100, [1.0], 0.0, 1.0, [variable])
    with pytest.raises(ValueError, match="rates are not predicted"):
        simulation.advise(measurement, strategies=["parameter_averaging"])


def test_a_worker_that_has_ended_no_longer_slows_the_others():
    history = simulation.timing(
        "async_local_sgd:period=10:dynamic=true",
        num_workers=2,
        steps=600,
        compute=simulation.SlowWorkers(simulation.Constant(1.0), {0: 0.1}),
    )
    jobs = history.jobs[history.jobs["worker"] == 1]
    # Its last push was at 30 s; 20 periods are 200 s.
    early = (jobs["began"] > 10) & (jobs["began"] < 229)
    assert set(jobs["steps"][early]) == {1}
    assert set(jobs["steps"][jobs["began"] > 240][:-1]) == {10}


def test_fetches_are_no_computing():
    history = simulation.timing(
        "downpour:n_fetch=2:n_push=6",
        num_workers=2,
        steps=48,
        compute=simulation.Constant(0.1),
        network=simulation.Network(latency_seconds=0.1),
    )
    ends = [
        history.jobs["decided"][history.jobs["worker"] == w].max()
        for w in range(2)
    ]
    assert history.utilization == pytest.approx(48 * 0.1 / sum(ends))


@pytest.mark.parametrize(
    ("strategy", "communication"),
    [
        (
            lambda: tfdist.ParameterServerStrategy(
                synchronization=synchronization.Sync(),
                local_steps=3,
                communication="ring",
            ),
            "ring",
        ),
        (tfdist.AllReduceStrategy, "ring"),
        (tfdist.GossipStrategy, "gossip"),
    ],
)
def test_strategies_without_servers_are_refused_as_such(
    strategy, communication
):
    with pytest.raises(ValueError, match=f"communication='{communication}'"):
        simulation.methods.as_method(strategy())


def test_strategies_among_peers_are_exchanges():
    strategy = tfdist.PeerToPeerStrategy("threshold(tau=0.25)")
    exchange, name = simulation.methods.as_exchange(strategy)
    assert name == f"peer_to_peer:compression={strategy.compression!r}"
    assert exchange == exchanges.PeerExchange("threshold(tau=0.25)")
    gossip, _ = simulation.methods.as_exchange(tfdist.GossipStrategy())
    assert gossip == exchanges.GossipExchange()


def test_timing_counts_one_exchange_for_all_steps_of_a_period():
    history = simulation.timing(
        "parameter_averaging:period=5",
        num_workers=4,
        steps=60,
        push_bytes=1000,
        compute=simulation.Constant(0.1),
        network=simulation.Network(latency_seconds=0.1),
        batch_size=8,
    )
    # Fifteen steps each: three periods of 0.5 s, each between two latencies.
    assert history.updates == 3 and len(history.jobs) == 12
    assert history.total_bytes == 12 * 2 * 1000
    assert history.seconds == pytest.approx(3 * (0.1 + 0.5 + 0.1))
    assert history.examples_per_second == pytest.approx(
        60 * 8 / history.seconds
    )
