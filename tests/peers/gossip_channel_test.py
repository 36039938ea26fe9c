"""Averaging in pairs, with messages that a test delays as it likes.

The oracle is NumPy's, of the rule in the docstring of `gossip_channel`. Numbers
are multiples of powers of two, so that float64 holds them and all sums exactly.
"""

import collections
import itertools
import types
import weakref

import numpy as np
import pytest
import tensorflow as tf

from tests import waits
from tfdist.cluster import ClusterConfig
from tfdist.compression import Cast
from tfdist.peers import flat
from tfdist.peers import gossip_account
from tfdist.peers import gossip_channel
from tfdist.peers import gossip_transport
from tfdist.peers import messages
from tfdist.peers import neighbours
from tfdist.peers.roster import Roster
from tfdist.strategies.fault_tolerance import FaultTolerance

SIZE = 5
_names = map("gossip_channel_test/{}".format, itertools.count())


@pytest.fixture
def eagerly():
    """Few calls, of which the law of any delays has the graphs."""
    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)


class Worker:
    """A channel of one of some workers in this process, without threads."""

    def __init__(self, number, num_workers, values, rate=None):
        """Makes one whose parameters are `values`, `[SIZE]` float64."""
        addresses = [f"localhost:{k + 1}" for k in range(num_workers)]
        self.roster = roster = Roster(
            ClusterConfig({"worker": addresses}, "worker", number), "test"
        )
        roster.incarnation = 100 + number
        known = [100 + k for k in range(num_workers)]
        engine = types.SimpleNamespace(
            roster=roster,
            known=tf.Variable(tf.constant(known, tf.int64)),
            told=tf.Variable(tf.zeros([], tf.int64)),
            section=tf.CriticalSection(),
            dense=Cast("float32"),
            tolerance=FaultTolerance(),
            device="/CPU:0",
            seed=7,
        )
        self.engine = engine
        name = next(_names)
        group = flat.FlatGroup(tf.float64, (0,), (tf.TensorShape([SIZE]),))
        self.channel = gossip_channel.GossipChannel(engine, name, group, rate)
        self.channel.transport.close()
        self.outbox = messages.Queue(f"{name}/out", tf.float64, 100)
        self.channel.transport = types.SimpleNamespace(outbox=self.outbox)
        self.x = np.array(values, np.float64)
        self._exchange = tf.function(self.channel.exchange, autograph=False)
        self._merged = tf.function(self.channel.merged, autograph=False)
        self.merge()

    def step(self, update=0.0, rate=0.5):
        """Takes a step; returns staleness and the messages that it sends.

        What has come meanwhile was not there when the step computed `update`.
        """
        after = tf.constant(self.x - update)
        vector, *_, staleness = self._exchange(
            after, after, tf.constant(rate, tf.float64)
        )
        self.x = vector.numpy()
        return int(staleness), self.sent()

    def merge(self):
        """Adds to the parameters what has come between steps."""
        vector, *_ = self._merged(tf.constant(self.x))
        self.x = vector.numpy()

    def sent(self):
        """Takes out what the worker sends, a list."""
        return [self.outbox.take() for _ in range(int(self.outbox.size()))]

    def deliver(self, message):
        """Handles a message; returns those that it sends, a list."""
        tensors = map(tf.convert_to_tensor, message)
        assert self.channel.handle(messages.PeerUpdate(*tensors))
        return self.sent()

    def count(self, other, column):
        """A number of another worker's row of counts."""
        return int(self.channel.account.counts[other, column])


def receiver_of(message):
    return int(message.header[gossip_channel.TO])


class Oracle:
    """The rule, in NumPy, of one worker."""

    def __init__(self, values):
        """Makes one whose parameters are `values`."""
        self.x = np.array(values, np.float64)
        self.lent = None

    def ask(self):
        """Lends a half, which is the message."""
        self.lent = self.x / 2
        return self.lent

    def serve(self, half):
        """Takes a half for one of its own, which is the reply."""
        given = self.x / 2 if self.lent is None else self.x - self.lent
        self.x = self.x + (half - given)
        return given

    def finish(self, half):
        """Takes the reply for the half that is lent."""
        self.x = self.x + (half - self.lent)
        self.lent = None


