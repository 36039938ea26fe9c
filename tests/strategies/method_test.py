"""A method is a value, and says which engine it needs."""

import dataclasses

import pytest

import tfdist
from tfdist import averaging
from tfdist import compression
from tfdist import correction
from tfdist import simulation
from tfdist import synchronization
from tfdist.strategies import registry
from tfdist.strategies.method import Method

RING = Method(synchronization.Sync(), local_steps=4, communication="ring")


def test_methods_are_equal_if_their_settings_are():
    one = registry.method("softsync:s=2:correction=dc_asgd(lambda_0=1)")
    other = Method(
        synchronization.SoftSync(2), correction.DelayCompensation(1.0)
    )
    assert one == other and hash(one) == hash(other)
    assert one.name != other.name
    assert one != dataclasses.replace(one, correction=None)
    assert one != registry.method("softsync:s=3:correction=dc_asgd(lambda_0=1)")
    assert one != registry.method("softsync:s=2:correction=gap_aware")


@pytest.mark.parametrize("name", registry.names())
def test_the_same_text_is_the_same_method(name):
    assert registry.method(name) == registry.method(name)


def test_a_method_is_printed_with_its_settings():
    shown = repr(registry.method("softsync:s=2:local_steps=3"))
    assert "SoftSync(s=2)" in shown and "period=3" in shown
    assert Method().name == "Async()"
    with pytest.raises(dataclasses.FrozenInstanceError):
        Method().correction = None


def test_its_arguments_make_the_strategy():
    method = registry.method("bounded_staleness:correction=gap_aware")
    strategy = tfdist.ParameterServerStrategy(**method.arguments)
    found = Method(strategy.synchronization, strategy.correction)
    assert found == method


# Text -> whether somebody waits, and whether servers agree on an order.
ENGINES = {
    "async": (False, False),
    "softsync": (False, True),
    "sync": (True, True),
    "backup_workers": (True, True),
    "bounded_staleness": (True, True),
    # Corrections on servers are made in one order, that of a worker is not.
    "dc_asgd": (False, True),
    "inverse_staleness": (False, True),
    "dana": (False, False),
    "dana:variant=zero": (False, True),
    "async_local_sgd": (False, False),
    "easgd": (False, False),
    "easgd:synchronization=sync": (True, True),
    # All-reduce has no servers that could agree.
    "diloco:communication=ring": (True, False),
    "peer_to_peer": (False, False),
    "gossip": (False, False),
}


@pytest.mark.parametrize("text", ENGINES)
def test_a_method_says_which_engine_it_needs(text):
    method = registry.method(text)
    assert (method.waits, method.needs_order) == ENGINES[text]
    without = "ring" in text or text in ("peer_to_peer", "gossip")
    assert method.needs_servers == (not without)


def test_what_is_kept_and_sent_is_known():
    of_workers = registry.method("dc_asgd:backups=worker")
    assert (of_workers.copies_per_push, Method().copies_per_push) == (2, 1)
    assert registry.method("dana:variant=zero").remembers_workers
    assert not registry.method("dana:variant=slim").remembers_workers


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"synchronization": None}, TypeError, "tfdist.synchronization"),
        ({"synchronization": "sync"}, TypeError, "Received: .*'sync'"),
        ({"correction": synchronization.Sync()}, TypeError, "or None"),
        ({"local_steps": "5"}, TypeError, "a number of steps"),
        ({"local_steps": True}, TypeError, "a number of steps"),
        ({"communication": "tree"}, ValueError, "parameter_server, ring"),
    ],
)
def test_parts_of_another_kind_are_refused(settings, error, message):
    with pytest.raises(error, match=message):
        Method(**settings)


@pytest.mark.parametrize(
    ("method", "num_workers", "message"),
    [
        ("backup_workers:backup_workers=2", 2, "less than the number of work"),
        ("softsync:n=3", 2, "at most the number of workers, 2"),
        ("sync:correction=dana", 2, "no.* is: leave the correction out"),
        ("easgd:moving_rate=2", 2, "less than the number of workers"),
        ("backup_workers:communication=ring", 3, "all workers together"),
        ("async:local_steps=4:communication=ring", 2, "all workers together"),
        (
            "backup_workers:local_steps=4:communication=ring",
            2,
            "all workers together",
        ),
        (
            "downpour:synchronization=sync:communication=ring",
            2,
            "averages changes of weights",
        ),
        (
            dataclasses.replace(RING, correction=correction.GapAware()),
            2,
            "where no gradient is late",
        ),
    ],
)
def test_what_does_not_fit_together_is_refused(method, num_workers, message):
    if isinstance(method, str):
        method = registry.method(method)
    with pytest.raises(ValueError, match=message):
        method.resolve(num_workers)


