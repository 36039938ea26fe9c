"""What a worker does with each message that comes."""

import itertools
import types
import weakref

import numpy as np
import pytest
import tensorflow as tf

from tests import nightly
from tests.waits import wait_until
from tfdist import compression
from tfdist.cluster import ClusterConfig
from tfdist.compression import Cast
from tfdist.compression import Threshold
from tfdist.peers import account
from tfdist.peers import channel as channel_lib
from tfdist.peers import checksums
from tfdist.peers import engine
from tfdist.peers import flat
from tfdist.peers import messages
from tfdist.peers import transport as transport_lib
from tfdist.peers.roster import Roster
from tfdist.strategies.fault_tolerance import FaultTolerance

SIZE = 2048
INCARNATION = 7
_names = map("channel_test/{}".format, itertools.count())


class Receiver:
    """A channel of worker 0, into whose inbox a test puts messages."""

    def __init__(self, codec=None):
        """Makes one whose vector begins with zeros."""
        addresses = [f"localhost:{port}" for port in (1, 2, 3)]
        roster = Roster(
            ClusterConfig({"worker": addresses}, "worker", 0), "test"
        )
        roster.known = dict.fromkeys(range(3), INCARNATION)
        self.told = tf.Variable(tf.zeros([], tf.int64))
        self.rate = tf.Variable(0.125)
        holder = types.SimpleNamespace(
            roster=roster,
            known=tf.Variable(tf.fill([3], tf.constant(INCARNATION, tf.int64))),
            told=self.told,
            dense=Cast("float32"),
            tolerance=FaultTolerance(),
            seen_at_join={},
            device="/CPU:0",
        )
        self.codec = codec or Cast("float32")
        state = self.codec.state(SIZE)
        self.channel = channel_lib.Channel(
            holder,
            next(_names),
            flat.FlatGroup(tf.float32, (0,), (tf.TensorShape([SIZE]),)),
            codec,
            {key: tf.Variable(value) for key, value in state.items()},
            self.rate,
        )
        self.receive = tf.function(self.channel.receive, autograph=False)

    def put(
        self,
        vector,
        first,
        last,
        incarnation=INCARNATION,
        stop=0,
        sender=1,
        checksum=0,
    ):
        """Puts in a message, with the scale 0.5 and the rate 0.25."""
        header = np.zeros([messages.header_length(3)], np.int64)
        rate = np.float64(0.25).view(np.int64)
        message, _ = self.codec.encode(vector, self.codec.state(SIZE))
        scale = np.float64(0.5).view(np.int64)
        fixed = [sender, incarnation, first, last, stop, rate, scale]
        header[: messages.SUM] = [*fixed, message.kind.numpy()]
        header[messages.SUM] = checksum
        self.channel.transport.inbox.put([header, *message[1:]])

    def count(self, column):
        """What is counted of worker 1."""
        return self.channel.counts[1, column]

    def sum(self):
        """The first element; all are the same."""
        vector = self.channel._flat.numpy()
        assert (vector == vector[0]).all()
        return vector[0]


@pytest.fixture
def receiver(request):
    made = Receiver(getattr(request, "param", None))
    yield made
    made.channel.transport.close()


ONES = tf.constant(np.full(SIZE, 1.0 + 2.0**-20, "float32"))


@pytest.mark.parametrize(
    "receiver",
    [None, Threshold(1.0)],
    ids=["dense", "threshold"],
    indirect=True,
)
def test_a_message_is_applied_once(receiver):
    for _ in range(3):
        receiver.put(ONES, 1, 1)
    receiver.receive()
    receiver.put(ONES, 1, 1)
    receiver.receive()
    assert receiver.sum() == pytest.approx(-0.5)
    assert receiver.count(account.APPLIED) == 1
    assert receiver.count(account.DUPLICATES) == 3
    assert receiver.count(account.SEEN) == 1


