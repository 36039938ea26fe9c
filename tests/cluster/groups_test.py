"""Which group this is: from `TF_CONFIG` or made by hand, and its data."""

import json
import os
import sys

import numpy as np
import pytest

from tests import waits
from tfdist.cluster import ClusterConfig
from tfdist.cluster import ClusterConfigError
from tfdist.cluster import Group

CLUSTER = {"worker": ["a:1", "b:1"], "ps": ["c:1", "d:1"]}
WORKER = {"type": "worker", "index": 1}
SERVERS = [["x:1"], ["c:1", "d:1"]]
KEY = 'TF_CONFIG["codistillation"]'


def environ(codistillation, **config):
    """An environment with that key, and with a cluster if not told."""
    config = config or {"cluster": CLUSTER, "task": WORKER}
    config["codistillation"] = codistillation
    return {"TF_CONFIG": json.dumps(config)}


def test_a_group_with_a_cluster():
    told = environ({"group": 1, "num_groups": 2, "servers": SERVERS})
    group = Group.from_tf_config(told)
    assert group == Group(1, 2, (("x:1",), ("c:1", "d:1")))
    assert group.peers == (0,)
    config = ClusterConfig.from_tf_config(told)
    assert (config.worker_id, config.ps_addresses) == (1, group.servers[1])


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"cluster": {}},
        {"task": {"type": "worker", "index": 0}},
        {"task": {"type": "chief", "index": 0}, "environment": "cloud"},
    ],
)
def test_a_group_that_is_one_process(config):
    config = {**config, "codistillation": {"group": 2, "num_groups": 4}}
    told = {"TF_CONFIG": json.dumps(config)}
    group = Group.from_tf_config(told)
    assert group == Group(index=2, num_groups=4, servers=())
    assert group.peers == (0, 1, 3)
    assert ClusterConfig.from_tf_config(told) == ClusterConfig.local()


def test_groups_of_both_kinds_teach_each_other():
    key = {"num_groups": 3, "servers": [["c:1", "d:1"], [], ["[::1]:2"]]}
    servers = (("c:1", "d:1"), (), ("[::1]:2",))
    with_servers = Group.from_tf_config(environ({"group": 0, **key}))
    assert with_servers == Group(0, 3, servers)
    for alone in ({"task": {}}, {"cluster": {"worker": ["b:1"]}}):
        alone = {"task": {"type": "worker", "index": 0}, **alone}
        told = environ({"group": 1, **key}, **alone)
        assert Group.from_tf_config(told) == Group(1, 3, servers)
    # The cluster may come from a resolver, which nobody asks here.
    told = environ({"group": 0, **key}, task={})
    assert Group.from_tf_config(told) == Group(0, 3, servers)


def test_the_same_servers_may_be_written_differently():
    key = {"group": 1, "num_groups": 2, "servers": [["x:1"], ["C:01", "d:1"]]}
    assert Group.from_tf_config(environ(key)).servers[1] == ("C:01", "d:1")


@pytest.mark.parametrize(
    "text", ["", " ", "{}", json.dumps({"cluster": CLUSTER, "task": WORKER})]
)
def test_without_the_key_it_is_the_only_group(text):
    group = Group.from_tf_config({"TF_CONFIG": text})
    assert group == Group(0, 1)
    assert group.shard(np.arange(3)).tolist() == [0, 1, 2]