@pytest.mark.nightly
@pytest.mark.parametrize(("seed", "learns"), [(0, True), (1, False), (2, True)])
def test_it_is_the_rule_whatever_the_delays(seed, learns):
    rng = np.random.default_rng(seed)
    first = rng.integers(-8, 9, [3, SIZE]).astype(np.float64)
    workers = [Worker(k, 3, first[k]) for k in range(3)]
    oracles = [Oracle(values) for values in first]
    # By pair: messages in order, each with what the oracle has sent.
    links = collections.defaultdict(collections.deque)
    updates, stale, doubly = 0.0, set(), 0

    def send(k, found, sent):
        """Compares what a worker and its oracle send, and sends it."""
        assert len(found) == len(sent)
        for message, (to, is_request, half) in zip(found, sent, strict=True):
            np.testing.assert_array_equal(message.values, half)
            other = receiver_of(message)
            assert to in (None, other) and other != k
            links[k, other].append((message, (k, is_request, half)))

    def step(k):
        """A step, whose update is of parameters before all that has come."""
        nonlocal updates
        oracle = oracles[k]
        update = learns * rng.integers(-2, 3, SIZE) * 1.0
        updates = updates + update
        oracle.x = oracle.x - update
        sent = [(None, True, oracle.ask())] if oracle.lent is None else []
        staleness, found = workers[k].step(update)
        stale.add(staleness)
        np.testing.assert_array_equal(workers[k].x, oracle.x)
        send(k, found, sent)

    def deliver(likely):
        """Delivers some of what is on its way, between and within steps."""
        nonlocal doubly
        for (_, to), waiting in list(links.items()):
            while waiting and rng.random() < likely:
                message, (other, is_request, half) = waiting.popleft()
                oracle, sent = oracles[to], []
                doubly += is_request and oracle.lent is not None
                if is_request:
                    sent.append((other, False, oracle.serve(half)))
                else:
                    oracle.finish(half)
                send(to, workers[to].deliver(message), sent)

    for _ in range(30):
        # Whose messages come late, and which of the workers is slow.
        deliver(0.4)
        step(int(rng.choice(3, p=[0.5, 0.4, 0.1])))
        if not learns:  # Means of first values, with weights of 0 or more.
            for oracle in oracles:
                assert (oracle.x >= first.min(0)).all()
                assert (oracle.x <= first.max(0)).all()
    # They end.
    while any(links.values()):
        deliver(1.0)
    for worker, oracle in zip(workers, oracles, strict=True):
        worker.merge()
        np.testing.assert_array_equal(worker.x, oracle.x)
    total = sum(worker.x for worker in workers)
    np.testing.assert_array_equal(total, first.sum(0) - updates)
    assert doubly and max(stale) > 1
    for me, other in itertools.permutations(range(3), 2):
        mine, theirs = workers[me], workers[other]
        ended = mine.count(other, gossip_account.ENDED)
        assert ended == mine.count(other, gossip_account.BEGUN)
        assert ended == theirs.count(me, gossip_account.SERVED)
        assert (
            mine.channel.account.gained[other]
            == -theirs.channel.account.gained[me]
        )
    assert all(worker.channel.request is None for worker in workers)


@pytest.mark.nightly
def test_replicas_come_together_without_learning():
    workers = [Worker(k, 4, np.full(SIZE, 2.0**k)) for k in range(4)]
    for _ in range(40):
        for worker in workers:
            _, found = worker.step()
            while found:
                message = found.pop()
                found += workers[receiver_of(message)].deliver(message)
    for worker in workers:
        worker.merge()
    # (1 + 2 + 4 + 8) / 4
    for worker in workers:
        np.testing.assert_allclose(worker.x, 3.75, rtol=1e-9)


def exchange_of_two():
    """Two workers, and the request of the first."""
    first, second = Worker(0, 2, np.zeros(SIZE)), Worker(1, 2, np.ones(SIZE))
    _, (request,) = first.step()
    return first, second, request


@pytest.mark.usefixtures("eagerly")
def test_two_end_at_their_mean_and_what_comes_twice_counts_once():
    first, second, request = exchange_of_two()
    (reply,) = second.deliver(request)
    assert second.deliver(request) == []
    first.deliver(reply)
    first.deliver(reply)
    for worker, other in ((first, 1), (second, 0)):
        worker.merge()
        np.testing.assert_array_equal(worker.x, np.full(SIZE, 0.5))
        assert worker.count(other, gossip_account.DUPLICATES) == 1
        assert worker.channel.account.distance == pytest.approx(SIZE**0.5)


@pytest.mark.usefixtures("eagerly")
def test_messages_of_another_process_do_not_count():
    first, second, request = exchange_of_two()
    second.engine.known.assign([99, 101])
    assert second.deliver(request) == []
    second.merge()
    np.testing.assert_array_equal(second.x, np.ones(SIZE))
    assert second.count(0, gossip_account.FOREIGN) == 1
    del first


@pytest.mark.usefixtures("eagerly")
def test_an_exchange_with_a_lost_worker_is_given_up():
    first, second, request = exchange_of_two()
    (reply,) = second.deliver(request)
    first.engine.known.assign([100, 0])
    first.deliver(reply)
    # Nobody is left to ask.
    assert first.step() == (0, [])
    np.testing.assert_array_equal(first.x, np.zeros(SIZE))
    assert first.channel.request is None
    assert first.count(1, gossip_account.GIVEN_UP) == 1
    assert first.count(1, gossip_account.FOREIGN) == 1
    # What the other one has gained is what the survivors lack.
    assert second.channel.account.gained[0] == -SIZE / 2


