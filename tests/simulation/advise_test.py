"""Predictions against sums done by hand, and what is recommended of them."""

import json
import re

import pytest

from tests import nightly
from tfdist.simulation import Constant
from tfdist.simulation import Measurement
from tfdist.simulation import Network
from tfdist.simulation import SlowWorkers
from tfdist.simulation import Sometimes
from tfdist.simulation import advise
from tfdist.simulation import remedies
from tfdist.simulation import timing
from tfdist.simulation.measurement import Variable
from tfdist.simulation.prediction import Cluster
from tfdist.simulation.prediction import predict
from tfdist.strategies import registry

_BATCH = 32
_MEGABYTE = 250_000  # Floats.


def measured(compute=0.1, floats=0, update=0.0, variables=16):
    """A model of equal variables whose step takes as long as a gradient."""
    assert floats % variables == 0
    return Measurement(
        batch_size=_BATCH,
        compute_seconds=[compute],
        update_seconds=update,
        step_seconds=compute,
        variables=[Variable((floats // variables,))] * variables,
    )


def advised(measurement, *strategies, num_workers=4, **settings):
    """Advice without overhead, and its predictions by method."""
    advice = advise(
        measurement,
        num_workers=num_workers,
        strategies=strategies,
        overhead_seconds=0.0,
        **{"steps": 20, **settings},
    )
    return advice, {p.method: p for p in advice.predictions}


def played(measurement, *strategies, num_workers=4, **settings):
    """Predictions by method, without a verdict, which tries changes."""
    cluster = Cluster(**{"steps": 20, **settings})
    return {
        strategy: predict(measurement, strategy, num_workers, cluster)
        for strategy in strategies
    }


@pytest.mark.nightly
def test_a_free_network_gives_n_times_one_machine():
    advice, found = advised(measured(), *registry.names("synchronization"))
    rates = {name: p.speed_up for name, p in found.items()}
    backup = rates.pop("backup_workers:backup_workers=1")
    assert rates == {
        name: pytest.approx(4)
        for name in ("sync", "softsync", "bounded_staleness", "async")
    }
    # All four are as fast; the fourth gradient is never used.
    assert backup == pytest.approx(3)
    assert found["async"].staleness_mean == 3
    assert found["async"].updates_per_second == pytest.approx(40)
    assert found["sync"].updates_per_second == pytest.approx(10)
    for prediction in found.values():
        assert prediction.bound == "compute"
        assert prediction.computing == pytest.approx(1)
        assert prediction.waiting == pytest.approx(0)
    # As fast as any, and nothing is late.
    assert advice.recommended is found["sync"]
    assert advice.remedies == []


@pytest.mark.nightly
def test_a_full_link_of_the_server_gives_its_bytes_per_second():
    # Each gradient of 125 MB, a gigabit, takes the server's link a second.
    network = Network(bandwidth_gbps=1000, server_bandwidth_gbps=1)
    big = measured(compute=0.5, floats=125 * _MEGABYTE)
    found = played(big, "async", "sync", network=network)
    prediction = found["async"]
    assert prediction.examples_per_second == pytest.approx(_BATCH / 1.0)
    assert prediction.server_gbps == pytest.approx(1)
    assert prediction.bound == "servers' links"
    # Four get their parameters one after the other. The last one computes and
    # sends when the link has become free of the others' gradients.
    round_seconds = 4 * 1.0 + 0.5 + 1.0
    assert found["sync"].updates_per_second == pytest.approx(1 / round_seconds)
    assert found["sync"].bound == "servers' links"
    shared = played(big, "async", network=network, num_servers=2)
    rate = shared["async"].examples_per_second
    assert rate == pytest.approx(2 * _BATCH)
    assert shared["async"].server_gbps == pytest.approx(1)


@pytest.mark.parametrize(
    ("strategy", "slow"), nightly.also([("async", 1)], [("sync", 4)])
)
def test_nothing_is_said_of_portions_that_gain_nothing(strategy, slow):
    advice, _ = advised(
        measured(), strategy, compute=SlowWorkers(Constant(0.1), {0: slow})
    )
    assert not any("portions" in text for text in advice.verdict)


@pytest.mark.nightly
def test_portions_are_named_where_fixed_shares_take_much_longer():
    compute = SlowWorkers(Constant(0.1), {0: 4})
    advice, _ = advised(measured(), "async", compute=compute, steps=60)
    (text,) = (text for text in advice.verdict if "portions" in text)
    # The slow one's share takes 4 times 60 steps. In portions all together
    # take 240 / (3 + 1 / 4), and who is done last perhaps 4 more.
    longer = float(re.search(r"takes ([\d.]+) times", text)[1])
    assert 240 / (240 / 3.25 + 4) - 0.05 <= longer <= 3.25 + 0.05
    assert 'work="queue"' in text


@pytest.mark.nightly
def test_servers_that_bind_are_named_and_more_of_them_help():
    network = Network(bandwidth_gbps=1000, server_bandwidth_gbps=1)
    big = measured(compute=2.0, floats=125 * _MEGABYTE)
    advice, found = advised(big, "async", network=network, steps=20)
    # 2 seconds of computing for each second of the server's link.
    assert found["async"].speed_up == pytest.approx(2)
    assert "bound by servers' links" in advice.verdict[1]
    servers = {r.change: r for r in advice.remedies}["num_servers"]
    # With two, half of the link is free: 2 s of computing, half a second each
    # for a push and a pull, whose beginnings differ.
    assert servers.value == 2
    assert servers.prediction.speed_up > 1.25 * 2
    assert any("2 servers, to " in text for text in advice.verdict)


def test_the_links_of_workers_bind_where_servers_are_many():
    network = Network(bandwidth_gbps=1)
    big = measured(compute=0.5, floats=125 * _MEGABYTE)
    found = played(big, "async", network=network, num_servers=16)
    # A second each for a pull and a push, from and to all servers at once.
    assert found["async"].bound == "workers' links"
    assert found["async"].updates_per_second == pytest.approx(4 / 2.5, rel=0.1)


def test_a_servers_own_work_is_the_measured_update_and_is_shared():
    slow = measured(compute=0.1, update=0.1)
    found = played(slow, "async")
    assert found["async"].updates_per_second == pytest.approx(10)
    assert found["async"].bound == "servers' work"
    found = played(slow, "async", num_servers=2)
    assert found["async"].updates_per_second == pytest.approx(20)
    network = Network(server_seconds=0.2)
    found = played(slow, "async", network=network)
    assert found["async"].updates_per_second == pytest.approx(5)


def test_latency_and_overhead_lengthen_each_step():
    network = Network(latency_seconds=0.05)
    found = played(measured(), "sync", "async", network=network)
    assert [p.speed_up for p in found.values()] == pytest.approx([2, 2])
    assert found["sync"].communicating == pytest.approx(0.5)
    found = played(measured(), "async", overhead_seconds=0.3)
    assert found["async"].speed_up == pytest.approx(1)
    assert found["async"].bound == "overhead"


def found_change(change, network, target, **measurement):
    return remedies.find(
        change,
        measured(**measurement),
        registry.method("async"),
        4,
        Cluster(network=network, steps=20),
        target,
    )


def test_more_servers_share_out_the_work_that_is_given():
    # 5 updates per second; one machine makes 10.
    network = Network(server_seconds=0.2)
    remedy = found_change("num_servers", network, target=0.99)
    assert remedy.value == 2
    assert remedy.prediction.updates_per_second == pytest.approx(10)


def test_faster_links_of_servers_alone_are_tried():
    # 1 MB takes a second. One machine makes 10 updates per second.
    network = Network(server_bandwidth_gbps=0.008)
    remedy = found_change(
        "bandwidth_gbps", network, target=0.39, floats=_MEGABYTE
    )
    assert remedy.value == 4 * 0.008
    assert remedy.prediction.updates_per_second == pytest.approx(4, rel=0.02)
    assert found_change("bandwidth_gbps", Network(), target=9) is None


@pytest.mark.nightly
def test_a_tiny_model_on_a_slow_network_stays_on_one_machine():
    # 1 ms of computing, 8 ms for each megabyte.
    advice, found = advised(
        measured(compute=0.001, floats=_MEGABYTE),
        "async",
        network=Network(bandwidth_gbps=1),
        steps=20,
    )
    assert found["async"].speed_up == pytest.approx(1 / 8)
    assert advice.recommended is None
    assert advice.verdict[0].startswith("Stay on one machine")
    assert "0.12 times" in advice.verdict[0]
    assert "bound by servers' links" in advice.verdict[1]
    assert "sends 1 MB and gets 1 MB" in advice.verdict[1]
    remedies = {r.change: r for r in advice.remedies}
    # 16 times the computing, or bandwidth: a worker computes for as long as it
    # sends and gets, so 4 are as fast as 2; 8 times would give 1.
    assert remedies["batch_size"].value == 16 * _BATCH
    assert remedies["batch_size"].prediction.speed_up == pytest.approx(2)
    assert remedies["bandwidth_gbps"].value == 16
    assert remedies["bandwidth_gbps"].prediction.speed_up == pytest.approx(2)
    # With any number of servers 4 workers take 17 ms for a step; more workers
    # wait for the one server.
    assert set(remedies) == {"batch_size", "bandwidth_gbps"}
    assert "a batch of 512" in advice.verdict[2]
    assert "links of 16 Gbit/s" in advice.verdict[2]


@pytest.mark.nightly
def test_more_workers_are_named_where_they_are_what_lacks():
    advice, _ = advised(measured(), "sync", num_workers=1)
    assert advice.recommended is None
    (remedy,) = advice.remedies
    assert (remedy.change, remedy.value) == ("num_workers", 2)
    assert remedy.prediction.speed_up == pytest.approx(2)


@pytest.mark.nightly
def test_heavy_computation_on_a_fast_network_is_worth_a_cluster():
    advice, _ = advised(
        measured(compute=1.0, floats=_MEGABYTE, update=0.001),
        "sync",
        "async",
        network=Network(bandwidth_gbps=25, latency_seconds=1e-4),
        num_workers=[2, 8],
    )
    assert advice.recommended.num_workers == 8
    assert advice.recommended.method == "sync"
    assert advice.recommended.speed_up > 7.5
    assert advice.verdict[0].startswith(
        "By speed alone, use sync with 8 workers"
    )


def _with_tail(base):
    return base + Sometimes(Constant(2.0), 0.05)


@pytest.mark.nightly
def test_heavy_tails_call_for_backup_workers():
    advice, found = advised(
        measured(),
        "sync",
        "backup_workers",
        num_workers=8,
        compute=_with_tail,
        steps=60,
    )
    assert found["sync"].bound == "stragglers"
    # A round has one that takes 2.1 s with 1 - 0.95**8, else it takes 0.1 s.
    late = 1 - 0.95**8
    expected = 8 * 0.1 / (0.1 + late * 2)
    assert found["sync"].speed_up == pytest.approx(expected, rel=0.3)
    best = advice.recommended
    assert best.method.startswith("backup_workers:backup_workers=")
    assert best.speed_up > 2 * found["sync"].speed_up
    # It has been the best of all that were tried.
    others = [f"backup_workers:backup_workers={b}" for b in range(1, 3)]
    all_found = played(
        measured(), *others, num_workers=8, compute=_with_tail, steps=60
    )
    assert best.speed_up == max(p.speed_up for p in all_found.values())


@pytest.mark.nightly
def test_heavy_tails_call_for_an_asynchronous_method_where_that_is_there():
    advice, found = advised(
        measured(),
        "sync",
        "async",
        num_workers=8,
        compute=_with_tail,
        steps=60,
    )
    assert advice.recommended is found["async"]
    # The mean of a step is 0.1 + 0.05 * 2.
    assert found["async"].speed_up == pytest.approx(4, rel=0.2)
    # N - 1, give or take.
    assert found["async"].staleness_mean == pytest.approx(7, abs=1)


def test_a_slower_worker_slows_nobody_else():
    advice, _ = advised(
        measured(),
        "async",
        compute=lambda base: SlowWorkers(base, {1: 3.0}),
    )
    # Three at full speed, one at a third.
    assert advice.recommended.speed_up == pytest.approx(3 + 1 / 3, rel=0.05)


@pytest.mark.nightly
def test_one_machine_is_as_fast_as_the_workers_that_are_given():
    """Not as this one, on which something else was measured."""
    compute = SlowWorkers(Constant(1.0), {1: 2.0})
    advice = advise(
        measured(compute=0.004),
        num_workers=4,
        compute=compute,
        strategies=["async"],
        overhead_seconds=0.0,
    )
    (found,) = advice.predictions
    # Three workers a step per second, one half a step.
    assert found.speed_up == pytest.approx(3.5, rel=0.03)
    assert advice.measurement.step_seconds == 1.0
    told = advise(
        measured(compute=0.004),
        num_workers=4,
        compute=compute,
        strategies=["async"],
        overhead_seconds=0.0,
        one_machine_seconds=2.0,
    )
    assert told.predictions[0].speed_up == pytest.approx(7.0, rel=0.03)


@pytest.mark.nightly
def test_a_larger_batch_takes_given_workers_longer_too():
    # 0.1 s of computing; the server's link takes 0.4 s for each gradient.
    network = Network(bandwidth_gbps=100.0, server_bandwidth_gbps=1.0)
    arguments = {
        "num_workers": 4,
        "network": network,
        "strategies": ["async"],
        "overhead_seconds": 0.0,
    }
    measurement = measured(floats=12_500_000)
    given = advise(measurement, compute=Constant(0.1), **arguments)
    taken = advise(measurement, **arguments)
    remedies = [
        {r.change: r.value for r in advice.remedies}
        for advice in (given, taken)
    ]
    assert given.recommended is None
    assert remedies[0]["batch_size"] == remedies[1]["batch_size"]


def test_one_large_variable_is_not_shared_out_over_servers():
    uneven = Measurement(
        batch_size=_BATCH,
        compute_seconds=[0.5],
        update_seconds=0.0,
        step_seconds=0.5,
        variables=[Variable((90 * _MEGABYTE,)), Variable((10 * _MEGABYTE,))],
    )
    network = Network(bandwidth_gbps=1000, server_bandwidth_gbps=0.8)
    # 90 MB take 0.9 s, whatever else the other servers could hold.
    for servers in (2, 4):
        found = played(uneven, "async", network=network, num_servers=servers)
        assert found["async"].updates_per_second == pytest.approx(1 / 0.9)
        assert found["async"].server_gbps == pytest.approx(0.8)


def test_corrections_that_send_copies_push_twice_as_much():
    network = Network(bandwidth_gbps=1000, server_bandwidth_gbps=1)
    found = played(
        measured(compute=0.5, floats=125 * _MEGABYTE),
        "dc_asgd:backups=worker",
        network=network,
    )
    (prediction,) = found.values()
    assert prediction.updates_per_second == pytest.approx(0.5)


@pytest.mark.nightly
@pytest.mark.parametrize("strategy", ["softsync", "async"])
def test_it_agrees_with_timing(strategy):
    network = Network(1e-3, 1.0, server_seconds=2e-3)
    found = played(
        measured(compute=0.02, floats=_MEGABYTE, variables=1),
        strategy,
        network=network,
    )
    history = timing(
        strategy,
        num_workers=4,
        steps=800,
        push_bytes=4 * _MEGABYTE,
        batch_size=_BATCH,
        compute=Constant(0.02),
        network=network,
    )
    assert found[strategy].examples_per_second == pytest.approx(
        history.examples_per_second, rel=0.02
    )


@pytest.mark.nightly
def test_the_table_and_the_figures_name_what_is_recommended():
    advice, _ = advised(
        measured(floats=16), "sync", "async", num_workers=[4, 2]
    )
    table = advice.table()
    assert max(map(len, table.split("\n\n")[0].splitlines())) <= 80
    for word in (
        "staleness p95",
        "compute",
        "waiting",
        "communication",
        "Gbit/s per direction",
        "not known, as nothing was trained",
    ):
        assert word in " ".join(table.split())
    (line,) = [k for k in table.splitlines() if k.endswith("recommended")]
    assert line.split()[:2] == ["sync", "4"]
    assert [p.num_workers for p in advice.predictions] == [2, 2, 4, 4]
    figures = json.loads(json.dumps(advice.as_dict()))
    assert figures["recommended"]["method"] == "sync"
    assert figures["recommended"]["speed_up"] == pytest.approx(4)
    assert len(figures["predictions"]) == 4
    assert figures["measurement"]["push_bytes"] == 64
    assert figures["verdict"] == advice.verdict


@pytest.mark.parametrize(
    "settings, parts",
    [
        ({"num_workers": 0}, ["num_workers", "at least 1", "0"]),
        ({"strategies": []}, ["strategies", "empty"]),
        ({"strategies": ["sink"]}, ["sync", "'sink'"]),
        ({"strategies": ["backup_workers"]}, ["strategies", "num_workers=[2]"]),
        ({"steps": 3}, ["steps", "at least 10", "3"]),
        ({"min_speed_up": 0}, ["min_speed_up", "above 0"]),
        ({"compute": Constant(0)}, ["`compute`", "above 0", "Constant(0)"]),
    ],
)
def test_wrong_arguments_are_refused(settings, parts):
    with pytest.raises(ValueError) as error:
        advise(measured(), **{"num_workers": 2, **settings})
    for part in parts:
        assert part in str(error.value)


@pytest.mark.parametrize(
    "settings", [{"network": 3}, {"compute": 3}, {"compute": lambda base: 3}]
)
def test_arguments_of_another_kind_are_refused(settings):
    (name,) = settings
    with pytest.raises(TypeError, match=f"`{name}` must .*{name}=3"):
        advise(measured(), num_workers=2, strategies=["sync"], **settings)
    with pytest.raises(TypeError, match="`measurement` must"):
        advise(3)
