"""Real groups that read weights from each other's parameter servers."""

import contextlib
import re
import signal
import socket
import time
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.multi_process import peer_servers_tasks as groups
from tests.multi_process.real_cluster import ClusterUnderTest
from tfdist.cli import local_cluster
from tfdist.codistillation import Group
from tfdist.codistillation import PeerServers
from tfdist.codistillation import PeerUnavailableError
from tfdist.codistillation import UnusableCheckpointError
from tfdist.codistillation import quantization
from tfdist.codistillation import server_session

pytestmark = pytest.mark.nightly

# The kernel that is split, and the worker's own counter, by their places among
# the exchanged variables.
SPLIT_KERNEL, COUNTER = 0, 6
NOBODY = "127.0.0.1:1"


class Reader:
    """A process of group 0, which reads from group 1.

    It is this process: it has a model and no cluster, and stands in for the
    strategy, of which a reader needs nothing.
    """

    def __init__(self, peer_servers, model=None, peer=1, **arguments):
        self.model = model or groups.build_model()
        strategy = types.SimpleNamespace(
            cluster=types.SimpleNamespace(
                num_ps=1, ps_addresses=(NOBODY,), is_chief=False
            ),
            layout=lambda variables: None,
        )
        bound = types.SimpleNamespace(
            distribute_strategy=strategy, variables=self.model.variables
        )
        # Groups between the two are not asked.
        others = [[f"127.0.0.1:{number}"] for number in range(2, peer + 1)]
        servers = [[NOBODY], *others, peer_servers]
        # Who is there may be starved; a test says less of who is not.
        self.exchange = PeerServers(servers, **{"timeout": 60.0, **arguments})
        self.exchange.bind(Group(0, peer + 1), bound)
        self._peer = peer

    def fetch(self, newer_than=None):
        """Asks the peer."""
        return self.exchange.fetch(self._peer, newer_than)


class Peer:
    """A group with two servers and a worker, which is told when to train."""

    def __init__(self, cluster):
        self._cluster = cluster
        self.servers = [cluster.address("ps", k) for k in range(2)]
        self.processes = cluster.start_servers()
        self.worker = self.run = None

    def start_worker(self, run):
        """Starts the worker, which trains its first lesson."""
        self.run = run
        self.worker = self._cluster.start(
            "worker",
            0,
            "peer_servers_tasks:teach",
            run=run,
            servers=[[NOBODY], self.servers],
        )

    def wait_for(self, lesson):
        """Waits for a lesson's end; returns the weights and the updates."""
        match = self.worker.expect(rf"lesson {lesson} of {self.run} at (\d+)")
        path = self._cluster.directory / f"{self.worker.label}-{lesson}.npz"
        with np.load(path) as file:
            return [file[name] for name in file.files], int(match[1])

    def train(self, lesson):
        """Makes it train another lesson; returns as `wait_for`."""
        self._cluster.tell(f"{self.run} lesson {lesson}")
        return self.wait_for(lesson)


@pytest.fixture(scope="module")
def peer(zygote, tmp_path_factory):
    """One that has taught its first lesson."""
    directory = tmp_path_factory.mktemp("peer")
    with ClusterUnderTest(
        zygote, directory, num_ps=2, num_workers=1
    ) as cluster:
        made = Peer(cluster)
        # Before there is anything to read.
        for server in made.processes:
            server.expect("serves on port")
        with pytest.raises(PeerUnavailableError) as raised:
            Reader(made.servers).fetch()
        made.before = str(raised.value)
        made.start_worker("first life")
        made.weights, made.updates = made.wait_for(1)
        made.lesson = 1
        yield made


def assert_equal(found, expected):
    assert len(found) == len(expected)
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        np.testing.assert_array_equal(one, other, str(number))
        assert one.dtype == other.dtype


def travelled(weights, dtype):
    """The weights after their way, and the bytes that they took."""
    found, size = [], 0
    for number, array in enumerate(weights):
        pieces = [array]
        if number == SPLIT_KERNEL:
            pieces = [array[: groups.SPLIT_AT], array[groups.SPLIT_AT :]]
        parts = [quantization.quantise(piece, dtype) for piece in pieces]
        if number != COUNTER:
            size += sum(array.nbytes for part in parts for array in part)
        restored = [quantization.restore(part, array.dtype) for part in parts]
        found.append(
            np.concatenate(restored) if len(restored) > 1 else restored[0]
        )
    return found, size


def test_a_peer_that_has_not_begun_is_said_to_be(peer):
    assert peer.before == (
        "parameter server /job:ps/task:0 of group 1 at "
        f"{peer.servers[0]} does not have the layout of its weights: its group "
        "has not begun to exchange yet"
    )


