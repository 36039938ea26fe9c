"""A worker waits for replies, with exchanges that a test ends as it likes."""

import types

import keras
import pytest
import tensorflow as tf

import tfdist
from tfdist.peers import gossip_engine

REQUEST = (7, 1, 3)


class Exchange:
    """A channel with a request to worker 1 under way, and its engine."""

    def __init__(self, came=1, joined=(), ends_after=None):
        """Makes one.

        Args:
          came: Messages of worker 1 before.
          joined: Workers that have joined later.
          ends_after: Number of waits after which it ends; None for never.
        """
        self.name = "lane0/0"
        self.request = self.overdue = REQUEST
        self.came_from = lambda worker: came
        self.waits = self.looks = 0
        self._ends_after = ends_after
        self.transport = self
        self.roster = types.SimpleNamespace(
            joined={*joined}, names=["chief", "other"], is_lost=self._is_lost
        )
        self._awaited = {}
        self.lost_after = None

    def _is_lost(self, worker):
        assert worker == REQUEST[1]
        return self.lost_after is not None and self.looks >= self.lost_after

    def wait_until(self, condition, seconds):
        """As of `GossipTransport`."""
        assert 0 < seconds <= 1.0
        self.waits += 1
        if self.waits == self._ends_after:
            self.request = self.overdue = None
        return condition()

    def read_told(self):
        """As of the engine."""
        self.looks += 1

    def wait(self):
        """Waits before a step."""
        gossip_engine.GossipEngine._await(self, self)


def test_a_reply_is_waited_for_once():
    exchange = Exchange()
    exchange.wait()
    exchange.wait()
    assert exchange.waits == 1
    exchange.overdue = (8, 1, 5)
    exchange.wait()
    assert exchange.waits == 2


@pytest.mark.parametrize("lost", [False, True])
def test_others_come_to_their_first_step_before_anybody_trains_alone(lost):
    exchange = Exchange(came=0, ends_after=None if lost else 5)
    exchange.lost_after = 4 if lost else None
    exchange.wait()
    assert (exchange.waits, exchange.looks) == (5, 4)


def test_nobody_waits_for_the_first_step_of_a_joiner():
    exchange = Exchange(came=0, joined=[1])
    exchange.wait()
    assert exchange.waits == 1


def test_a_suspended_job_gives_up_nobody(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(
        gossip_engine,
        "time",
        types.SimpleNamespace(monotonic=lambda: clock[0]),
    )
    engine = object.__new__(gossip_engine.GossipEngine)
    given_up = []
    engine.roster = types.SimpleNamespace(
        give_up=lambda worker, reason: given_up.append(worker)
    )
    engine.tolerance = types.SimpleNamespace(
        stall_timeout=600.0, on_stall="fail"
    )
    engine.collectives = types.SimpleNamespace(post=lambda updates: None)
    engine.journal = types.SimpleNamespace(count=0)
    engine._next_look = engine._looked_at = 0.0
    engine._under_way = {}
    asked = types.SimpleNamespace(
        name="lane0/0",
        request=REQUEST,
        came_from=lambda worker: 1,
        transport=types.SimpleNamespace(
            senders=[types.SimpleNamespace(worker=1, probe=lambda: None)]
        ),
    )
    monkeypatch.setattr(gossip_engine.GossipEngine, "channels", [asked])
    for passed in 1.0, 1.0, 700.0, 1.0, 1.0:
        clock[0] += passed
        engine._look()
    assert not given_up
    for _ in range(600):
        clock[0] += 1.0
        engine._look()
    assert set(given_up) == {1}


def test_nobody_waits_without_an_exchange():
    exchange = Exchange()
    exchange.overdue = None
    exchange.wait()
    assert exchange.waits == 0


def test_the_mean_is_that_of_the_last_step_s_optimizer():
    """Another one of the same weights is garbage, and not yet on this worker.

    So other workers have no part in what is taken for the mean of its lane.
    """
    strategy = tfdist.GossipStrategy()
    with strategy.scope():
        variable = keras.Variable([0.0])
        optimizers = [keras.optimizers.SGD(1.0) for _ in range(2)]
    for place in (0, 1, 0):
        apply = optimizers[place].apply
        strategy.run(apply, ([tf.ones([1])], [variable]))
    engine = strategy._engine
    (used,) = engine._last

    def take(vectors):
        return {
            name: vector * (0.5 if name == used.channels[0].name else 1.0)
            for name, vector in vectors.items()
        }

    engine._mean = types.SimpleNamespace(take=take)
    engine._take_mean()
    assert variable[0] == -1.5


def test_the_distance_is_that_of_the_last_step_s_optimizer(monkeypatch):
    """Another one of the same weights knows an older distance."""
    strategy = tfdist.GossipStrategy()
    with strategy.scope():
        variable = keras.Variable([0.0])
    assert strategy.consensus_distance() == 0.0
    for distance in (3.0, 4.0):
        with strategy.scope():
            optimizer = keras.optimizers.SGD(1.0)
        strategy.run(optimizer.apply, ([tf.ones([1])], [variable]))
        (lane,) = strategy._engine._last
        account = types.SimpleNamespace(distance=distance)
        monkeypatch.setattr(lane.channels[0], "account", account)
        assert strategy.consensus_distance() == distance