def test_messages_are_applied_in_their_order(receiver):
    for first, last in ((1, 1), (2, 9), (10, 10)):
        receiver.put(ONES, first, last)
    count, _, _ = receiver.receive()
    assert receiver.sum() == pytest.approx(-1.5)
    assert count.numpy() == receiver.count(account.APPLIED) == 10
    assert receiver.count(account.MISSED) == 0


def test_what_never_comes_is_counted(receiver):
    receiver.put(ONES, 4, 5)
    receiver.receive()
    assert receiver.count(account.APPLIED) == 2
    assert receiver.count(account.MISSED) == 3


def test_messages_of_another_process_do_not_count(receiver):
    receiver.put(ONES, 1, 1, incarnation=8, stop=3)
    receiver.receive()
    assert receiver.sum() == 0.0
    assert receiver.count(account.FOREIGN) == 1
    assert receiver.count(account.SEEN) == receiver.told.numpy() == 0


def test_numbers_of_a_worker_that_joins_begin_again(receiver):
    receiver.put(ONES, 1, 4)
    receiver.receive()
    receiver.channel.account.fetched[1] = 10
    receiver.channel._own.assign([6, 0])
    receiver.channel.admit(1)
    assert receiver.channel.account.earlier[1] == 14
    assert receiver.channel.account.fetched[1] == 0
    assert receiver.channel.account.before == {1: 6}
    receiver.put(ONES, 1, 1)
    receiver.receive()
    assert receiver.count(account.APPLIED) == 1
    assert receiver.count(account.DUPLICATES) == 0
    # What counts when the channel is freed.
    receiver.channel.take_over([6, 3, 0], [0, 0, 0], [0, 20, 0])
    made = receiver.channel.account
    assert (made.fetched, made.before, made.earlier) == (
        [0, 2, 0],
        {1: 6},
        [0, 20, 0],
    )


def test_what_a_joiner_has_from_elsewhere_is_not_sent_to_it(receiver):
    """Also where the thread that hands it to senders is late."""
    receiver.channel._own.assign([6, 0])
    receiver.channel.admit(1)
    joiners, others = receiver.channel.transport.senders
    for number in (5, 6, 7):
        header = np.zeros([messages.header_length(3)], np.int64)
        header[[messages.FIRST, messages.LAST]] = number
        nothing = np.zeros([0], "float32"), np.zeros([0], np.uint8)
        for sender in (joiners, others):
            sender.put([messages.PeerUpdate(header, *nothing)])

    def waiting(sender):
        with sender._changed:
            under_way = sum(update.count for update in sender._in_flight)
            return sender._backlog.updates + under_way

    assert waiting(joiners) == 1
    assert waiting(others) == 3


def test_a_message_without_an_update_may_stop(receiver):
    receiver.put(ONES, 0, 0, stop=3)
    receiver.receive()
    assert receiver.told.numpy() == 3
    assert receiver.sum() == 0.0
    assert receiver.count(account.DUPLICATES) == 0


def test_staleness_is_what_the_sender_did_not_know(receiver):
    # Of this worker's five updates it had applied none.
    receiver.channel._own.assign([5, 0])
    receiver.put(ONES, 1, 1)
    _, _, staleness = receiver.receive()
    assert staleness.numpy() == 5
    assert receiver.count(account.STALE) == 5


@pytest.mark.parametrize(("sender", "rate"), [(0, 0.25), (2, 0.125)])
def test_the_rate_is_the_chief_s(receiver, sender, rate):
    receiver.put(ONES, 1, 1, sender=sender)
    receiver.receive()
    assert receiver.rate.numpy() == rate