@pytest.mark.parametrize("dtype", quantization.DTYPES)
def test_what_is_read_is_what_the_worker_has(peer, dtype):
    reader = Reader(peer.servers, dtype=dtype)
    # It belongs to each worker.
    reader.model.layers[3].count.assign(77)
    before = time.time()
    found = reader.fetch()
    assert before <= found.time <= time.time()
    assert (found.group, found.run) == (1, "first life")
    assert found.initial == "initial of first life"
    assert found.step == found.number == peer.updates
    expected, size = travelled(peer.weights, dtype)
    assert expected[COUNTER].dtype == np.int32
    expected[COUNTER] = np.asarray(77, np.int32)
    assert_equal(found.weights, expected)
    assert reader.exchange.bytes_received == size
    # Kernels of 7 * 40 and 40 * 3 weights, and 40 + 4 * 40 + 3 others. The
    # kernels are pieces of 40, 40 and 3 columns, with a scale each.
    bytes_of = {
        "float32": 4 * (400 + 203),
        "float16": 2 * 400 + 4 * 203,
        "int8": 400 + 4 * (203 + 83),
    }
    assert size == bytes_of[dtype]


def test_there_is_something_new_after_an_update(peer):
    reader = Reader(peer.servers)
    first = reader.fetch()
    size = reader.exchange.bytes_received
    assert reader.fetch(first) is None
    assert reader.exchange.bytes_received == size
    peer.lesson += 1
    peer.weights, peer.updates = peer.train(peer.lesson)
    second = reader.fetch(first)
    # A lesson has three steps.
    assert second.number == first.number + 3 == peer.updates
    peer.weights[COUNTER] = np.asarray(0, np.int32)
    assert_equal(second.weights, peer.weights)
    assert np.any(first.weights[SPLIT_KERNEL] != second.weights[SPLIT_KERNEL])


def test_large_weights_come_in_several_answers(peer, monkeypatch):
    expected = Reader(peer.servers).fetch()
    module = "tfdist.codistillation.server_weights"
    monkeypatch.setattr(f"{module}._MOST_BYTES_AT_ONCE", 300)
    assert_equal(Reader(peer.servers).fetch().weights, expected.weights)


@pytest.mark.parametrize(
    ("units", "difference"),
    [
        (
            6,
            r"its variable 0 has shape \(7, 40\) where '.*kernel' here has "
            r"\(7, 6\)",
        ),
        (None, "it has 9 variables, the model here 0"),
    ],
)
def test_another_architecture_is_refused(peer, units, difference):
    model = keras.Sequential([keras.Input([1])])
    if units:
        model = groups.build_model(units)
    with pytest.raises(
        UnusableCheckpointError,
        match=f"group 1 has another architecture: {difference}.*whole_models",
    ):
        Reader(peer.servers, model).fetch()


def test_another_dtype_is_refused(peer):
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("float64")
    try:
        model = groups.build_model()
    finally:
        keras.config.set_dtype_policy(policy)
    with pytest.raises(
        UnusableCheckpointError,
        match="its variable 0 has dtype float32 where .* here has float64",
    ):
        Reader(peer.servers, model).fetch()


def test_servers_of_another_group_are_refused(peer):
    with pytest.raises(
        UnusableCheckpointError,
        match=f"said to be .* of group 2 at {peer.servers[0]} belongs to "
        "group 1: check the order",
    ):
        Reader(peer.servers, peer=2).fetch()


def test_servers_that_were_not_told_are_asked_for(peer):
    with pytest.raises(
        UnusableCheckpointError,
        match="group 1 has 2 parameter servers, and 1 are known here",
    ):
        Reader(peer.servers[:1]).fetch()


@pytest.mark.parametrize("index", [0, 1])
def test_a_stopped_server_is_given_up_on_in_time(peer, index):
    Reader(peer.servers).fetch()
    # The first server is asked first, and has to answer if it is well.
    timeout = (1, 15)[index]
    reader = Reader(peer.servers, timeout=float(timeout))
    peer.processes[index].send(signal.SIGSTOP)
    try:
        with pytest.raises(
            PeerUnavailableError,
            match=f"/job:ps/task:{index} of group 1 at {peer.servers[index]} "
            f"did not answer within {timeout} s",
        ):
            reader.fetch()
    finally:
        peer.processes[index].send(signal.SIGCONT)
    assert Reader(peer.servers).fetch().number == peer.updates


