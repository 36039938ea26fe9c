"""Each server applies each batch once, whoever dies where in a push.

Virtual workers take portions from one queue and push to two servers in this
process. A push reaches the servers one after the other, and between any two
of its parts anything may happen: its worker dies, or others take it for dead
and it goes on.
"""

import functools
import itertools
import types

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import tensorflow as tf

from tests import laws
from tfdist.data_shares import portion_queue
from tfdist.runtime.exchange import portion_progress

SERVERS, WORKERS, BATCHES, ENDS, CUT = 2, 3, 7, [3, 6, 7], 2**32 - 1
_runs = itertools.count(1)


class _Servers:
    """Two servers, each with what a `PortionProgress` keeps."""

    def __init__(self, name="test"):
        self._name = name
        self.devices = [
            d.name for d in tf.config.list_logical_devices("CPU")[1:3]
        ]
        self.progress = portion_progress.PortionProgress(
            types.SimpleNamespace(
                num_shards=SERVERS,
                devices=self.devices,
                worker_device=tf.config.list_logical_devices("CPU")[0].name,
                worker_variable=lambda value, name: tf.Variable(value),
                call=lambda function: function(),
                resource=self._resource,
            )
        )
        self.claims = [
            tf.function(
                functools.partial(self._build_claim, shard),
                input_signature=[
                    tf.TensorSpec([5], tf.int64),
                    tf.TensorSpec([], tf.bool),
                ],
                autograph=False,
            )
            for shard in range(SERVERS)
        ]

    def _resource(self, shard, name, dtype, shape):
        with tf.device(self.devices[shard]):
            return tf.raw_ops.VarHandleOp(
                dtype=dtype, shape=shape, shared_name=f"{self._name}/{name}"
            )

    def _build_claim(self, shard, place, enabled):
        with tf.device(self.devices[shard]):
            claimed = self.progress.build_claim(
                shard, place, range(SERVERS), enabled
            )
        return claimed

    def claim(self, shard, place, enabled=True):
        """Pushes to one server; returns whether it applies that."""
        epoch, *rest = place
        return bool(self.claims[shard]([epoch, CUT, *rest], enabled))


@functools.cache
def servers():
    return _Servers()


class _Epoch:
    """An epoch: its queue, and what servers have applied."""

    def __init__(self):
        self.number = next(_runs)
        self.queue = portion_queue.PortionQueue(self.number, ENDS)
        self.applied = np.zeros([SERVERS, BATCHES], int)

    def worker(self, number, first_server):
        """What a worker does; gives control away after each little step."""
        while (portion := self.queue.take(number)) is not None:
            start = 0
            if portion.was_begun:
                done = servers().progress.read(self.number)
                start = int(done[portion.number]) if len(done) else 0
            yield
            for batch in range(start, portion.end - portion.first):
                place = [self.number, len(self.queue), portion.number, batch]
                for shard in range(SERVERS):
                    shard = (shard + first_server) % SERVERS
                    new = servers().claim(shard, place)
                    self.applied[shard, portion.first + batch] += new
                    yield
            self.queue.complete(portion.number, number)
            yield


@laws.settings(12, nightly=400)
@given(st.data())
def test_each_server_applies_each_batch_once(data):
    epoch = _Epoch()
    running = {
        k: epoch.worker(k, first_server=k % SERVERS) for k in range(WORKERS)
    }
    events = st.tuples(
        st.sampled_from(["go on"] * 6 + ["die", "seems dead"]),
        st.integers(0, WORKERS - 1),
    )
    for event, worker in data.draw(st.lists(events, max_size=40)):
        if event == "go on":
            next(running[worker], None)
            continue
        epoch.queue.give_back([worker])
        if event == "die":
            # It is started again.
            running[worker] = epoch.worker(worker, worker % SERVERS)
    while not epoch.queue.is_done:
        for worker, one in running.items():
            for _ in one:
                pass
            running[worker] = epoch.worker(worker, worker % SERVERS)
    np.testing.assert_array_equal(epoch.applied, 1)


def test_a_push_of_no_portion_always_counts():
    fresh = _Servers("fresh")
    for made in (fresh, servers()):
        for place in ([-1, 1, 0, 0], [-1, 1, 0, 1]):
            assert made.claim(0, place)
            assert made.claim(0, place)
    assert fresh.progress.latest() < (0, 0)
    assert fresh.claim(1, [5, 1, 0, 0])
    assert fresh.progress.latest() == (5, CUT)


def test_a_push_of_an_epoch_that_is_over_does_not_count():
    first, second = next(_runs), next(_runs)
    assert servers().claim(0, [first, 2, 0, 0])
    assert servers().claim(0, [second, 3, 2, 0])
    assert not servers().claim(0, [first, 2, 0, 1])
    assert servers().claim(0, [second, 3, 2, 1])


def test_what_may_not_count_is_not_noted():
    epoch = next(_runs)
    assert servers().claim(0, [epoch, 2, 0, 0], enabled=False)
    assert servers().claim(0, [epoch, 2, 0, 0])
    assert not servers().claim(0, [epoch, 2, 0, 0])


def test_progress_is_that_of_the_slowest_server():
    epoch = next(_runs)
    assert servers().progress.read(epoch).tolist() == []
    for batch in range(2):
        servers().claim(0, [epoch, 2, 1, batch])
    # The second one is known to keep it, and has seen nothing.
    assert servers().progress.read(epoch).tolist() == [0, 0]
    servers().claim(1, [epoch, 2, 1, 0])
    assert servers().progress.read(epoch).tolist() == [0, 1]