def test_it_is_resolved_once_for_a_number_of_workers():
    method = registry.method("bmuf:synchronization=softsync(n=2)").resolve(8)
    assert method.synchronization.s == 4
    assert method.local_steps.outer_optimizer().momentum == 1 - 1 / 4
    assert method.resolve(8) == method
    # Some of the workers are not there at the beginning.
    method = registry.method("bmuf").resolve(8, initial_workers=2)
    assert method.local_steps.outer_optimizer().momentum == 1 - 1 / 2


def test_a_subclass_stays_one_when_it_is_resolved():
    class OfTwo(synchronization.SoftSync):
        """Of which a user has overridden a method."""

    class WithBackups(synchronization.Sync):
        """The same."""

    class Tied(averaging.ElasticAveraging):
        """The same."""

    two = OfTwo(n=2)
    for made in (two.resolve(6), two.alone()):
        assert type(made) is OfTwo
    assert (two.resolve(6).s, two.alone().s) == (3, 1)
    alone = WithBackups(1, on_drop="retry").alone()
    assert type(alone) is WithBackups
    assert (alone.backup_workers, alone.on_drop) == (0, "retry")
    resolved = Tied().resolve(synchronization.Async(), None, 3)
    assert type(resolved) is Tied
    assert resolved == Tied(alpha=0.9 / 3)


@pytest.mark.parametrize("name", registry.names())
def test_every_method_is_defined_for_one_process(name):
    alone = registry.method(name).alone()
    assert alone.name == name
    assert alone.synchronization.gradients_per_update(1) in (0, 1)


def test_a_number_of_steps_is_parameter_averaging():
    assert RING.local_steps == averaging.ParameterAveraging(4)
    assert RING.resolve(2).local_steps == averaging.ParameterAveraging(4)


def test_a_momentum_of_its_own_is_set():
    method = registry.method("softsync:correction=dana(momentum=0.5)")
    assert method.with_momentum(0.3).correction == correction.DANA(momentum=0.3)
    assert method.correction.momentum == 0.5
    with pytest.raises(ValueError, match="momentum of its own"):
        Method().with_momentum(0.3)


@pytest.mark.parametrize("method", [RING, "peer_to_peer", "gossip"])
def test_methods_without_servers_are_not_simulated(method):
    with pytest.raises(ValueError, match="method with servers"):
        simulation.timing(method, num_workers=2, steps=2)


def test_updates_between_peers_have_a_codec():
    method = registry.method("peer_to_peer:compression=threshold(tau=0.5)")
    assert method.sends_to_peers and not method.all_reduces_gradients
    assert method.peer_arguments["warmup_peers"] is None
    text = "peer_to_peer:warmup_peers=2:warmup_updates=50"
    arguments = registry.method(text).peer_arguments
    assert arguments["warmup_peers"] == 2 and arguments["warmup_updates"] == 50
    assert method.compression == compression.Threshold(0.5)
    assert method.resolve(4) == method
    with pytest.raises(ValueError, match="PeerToPeerStrategy"):
        tfdist.ParameterServerStrategy(**method.arguments)
    for text, name in (
        ("sync:communication=peers", "synchronization"),
        ("peer_to_peer:correction=gap_aware", "correction"),
        ("peer_to_peer:local_steps=4", "local_steps"),
    ):
        with pytest.raises(ValueError, match=f"`{name}` must be"):
            registry.method(text).resolve(4)
    with pytest.raises(ValueError, match="async has the settings .*ression'"):
        registry.method("async:compression=cast")


def test_gossip_is_a_method_without_settings():
    method = registry.method("gossip")
    assert method.gossips and method.is_among_peers
    assert not (method.sends_to_peers or method.all_reduces_gradients)
    assert method.resolve(4) == method
    with pytest.raises(ValueError, match="GossipStrategy"):
        tfdist.ParameterServerStrategy(**method.arguments)
    with pytest.raises(ValueError, match="`correction` must be"):
        registry.method("gossip:correction=gap_aware").resolve(4)
    with pytest.raises(ValueError, match="gossip has the settings .*ression'"):
        registry.method("gossip:compression=cast")
    with pytest.raises(ValueError, match="`compression` must be None"):
        Method(communication="gossip", compression="cast").resolve(4)
    with pytest.raises(TypeError, match="PeerToPeerStrategy.compression"):
        tfdist.GossipStrategy(compression="cast")