@pytest.mark.parametrize("codec", nightly.also([None], [Threshold(1.0)]))
def test_a_rate_that_changes_without_an_update_is_sent(codec):
    """Others may train on while the chief's own rate is 0."""
    chief, other = Receiver(codec), Receiver(codec)
    exchange = tf.function(chief.channel.exchange, autograph=False)
    for rate, sent in ((0.5, 0), (0.0, 1), (0.0, 1)):
        vector, is_other, *_ = exchange(
            ONES, ONES, tf.constant(rate, tf.float64)
        )
        np.testing.assert_array_equal(vector, ONES)
        assert not is_other
        assert chief.channel.sent == sent
    sender = chief.channel.transport.senders[0]
    wait_until(lambda: sender._in_flight, lambda: "a message is on its way")
    (news,) = sender._in_flight
    header = [0, INCARNATION, *news.header[messages.FIRST :]]
    other.channel.transport.inbox.put([header, *news[1:]])
    other.receive()
    assert other.rate.numpy() == 0.0
    assert other.sum() == 0.0
    for one in (chief, other):
        one.channel.transport.close()


def test_others_send_no_rate_without_an_update(receiver):
    receiver.channel._roster.worker_id = 1
    exchange = tf.function(receiver.channel.exchange, autograph=False)
    for rate in (0.5, 0.0):
        exchange(ONES, ONES, tf.constant(rate, tf.float64))
    assert receiver.channel.sent == 0


@pytest.mark.parametrize(
    ("codec", "rate"),
    nightly.also(
        [(None, 0.25), (Threshold(2.0**-4), 0.0)], [(Threshold(2.0**-4), 0.25)]
    ),
)
def test_a_step_s_own_update_is_what_others_decode(codec, rate):
    made = Receiver(codec)
    rng = np.random.default_rng(0)
    before = tf.constant(rng.integers(-8, 8, SIZE) * 2.0**-6, tf.float32)
    update = tf.constant(rng.integers(-8, 8, SIZE) * 2.0**-5, tf.float32)
    exchange = tf.function(made.channel.exchange, autograph=False)
    vector, *_ = exchange(
        before, before - 0.25 * update, tf.constant(rate, tf.float64)
    )
    assert made.channel.sent == 1
    # It goes to both others; nobody is there to take it.
    sender = made.channel.transport.senders[0]
    wait_until(
        lambda: sender._in_flight,
        lambda: "a message is on its way",
    )
    (update_sent,) = sender._in_flight
    message = compression.Message(
        *map(tf.constant, (update_sent.kind, *update_sent[1:]))
    )
    decoded = made.codec.decode(message, SIZE)
    expected = before - update_sent.scale.astype("float32") * decoded
    np.testing.assert_array_equal(vector, expected)
    if codec is None or not rate:
        # Sent as it is; a residual has another unit.
        np.testing.assert_array_equal(vector, before - 0.25 * update)
    if codec is not None:
        residual = made.channel._codec_state["residual"].numpy()
        kept = update - decoded if rate else np.zeros(SIZE)
        np.testing.assert_array_equal(residual, kept)
    made.channel.transport.close()


def test_a_checksum_stays_what_it_was_but_for_what_is_lost(receiver):
    """Of a message of another worker, and of a step of its own."""
    channel = receiver.channel
    signs = checksums.signs(SIZE, tf.float64).numpy()
    np.testing.assert_array_equal(channel.checksum(np.zeros(SIZE)), 0.0)
    vector = ONES * signs.astype("float32")
    decoded = receiver.codec.decode(
        receiver.codec.encode(vector, receiver.codec.state(SIZE))[0], SIZE
    )
    # The scale of all messages is a half.
    total = 0.5 * decoded.numpy().astype(np.float64) @ signs
    receiver.put(vector, 1, 1, checksum=round(total * checksums.UNITS))
    receiver.receive()
    assert channel.sums[1] / checksums.UNITS == pytest.approx(total)
    assert channel.checksum(channel._flat.numpy()) == pytest.approx(0.0)
    exchange = tf.function(channel.exchange, autograph=False)
    before = tf.identity(channel._flat)
    after, *_ = exchange(before, before - vector, tf.ones([], tf.float64))
    assert channel.sums[0] != 0
    assert channel.checksum(after.numpy()) == pytest.approx(0.0, abs=0.01)
    assert abs(channel.checksum(before.numpy())) > 100.0


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnhandledThreadExceptionWarning"
)
def test_no_step_waits_for_a_thread_that_has_failed(receiver):
    channel = receiver.channel
    transport = channel.transport

    def put(update):
        raise tf.errors.ResourceExhaustedError(None, None, "no memory")

    transport.senders[0].put = put
    message = [np.zeros([messages.header_length(3)], np.int64)]
    message += [ONES, np.zeros([0], np.uint8)]
    transport.outbox.put(message)
    transport._thread.join(60.0)
    with pytest.raises(tf.errors.CancelledError):
        transport.outbox.put(message)
    worker = types.SimpleNamespace(
        roster=channel._roster, admission=object(), channels=[channel]
    )
    with pytest.raises(RuntimeError, match="has failed"):
        engine.PeerEngine.read_told(worker)