def test_a_server_that_stops_later_is_given_up_on_in_time_too(peer):
    # Longer than a test may take: what is left counts, not what was given.
    left = [600000]
    deadline = types.SimpleNamespace(seconds=600, milliseconds=lambda: left[-1])
    server = server_session.Server(1, 0, peer.servers[0])
    with tf.Graph().as_default() as graph, server.device():
        clock = tf.timestamp()
    with server_session.ServerSession(server, graph, deadline) as session:
        session.run(clock, "the time")
        peer.processes[0].send(signal.SIGSTOP)
        left.append(300)
        try:
            with pytest.raises(PeerUnavailableError, match="for the time"):
                session.run(clock, "the time")
        finally:
            peer.processes[0].send(signal.SIGCONT)


def test_nobody_at_the_address_is_not_waited_for():
    with local_cluster.LocalCluster({"ps": 1, "worker": 1}) as cluster:
        (address,) = (t.address for t in cluster.tasks if t.job == "ps")
        with pytest.raises(
            PeerUnavailableError,
            match=f"/job:ps/task:0 of group 1 at {address} is not there",
        ):
            # Longer than a test may take.
            Reader([address], timeout=600.0).fetch()


def test_who_listens_and_never_answers_is_given_up_on_in_time():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(
            PeerUnavailableError, match=rf"{address} did not .* within 0.5 s"
        ):
            Reader([address], timeout=0.5).fetch()


def test_a_peer_that_is_killed_and_started_again_is_read_again(
    zygote, tmp_path
):
    with ClusterUnderTest(zygote, tmp_path, num_ps=2, num_workers=1) as cluster:
        peer = Peer(cluster)
        peer.start_worker("life 1")
        peer.wait_for(1)
        reader = Reader(peer.servers)
        first = reader.fetch()

        # The servers go on without the worker, and count on for the next.
        peer.worker.kill()
        assert reader.fetch(first) is None
        peer.start_worker("life 2")
        peer.wait_for(1)
        second = reader.fetch(first)
        assert (second.run, second.number) == ("life 2", first.number + 3)
        assert second.step == second.number
        assert reader.fetch(second) is None

        for process in (peer.worker, *peer.processes):
            process.kill()
        with pytest.raises(PeerUnavailableError, match="nobody listens"):
            reader.fetch(second)
        peer.processes = cluster.start_servers()
        for server in peer.processes:
            server.expect("serves on port")
        with pytest.raises(PeerUnavailableError, match="has not begun"):
            reader.fetch(second)
        peer.start_worker("life 3")
        weights, updates = peer.wait_for(1)
        third = reader.fetch(second)
        # They count from the beginning; for the reader it is the next one.
        assert (third.run, third.step) == ("life 3", updates)
        assert updates < second.step
        assert third.number == second.number + 1
        weights[COUNTER] = np.asarray(0, np.int32)
        assert_equal(third.weights, weights)
        assert reader.fetch(third) is None
        _, updates = peer.train(2)
        assert reader.fetch(third).number == third.number + 3


def test_two_clusters_read_each_other_while_they_train(zygote, tmp_path):
    with contextlib.ExitStack() as stack:
        clusters = []
        for group in range(2):
            directory = tmp_path / f"group-{group}"
            directory.mkdir()
            clusters.append(
                stack.enter_context(
                    ClusterUnderTest(zygote, directory, num_ps=1, num_workers=1)
                )
            )
        servers = [[cluster.address("ps", 0)] for cluster in clusters]
        workers = []
        for group, cluster in enumerate(clusters):
            cluster.start_servers()
            workers += cluster.start_workers(
                "peer_servers_tasks:exchange_both_ways",
                group=group,
                servers=servers,
                # The other one takes local steps.
                local_steps=[None, 4][group],
            )
        for said, told in (
            ("enough came", "all have enough"),
            ("trained", "all have trained"),
        ):
            for worker in workers:
                worker.expect(said)
            for cluster in clusters:
                cluster.tell(told)
        reports = [worker.wait_for_report() for worker in workers]
        # Nobody's servers stay because others ask them.
        for cluster in clusters:
            cluster.finish()
        mine, theirs = (
            [load(cluster.directory / name) for cluster in clusters]
            for name in ("mine.npz", "theirs.npz")
        )
    for group, report in enumerate(reports):
        other = reports[1 - group]
        numbers = report["numbers"]
        assert numbers == sorted(set(numbers))
        assert report["finite"]
        assert all(
            re.search("has not begun|nobody listens", message)
            for message in report["unavailable"]
        )
        assert report["last"] == {
            "number": max(other["updates"]),
            "step": other["iterations"],
            "run": f"run {1 - group}",
        }
        expected = list(mine[1 - group])
        expected[COUNTER] = mine[group][COUNTER]
        assert_equal(theirs[group], expected)
    # With local steps an update of the servers is made of several.
    assert reports[0]["updates"] == [reports[0]["iterations"]]
    assert reports[1]["updates"][0] <= reports[1]["iterations"] / 4 + 1


def load(path):
    with np.load(path) as file:
        return [file[name] for name in file.files]