def test_the_environment_of_the_process_is_the_default(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    assert Group.from_tf_config() == Group(0, 1)
    assert Group.from_tf_config().peers == ()
    told = environ({"group": 1, "num_groups": 2}, task={})
    monkeypatch.setenv("TF_CONFIG", told["TF_CONFIG"])
    assert Group.from_tf_config() == Group(1, 2)


def test_keys_of_others_are_ignored():
    key = {"group": 0, "num_groups": 2, "teacher": 1}
    assert Group.from_tf_config(environ(key)) == Group(0, 2)


def test_everything_else_of_tf_config_is_checked_as_well():
    key = {"group": 0, "num_groups": 2}
    with pytest.raises(ClusterConfigError, match='"task".*"type".*missing'):
        Group.from_tf_config(environ(key, cluster=CLUSTER, task={"index": 0}))
    with pytest.raises(ClusterConfigError, match="no cluster"):
        Group.from_tf_config(environ(key, task=WORKER))


@pytest.mark.parametrize("name", ["codistilation", "Codistillation"])
def test_the_misspelt_key_is_refused(name):
    config = {name: {"group": 0, "num_groups": 2}}
    for read in (Group.from_tf_config, ClusterConfig.from_tf_config):
        with pytest.raises(ClusterConfigError) as caught:
            read({"TF_CONFIG": json.dumps(config)})
        message = f'TF_CONFIG["{name}"] looks like a misspelt "codistillation"'
        assert message in str(caught.value)


# name -> (what the key holds, parts that the message must contain)
MALFORMED = {
    "list": ([0, 2], [f"{KEY} must be an object", "[0, 2]"]),
    "empty": ({}, [f"{KEY} must have", '"group" is missing', "{}"]),
    "no_group": ({"num_groups": 2}, ['"group" is missing', "'num_groups'"]),
    "group_bool": (
        {"group": True, "num_groups": 2},
        [f'{KEY}["group"]', "integer from 0 to 1", "True (of type bool)"],
    ),
    "group_too_large": (
        {"group": 2, "num_groups": 2},
        [f'{KEY}["group"]', "integer from 0 to 1", "2 (of type int)"],
    ),
    "num_groups_zero": (
        {"group": 0, "num_groups": 0},
        [f'{KEY}["num_groups"]', "integer from 1", "0"],
    ),
    "num_groups_huge": (
        {"group": 10**4000 + 1, "num_groups": 10**4000},
        [f'{KEY}["group"]', "integer from 0 to"],
    ),
    "misspelt": (
        {"group": 0, "numgroups": 2},
        [f'{KEY}["numgroups"]', 'misspelt "num_groups"', "servers"],
    ),
    "servers_of_some": (
        {"group": 1, "num_groups": 3, "servers": SERVERS},
        [f'{KEY}["servers"]', "list of 3 lists", "'x:1'"],
    ),
    "servers_flat": (
        {"group": 1, "num_groups": 2, "servers": ["c:1", "d:1"]},
        [f'{KEY}["servers"][0]', "list of addresses", "'c:1'"],
    ),
    "servers_address": (
        {"group": 1, "num_groups": 2, "servers": [["x"], ["c:1", "d:1"]]},
        [f'{KEY}["servers"][0][0]', "host:port", "'x'"],
    ),
    "servers_twice": (
        {"group": 1, "num_groups": 2, "servers": [["D:1"], ["c:1", "d:1"]]},
        [f'{KEY}["servers"][1][1]', f'{KEY}["servers"][0][0]', "'d:1'"],
    ),
    "servers_of_another": (
        {"group": 0, "num_groups": 2, "servers": SERVERS},
        [f'{KEY}["servers"][0]', '["cluster"]["ps"]', "c:1", "['x:1']"],
    ),
    "servers_in_another_order": (
        {"group": 1, "num_groups": 2, "servers": [["x:1"], ["d:1", "c:1"]]},
        [f'{KEY}["servers"][1]', "['c:1', 'd:1']", "['d:1', 'c:1']"],
    ),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_key_is_refused_by_its_name(name):
    key, parts = MALFORMED[name]
    with pytest.raises(ClusterConfigError) as caught:
        Group.from_tf_config(environ(key))
    for part in parts:
        assert part in str(caught.value)
    assert len(str(caught.value)) < 1000
    # The cluster can still be read: its strategy need not know of groups.
    if "misspelt" not in name:
        assert ClusterConfig.from_tf_config(environ(key)).num_ps == 2


def test_servers_that_the_cluster_has_not_are_refused():
    key = {"group": 0, "num_groups": 2, "servers": [["x:1"], []]}
    told = environ(
        key,
        cluster={"worker": ["a:1"]},
        task={"type": "worker", "index": 0},
    )
    with pytest.raises(ClusterConfigError, match=r'\["ps"\], \[\]'):
        Group.from_tf_config(told)


@pytest.mark.parametrize(
    "arguments, parts",
    [
        ((2, 2), ["Group.index", "0 to 1", "2"]),
        ((0.0, 2), ["Group.index", "0.0"]),
        ((0, 0), ["Group.num_groups", "from 1", "0"]),
        ((0, 2, (("a:1",),)), ["Group.servers", "2 lists"]),
    ],
)
def test_a_group_made_by_hand_is_checked(arguments, parts):
    with pytest.raises(ClusterConfigError) as caught:
        Group(*arguments)
    for part in parts:
        assert part in str(caught.value)


def test_a_group_is_a_value():
    group = Group(0, 2, [["a:1"], ["b:1"]])
    assert group.servers == (("a:1",), ("b:1",))
    assert {group} == {Group(0, 2, (("a:1",), ("b:1",)))}
    assert Group(0, 2, []) == Group(0, 2)
    with pytest.raises(AttributeError):
        group.index = 1


# Data.


def test_arrays_are_dealt_out_in_turn():
    x = np.arange(14).reshape(7, 2)
    y = np.arange(7)
    parts = [Group(index, 3).shard((x, y)) for index in range(3)]
    assert [part[1].tolist() for part in parts] == [[0, 3, 6], [1, 4], [2, 5]]
    for part in parts:
        assert isinstance(part, tuple)
        np.testing.assert_array_equal(part[0], x[part[1]])
    np.testing.assert_array_equal(Group(0, 1).shard(x), x)


def test_nested_arrays_keep_their_form():
    x, y = np.arange(5), np.arange(5) * 10
    part = Group(1, 2).shard([{"left": x, "right": (x,)}, y])
    assert isinstance(part, list) and isinstance(part[0]["right"], tuple)
    assert part[0]["left"].tolist() == part[0]["right"][0].tolist() == [1, 3]
    assert part[1].tolist() == [10, 30]


@pytest.mark.parametrize(
    "data, parts",
    [
        ([1, 2, 3], ["tf.data.Dataset", "dataset[0]=1 (of type int)"]),
        (None, ["tf.data.Dataset", "dataset=None"]),
        (np.float32(1), ["tf.data.Dataset", "float32"]),
        (
            {"x": np.ones((4, 2)), "y": np.ones(3)},
            ["equal length", "dataset['x']: 4, dataset['y']: 3"],
        ),
        (np.ones((1, 5)), ["one example for each of 2 groups", "1 examples"]),
    ],
)
def test_what_has_no_examples_is_refused(data, parts):
    with pytest.raises(ValueError) as caught:
        Group(0, 2).shard(data)
    assert "Argument `dataset`" in str(caught.value)
    for part in parts:
        assert part in str(caught.value)


def test_a_dataset_of_tensorflow_is_sharded():
    import tensorflow as tf

    examples = tf.data.Dataset.range(7)
    parts = [Group(index, 3).shard(examples) for index in range(3)]
    assert [list(part.as_numpy_iterator()) for part in parts] == [
        [0, 3, 6],
        [1, 4],
        [2, 5],
    ]
    # An element of a batched one is made of tensors, and shared as arrays.
    (batch,) = examples.batch(7)
    part = Group(1, 3).shard((batch, {"y": batch.numpy()}))
    assert isinstance(part[0], tf.Tensor)
    assert part[0].numpy().tolist() == part[1]["y"].tolist() == [1, 4]
    with pytest.raises(ValueError, match="shape=\\(\\)"):
        Group(1, 3).shard(tf.constant(1))


def test_nothing_is_imported_for_it():
    program = (
        "import sys\n"
        "from tfdist.cluster import Group\n"
        "assert 'numpy' not in sys.modules\n"
        "group = Group.from_tf_config()\n"
        "import numpy\n"
        "assert group.shard(numpy.arange(4)).tolist() == [1, 3]\n"
        "assert 'tensorflow' not in sys.modules\n"
    )
    waits.run(
        [sys.executable, "-c", program],
        check=True,
        env={**os.environ, **environ({"group": 1, "num_groups": 2}, task={})},
    )
