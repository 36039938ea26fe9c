import json
import os
import pickle
import sys

import hypothesis
from hypothesis import strategies as st
import pytest

from tests import waits
from tfdist.cluster import ClusterConfig
from tfdist.cluster import ClusterConfigError

W2P1 = {"worker": ["a:1", "b:1"], "ps": ["c:1"]}
W0 = {"type": "worker", "index": 0}


def read(cluster, task=None, **keys):
    config = {"cluster": cluster, **keys}
    if task is not None:
        config["task"] = task
    return ClusterConfig.from_tf_config({"TF_CONFIG": json.dumps(config)})


def config_of(cluster, task_type, task_index):
    return read(cluster, {"type": task_type, "index": task_index})


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"TF_CONFIG": ""},
        {"TF_CONFIG": " \n"},
        {"TF_CONFIG": "{}"},
        {"TF_CONFIG": '{"cluster": {}}'},
        {"TF_CONFIG": '{"environment": "cloud", "task": {}}'},
        {"TF_CONFIG": '{"task": {"type": "chief", "index": "0"}}'},
    ],
)
def test_without_a_cluster_is_local(environ):
    config = ClusterConfig.from_tf_config(environ)
    assert config == ClusterConfig.local()
    assert config.is_local and config.is_chief and config.is_worker
    assert not config.is_ps and not config.is_evaluator
    assert (config.worker_id, config.num_workers, config.num_ps) == (0, 1, 0)
    assert config.worker_names == ("/job:worker/task:0",)
    assert config.ps_names == config.ps_addresses == ()
    assert config.address is None