def test_a_thread_keeps_no_messages_that_it_has_handed_out():
    one = object.__new__(transport_lib.Transport)
    one._pace, handed_out, kept = 0.0, [], []
    one.outbox = types.SimpleNamespace(size=lambda handle: 0)
    one.senders = [types.SimpleNamespace(worker=1, put=handed_out.append)]

    def taken(handle):
        if handed_out:
            ((update,),) = handed_out
            vector = weakref.ref(update.values)
            handed_out.clear()
            del update
            kept.append(vector() is not None)
            raise tf.errors.CancelledError(None, None, "closed")
        header = np.zeros([messages.header_length(2)], np.int64)
        return messages.PeerUpdate(header, np.ones([2]), np.zeros([0]))

    one._taken = taken
    one._hand_out_all(None)
    assert kept == [False]


def test_a_step_that_changes_nothing_sends_nothing(receiver):
    exchange = tf.function(receiver.channel.exchange, autograph=False)
    rate = tf.constant(0.25, tf.float64)
    vector, other, *_ = exchange(ONES, ONES, rate)
    np.testing.assert_array_equal(vector, ONES)
    assert not other
    assert receiver.channel.sent == 0


def test_an_update_that_is_not_finite_is_dropped():
    made = Receiver(Threshold(1.0))
    exchange = tf.function(made.channel.exchange, autograph=False)
    rate = tf.constant(0.25, tf.float64)
    vector, *_ = exchange(ONES, ONES * np.nan, rate)
    np.testing.assert_array_equal(vector, ONES)
    assert made.channel.sent == 0
    made.channel.transport.close()


@pytest.mark.nightly
def test_bytes_are_those_of_the_message():
    """What decoding expects of other messages changes nothing."""
    made = Receiver(Threshold(2.0**-4))
    update = np.zeros(SIZE, "float32")
    update[:3] = 1.0
    roster = made.channel._roster
    roster.await_later([2])
    exchange = tf.function(made.channel.exchange, autograph=False)
    step = ONES, ONES - update, tf.constant(1.0, tf.float64)
    _, _, to_first, *_ = exchange(*step)
    roster.admit(2, INCARNATION)
    _, _, to_both, *_ = exchange(*step)
    roster.give_up(1, "a test")
    _, _, to_second, *_ = exchange(*step)
    message, _ = made.codec.encode(tf.constant(update), made.codec.state(SIZE))
    # With the header's twelve numbers, of which one is the kind.
    size = made.codec.bytes(message).numpy() - 4 + 8 * 12
    assert to_first.numpy() == to_second.numpy() == size
    assert to_both.numpy() == 2 * size
    made.channel.transport.close()


@pytest.mark.parametrize(
    ("codec", "held"), [(None, 5), (Threshold(0.5), 20), (Cast("bfloat16"), 5)]
)
def test_what_waits_has_a_bound_in_bytes(monkeypatch, codec, held):
    """A dense message has 8 KiB, one of a codec a quarter of it at most."""
    monkeypatch.setattr(messages, "CAPACITY_BYTES", 5 * 4 * SIZE)
    inbox = Receiver(codec).channel.transport.inbox
    assert inbox.capacity == held + 3 * messages.TOGETHER