@pytest.mark.usefixtures("eagerly")
def test_an_exchange_with_a_process_that_is_replaced_is_given_up():
    first, _, request = exchange_of_two()
    first.channel.transport.admit = lambda worker, since: None
    first.deliver(request._replace(header=_from(request, 1, 101, 50)))
    assert first.channel.admit(1) == 0
    assert first.channel.request is None
    assert first.count(1, gossip_account.GIVEN_UP) == 1
    # Numbers of the new process begin again.
    first.engine.known.assign([100, 102])
    again = request._replace(header=_from(request, 1, 102, 1))
    assert len(first.deliver(again)) == 1
    assert first.count(1, gossip_account.SERVED) == 2


def _from(request, sender, incarnation, number):
    header = request.header.numpy()
    header[messages.SENDER] = sender
    header[messages.INCARNATION] = incarnation
    header[[messages.FIRST, messages.LAST]] = number
    return header


@pytest.mark.usefixtures("eagerly")
@pytest.mark.parametrize("bad", [0, 1])
def test_values_that_are_not_finite_stay_where_they_are(bad):
    first, second = Worker(0, 2, np.zeros(SIZE)), Worker(1, 2, np.ones(SIZE))
    workers = first, second
    workers[bad].x[0] = np.inf
    workers[bad].merge()
    before = [worker.x.copy() for worker in workers]
    for worker in workers:
        worker.channel.account._distance.assign(3.0)
    _, (request,) = first.step()
    (reply,) = second.deliver(request)
    first.deliver(reply)
    for worker, values in zip(workers, before, strict=True):
        worker.merge()
        np.testing.assert_array_equal(worker.x, values)
        # That of the last exchange which was not declined.
        assert worker.channel.account.distance == 3.0
    assert second.count(0, gossip_account.DECLINED) == 1
    assert first.count(1, gossip_account.DECLINED) == 1
    assert first.channel.request is None


@pytest.mark.usefixtures("eagerly")
def test_the_chief_s_rate_goes_from_one_to_the_next():
    rates = [tf.Variable(1.0), tf.Variable(0.125), tf.Variable(0.125)]
    workers = [Worker(k, 3, np.zeros(SIZE), rates[k]) for k in range(3)]

    def give(message, k):
        header = message.header.numpy()
        header[gossip_channel.TO] = k
        sent = workers[k].deliver(message._replace(header=header))
        workers[k].merge()
        return sent

    _, (from_chief,) = workers[0].step(rate=0.25)
    give(from_chief, 1)
    assert rates[1].numpy() == 0.25
    _, found = workers[1].step(rate=0.5)
    give(found[-1], 2)
    assert rates[2].numpy() == 0.25
    # What is older changes nothing any more.
    workers[0].step(rate=0.0625)
    (newer,) = give(found[-1], 0)
    give(newer, 2)
    give(found[-1], 2)
    assert rates[2].numpy() == 0.0625
    assert rates[0].numpy() == 1.0


def test_neighbours_are_drawn_alike_and_follow_the_seed():
    others = tf.constant([0, 2, 3], tf.int64)

    def draws(seed, number):
        return [
            int(
                neighbours.build_neighbour(
                    seed, tf.constant(k, tf.int64), others
                )
            )
            for k in range(number)
        ]

    first = draws(1, 150)
    found = collections.Counter(first)
    # The standard deviation is about 6.
    assert set(found) == {0, 2, 3} and min(found.values()) > 26
    assert draws(1, 20) == first[:20] != draws(2, 20)


def test_a_worker_replies_within_a_step():
    worker, other = Worker(0, 2, np.zeros(SIZE)), Worker(1, 2, np.ones(SIZE))
    transport = gossip_transport.GossipTransport(
        weakref.WeakMethod(worker.channel.handle),
        worker.roster,
        next(_names),
        Cast("float32"),
        SIZE,
        tf.float64,
        FaultTolerance(),
        "/CPU:0",
    )
    worker.channel.close()
    _, (request,) = other.step()
    assert not worker.channel.handle(request)
    transport.inbox.put(list(request))
    waits.wait_until(
        lambda: not int(transport.inbox.size()), lambda: "it is taken"
    )
    # Its parameters are not there yet.
    assert worker.sent() == []
    worker.merge()
    waits.wait_until(
        lambda: int(worker.outbox.size()), lambda: "there is a reply"
    )
    (reply,) = worker.sent()
    np.testing.assert_array_equal(reply.values, np.zeros(SIZE))
    np.testing.assert_array_equal(worker.x, np.zeros(SIZE))
    # The step had begun before.
    worker.step(update=1.0)
    np.testing.assert_array_equal(worker.x, np.full(SIZE, -0.5))
    transport.close()
    transport.join()
    assert not any(thread.is_alive() for thread in transport._threads())


@pytest.mark.usefixtures("eagerly")
def test_an_exchange_is_overdue_after_a_whole_step():
    first, second, request = exchange_of_two()
    assert first.channel.overdue is None
    first.step()
    assert first.channel.overdue == first.channel.request
    (reply,) = second.deliver(request)
    first.deliver(reply)
    assert first.channel.overdue is None