def test_tf_config_of_the_process_is_the_default(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": W2P1, "task": W0}))
    assert ClusterConfig.from_tf_config().num_workers == 2


def test_chief_comes_before_workers():
    cluster = {
        "ps": ["p0:1", "p1:1"],
        "worker": ["w0:1", "w1:1"],
        "chief": ["c:1"],
    }
    chief = config_of(cluster, "chief", 0)
    workers = [config_of(cluster, "worker", i) for i in range(2)]
    server = config_of(cluster, "ps", 1)
    assert [c.worker_id for c in (chief, *workers)] == [0, 1, 2]
    assert [c.is_chief for c in (chief, *workers)] == [True, False, False]
    assert chief.worker_names == (
        "/job:chief/task:0",
        "/job:worker/task:0",
        "/job:worker/task:1",
    )
    assert workers[1].task_name == "/job:worker/task:1"
    assert workers[1].address == "w1:1"
    assert chief.num_workers == 3 and chief.num_ps == 2
    assert chief.ps_names == ("/job:ps/task:0", "/job:ps/task:1")
    assert chief.ps_addresses == ("p0:1", "p1:1")
    assert server.is_ps and not server.is_worker and not server.is_chief
    assert server.address == "p1:1" and not server.is_local
    with pytest.raises(ClusterConfigError, match="/job:ps/task:1"):
        _ = server.worker_id


def test_worker_0_is_the_chief_where_there_is_none():
    assert config_of(W2P1, "worker", 0).is_chief
    assert not config_of(W2P1, "worker", 1).is_chief


def test_evaluator_may_be_absent_from_the_cluster():
    absent = config_of(W2P1, "evaluator", 0)
    listed = config_of({**W2P1, "evaluator": ["e:1"]}, "evaluator", 0)
    for config in (absent, listed):
        assert config.is_evaluator and not config.is_worker
        assert not config.is_chief and config.num_workers == 2
    assert absent.address is None and listed.address == "e:1"
    # Its own view of the cluster must not look like another cluster.
    worker = config_of(W2P1, "worker", 0)
    assert absent.fingerprint == listed.fingerprint == worker.fingerprint


def test_accepted_variants_of_tensorflow():
    sparse = {"worker": {"1": "b:1", "0": "a:1"}, "ps": {"0": "c:1"}}
    config = read(
        sparse,
        {"type": "worker", "index": "1", "trial": "7"},
        environment="cloud",
        rpc_layer=None,
        job={"args": []},
    )
    assert config == config_of(W2P1, "worker", 1)
    assert config.task_index == 1
    ipv6 = read({"worker": ["[::1]:80"], "ps": ["[::1]:81"]}, W0)
    assert ipv6.ps_addresses == ("[::1]:81",)
    # A job without tasks is as good as none.
    assert read({**W2P1, "chief": []}, W0) == read(W2P1, W0)


@hypothesis.given(st.booleans(), st.integers(1, 4), st.integers(0, 3))
def test_each_helper_is_that_of_one_worker(has_chief, workers, each):
    num_workers = workers + has_chief
    cluster = {
        "ps": ["p:1"],
        "worker": [f"w{k}:1" for k in range(workers)],
        "helper": [f"h{k}:1" for k in range(each * num_workers)],
    }
    if has_chief:
        cluster["chief"] = ["c:1"]
    jobs = ["chief"] * has_chief + ["worker"] * workers
    found = {}
    for number, job in enumerate(jobs):
        worker = config_of(cluster, job, number - (job != jobs[0]) * has_chief)
        assert len(worker.helpers) == each
        found.update(dict.fromkeys(worker.helpers.items(), worker.task_name))
    # In the order of workers, and no two have the same.
    assert list(found) == [(k, f"h{k}:1") for k in range(each * num_workers)]
    assert config_of(cluster, "ps", 0).helpers == {}
    for (task, address), name in found.items():
        helper = config_of(cluster, "helper", task)
        assert helper.is_helper and not helper.is_worker and not helper.is_ps
        assert (helper.helped_worker, helper.address) == (name, address)
        assert helper.helpers == {}


def test_one_worker_without_servers_is_local():
    config = read({"worker": ["a:1"]}, W0)
    assert config.is_local and config.is_chief and config.address == "a:1"
    assert not config_of({**W2P1}, "worker", 0).is_local


def test_fingerprint_tells_clusters_apart():
    base = config_of(W2P1, "worker", 0)
    same = config_of({"ps": ["c:1"], "worker": ["A:01", "b:1"]}, "ps", 0)
    # Workers that start after a server has moved get the others' seed.
    moved = config_of({**W2P1, "ps": ["c:2"]}, "worker", 0)
    assert base.fingerprint == same.fingerprint == moved.fingerprint
    assert base != moved
    assert 0 <= base.fingerprint < 2**32
    for other in (
        {**W2P1, "ps": ["c:1", "c:2"]},
        {**W2P1, "worker": ["b:1", "a:1"]},
        {"worker": ["a:1"], "chief": ["b:1"], "ps": ["c:1"]},
    ):
        assert config_of(other, "ps", 0).fingerprint != base.fingerprint


def test_arguments_are_checked_under_their_own_names():
    with pytest.raises(ClusterConfigError, match=r'spec\["ps"\]\[0\]'):
        ClusterConfig({"worker": ["a:1"], "ps": ["b"]}, "worker", 0)
    with pytest.raises(ClusterConfigError, match="ClusterConfig.task_index"):
        ClusterConfig(W2P1, "worker", 2)
    with pytest.raises(ClusterConfigError, match="ClusterConfig.spec"):
        ClusterConfig(None, "worker", 0)
    with pytest.raises(ClusterConfigError, match="ClusterConfig.task_type"):
        ClusterConfig({}, "ps", 0)


def test_importing_it_does_not_import_tensorflow():
    code = (
        "import sys, tfdist.cluster.config, tfdist.cluster.environment\n"
        "import tfdist.cli.main\n"
        "assert 'tensorflow' not in sys.modules\n"
        "assert 'keras' not in sys.modules\n"
    )
    waits.run([sys.executable, "-c", code], check=True)


HOSTS = st.from_regex(
    r"\A[a-z][a-z0-9]{0,8}(\.[a-z]{2,5})?\Z"
) | st.sampled_from(
    ["10.0.0.7", "[::1]", "[fe80::2]", "localhost", "task_0.svc"]
)


@st.composite
def clusters(draw):
    addresses = draw(
        st.lists(
            st.tuples(HOSTS, st.integers(1, 65535)),
            min_size=3,
            max_size=12,
            unique=True,
        )
    )
    addresses = [f"{host}:{port}" for host, port in addresses]
    spec = {"ps": [addresses.pop()], "worker": [addresses.pop()]}
    for job in ("chief", "evaluator"):
        if addresses and draw(st.booleans()):
            spec[job] = [addresses.pop()]
    for address in addresses:
        spec[draw(st.sampled_from(["worker", "ps"]))].append(address)
    return dict(draw(st.permutations(sorted(spec.items()))))


@hypothesis.given(cluster=clusters(), data=st.data())
def test_well_formed_configs_round_trip(cluster, data):
    task_type = data.draw(st.sampled_from(sorted(cluster)))
    task_index = data.draw(st.integers(0, len(cluster[task_type]) - 1))
    written = {
        job: {str(i): a for i, a in enumerate(addresses)}
        if data.draw(st.booleans())
        else addresses
        for job, addresses in cluster.items()
    }
    config = config_of(written, task_type, task_index)
    assert {j: list(a) for j, a in config.spec.items()} == cluster
    assert (config.task_type, config.task_index) == (task_type, task_index)
    assert config.address == cluster[task_type][task_index]
    again = config_of(config.spec, config.task_type, config.task_index)
    assert again == config and hash(again) == hash(config)
    assert pickle.loads(pickle.dumps(config)) == config
    views = [
        config_of(cluster, job, index)
        for job, addresses in cluster.items()
        for index in range(len(addresses))
    ]
    assert {view.fingerprint for view in views} == {config.fingerprint}
    ids = sorted(view.worker_id for view in views if view.is_worker)
    assert ids == list(range(config.num_workers))
    assert [view.is_chief for view in views].count(True) == 1


def test_resolvers_say_the_same_as_tf_config(monkeypatch):
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver
    expected = config_of(W2P1, "worker", 1)
    simple = resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(W2P1),
        task_type="worker",
        task_id=1,
        rpc_layer="grpc",
    )
    assert ClusterConfig.from_resolver(simple) == expected
    task = {"type": "worker", "index": "1"}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": W2P1, "task": task}))
    from_environment = resolver.TFConfigClusterResolver()
    assert ClusterConfig.from_resolver(from_environment) == expected
    few = {"cluster": W2P1, "task": task, "initial_workers": 1}
    monkeypatch.setenv("TF_CONFIG", json.dumps(few))
    assert ClusterConfig.from_resolver(from_environment).initial_workers == 1
    few["initial_workers"] = 3
    monkeypatch.setenv("TF_CONFIG", json.dumps(few))
    with pytest.raises(ClusterConfigError, match='"initial_workers"] must'):
        ClusterConfig.from_resolver(from_environment)
    # One that TensorFlow does not have may say it, too.
    simple.initial_workers = 1
    assert ClusterConfig.from_resolver(simple).data_share == (1, 0)
    simple.initial_workers = 0
    with pytest.raises(ClusterConfigError, match="resolver.initial_workers"):
        ClusterConfig.from_resolver(simple)
    empty = resolver.SimpleClusterResolver(tf.train.ClusterSpec({}))
    assert ClusterConfig.from_resolver(empty) == ClusterConfig.local()

    monkeypatch.setenv("TF_CONFIG", "{")
    for given, message in (
        (from_environment, r"cluster_resolver.cluster_spec\(\)` failed: JSON"),
        (
            resolver.SimpleClusterResolver(tf.train.ClusterSpec(W2P1)),
            "cluster_resolver.task_type must",
        ),
        (
            resolver.SimpleClusterResolver(
                tf.train.ClusterSpec(W2P1), task_type="ps", task_id=3
            ),
            "cluster_resolver.task_id must .* 0 to 0",
        ),
        (
            resolver.SimpleClusterResolver(
                tf.train.ClusterSpec(W2P1),
                task_type="worker",
                task_id=0,
                rpc_layer="http",
            ),
            "cluster_resolver.rpc_layer must be 'grpc'",
        ),
        (
            resolver.SimpleClusterResolver(
                tf.train.ClusterSpec({**W2P1, "ps": ["nowhere"]}),
                task_type="ps",
                task_id=0,
            ),
            r'cluster_resolver.cluster_spec\(\)\["ps"\]\[0\] must',
        ),
        (W2P1, "Argument `cluster_resolver` must be .* Received: .*dict"),
        (None, "Argument `cluster_resolver` must be .* Received: .*None"),
    ):
        with pytest.raises(ClusterConfigError, match=message):
            ClusterConfig.from_resolver(given)


def test_the_first_workers_are_there_from_the_beginning():
    cluster = {"chief": ["a:1"], "worker": ["b:1", "c:1"], "ps": ["d:1"]}
    task = {"type": "worker", "index": 1}
    assert read(cluster, task).initial_workers == 3
    assert read(cluster, task).data_share == (3, 2)
    config = read(cluster, task, initial_workers=2)
    assert (config.initial_workers, config.num_workers) == (2, 3)
    # Not all is there to be shared out with: it trains on somebody's share.
    assert config.data_share == (2, 0)
    # All start alike, whatever the number.
    assert config.fingerprint == read(cluster, task).fingerprint


@pytest.mark.parametrize("has_chief", [True, False])
def test_each_task_that_trains_has_a_share_of_its_own(has_chief):
    cluster = {"worker": ["a:1", "b:1"], "ps": ["c:1"]}
    tasks = [("worker", 0), ("worker", 1)]
    if has_chief:
        cluster["chief"] = ["d:1"]
        tasks.append(("chief", 0))
    shares = [config_of(cluster, *task).data_share for task in tasks]
    assert sorted(shares) == [(len(tasks), k) for k in range(len(tasks))]


def test_an_evaluator_has_all_of_the_data():
    cluster = {"worker": ["a:1", "b:2"], "ps": ["c:3"]}
    task = {"type": "evaluator", "index": 0}
    assert read(cluster, task).data_share == (1, 0)


@pytest.mark.parametrize("number", [0, 4, True, "2", 2.0])
def test_a_number_of_initial_workers_that_cannot_be_is_refused(number):
    cluster = {"worker": ["a:1", "b:1", "c:1"], "ps": ["d:1"]}
    with pytest.raises(ClusterConfigError) as refused:
        read(cluster, W0, initial_workers=number)
    assert 'TF_CONFIG["initial_workers"] must' in str(refused.value)
    assert "from 1 to 3" in str(refused.value)


def test_nobody_joins_a_ring():
    with pytest.raises(ClusterConfigError, match="2 of 3 workers and no ps"):
        read({"worker": ["a:1", "b:1", "c:1"]}, W0, initial_workers=2)
