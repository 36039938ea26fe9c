"""Every malformed TF_CONFIG is refused by the key that is wrong."""

import json

import pytest

from tfdist.cluster import ClusterConfig
from tfdist.cluster import ClusterConfigError

W2P1 = {"worker": ["a:1", "b:1"], "ps": ["c:1"]}
W0 = {"type": "worker", "index": 0}

# name -> (TF_CONFIG as text or object, parts that the message must contain)
MALFORMED = {
    "not_json": ("{cluster: 1}", ["TF_CONFIG", "not JSON", "{cluster: 1}"]),
    "deep_json": ("[" * 100_000, ["TF_CONFIG", "not JSON"]),
    "huge_number": (
        '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", '
        '"index": %s}}' % ("9" * 5000),
        ["TF_CONFIG"],
    ),
    "list": ("[1]", ["TF_CONFIG must be a JSON object", "[1]", "list"]),
    "twice": ('{"task": {}, "task": {}}', ["'task' twice", "each key once"]),
    "cluster_list": (
        {"cluster": ["a:1"], "task": W0},
        ['TF_CONFIG["cluster"] must be an object', "['a:1']"],
    ),
    "misspelt_cluster": (
        {"clusters": W2P1, "task": W0},
        ['TF_CONFIG["clusters"]', 'misspelt "cluster"'],
    ),
    "job_unknown": (
        {"cluster": {"worker": ["a:1"], "gpu": ["b:1"]}, "task": W0},
        ['TF_CONFIG["cluster"]', "'gpu'", "chief, worker, ps, evaluator"],
    ),
    "job_string": (
        {"cluster": {"worker": "a:1"}, "task": W0},
        ['TF_CONFIG["cluster"]["worker"] must be a list', "'a:1'"],
    ),
    "sparse_key": (
        {"cluster": {"worker": {"x": "a:1"}}, "task": W0},
        ['TF_CONFIG["cluster"]["worker"]', "'x'", "task indices"],
    ),
    "sparse_gap": (
        {"cluster": {"worker": {"0": "a:1", "2": "b:1"}}, "task": W0},
        ['TF_CONFIG["cluster"]["worker"]', "0 to 1", "'2'"],
    ),
    "sparse_same_index": (
        {"cluster": {"worker": {"0": "a:1", "00": "b:1"}}, "task": W0},
        ['TF_CONFIG["cluster"]["worker"]', "each once", "'00'"],
    ),
    "address_number": (
        {"cluster": {"worker": [2222]}, "task": W0},
        ['TF_CONFIG["cluster"]["worker"][0]', "host:port", "2222", "int"],
    ),
    "address_without_port": (
        {"cluster": {"worker": ["a:1"], "ps": ["server"]}, "task": W0},
        ['TF_CONFIG["cluster"]["ps"][0]', "host:port", "'server'"],
    ),
    "address_scheme": (
        {"cluster": {"worker": ["grpc://a:1"]}, "task": W0},
        ['["worker"][0]', "without a scheme", "'grpc://a:1'"],
    ),
    "address_space": (
        {"cluster": {"worker": ["a b:1"]}, "task": W0},
        ['["worker"][0]', "host is malformed", "'a b:1'"],
    ),
    "address_ipv6_wrong": (
        {"cluster": {"worker": ["[::g]:2222"]}, "task": W0},
        ['["worker"][0]', "IPv6", "'[::g]:2222'"],
    ),
    "port_zero": (
        {"cluster": {"worker": ["a:0"]}, "task": W0},
        ['["worker"][0]', "1 to 65535", "'a:0'"],
    ),
    "port_word": (
        {"cluster": {"worker": ["a:grpc"]}, "task": W0},
        ['["worker"][0]', "1 to 65535", "'a:grpc'"],
    ),
    "address_twice_in_job": (
        {"cluster": {"worker": ["a:1", "a:1"], "ps": ["c:1"]}, "task": W0},
        ['["worker"][1]', 'TF_CONFIG["cluster"]["worker"][0]', "'a:1'"],
    ),
    "address_twice_in_jobs": (
        {"cluster": {"worker": ["Host:80"], "ps": ["host:080"]}, "task": W0},
        ['["ps"][0]', 'TF_CONFIG["cluster"]["worker"][0]', "'host:080'"],
    ),
    "two_chiefs": (
        {"cluster": {"chief": ["a:1", "b:1"], "ps": ["c:1"]}, "task": W0},
        ['TF_CONFIG["cluster"]["chief"]', "one address at most", "'b:1'"],
    ),
    "no_worker": (
        {"cluster": {"ps": ["a:1"]}, "task": {"type": "ps", "index": 0}},
        ['TF_CONFIG["cluster"]', "at least one task", "['ps']"],
    ),
    "no_ps": (
        {"cluster": {"worker": ["a:1", "b:1"]}, "task": W0},
        ['TF_CONFIG["cluster"]["ps"]', "more than one worker", "2 workers"],
    ),
    "evaluator_no_ps": (
        {
            "cluster": {"worker": ["a:1"]},
            "task": {"type": "evaluator", "index": 0},
        },
        ['TF_CONFIG["cluster"]', '"ps"', "evaluator", "['worker']"],
    ),
    "helpers_uneven": (
        {"cluster": {**W2P1, "helper": ["d:1", "e:1", "f:1"]}, "task": W0},
        ['TF_CONFIG["cluster"]["helper"]', "as many", "3 helpers", "2 workers"],
    ),
    "helpers_no_ps": (
        {"cluster": {"worker": ["a:1"], "helper": ["d:1"]}, "task": W0},
        ['TF_CONFIG["cluster"]', '"ps"', "helpers", "['worker', 'helper']"],
    ),
    "helpers_and_evaluator": (
        {
            "cluster": {
                **W2P1,
                "helper": ["d:1", "e:1"],
                "evaluator": ["f:1"],
            },
            "task": W0,
        },
        ['no job "evaluator"', "helpers"],
    ),
    "task_list": (
        {"cluster": W2P1, "task": ["worker", 0]},
        ['TF_CONFIG["task"] must be an object', "['worker', 0]"],
    ),
    "type_missing": (
        {"cluster": W2P1, "task": {"index": 0}},
        ['TF_CONFIG["task"]["type"]', "missing", "{'index': 0}"],
    ),
    "type_unknown": (
        {"cluster": W2P1, "task": {"type": "Worker", "index": 0}},
        ['TF_CONFIG["task"]["type"]', "worker, ps, evaluator", "'Worker'"],
    ),
    "type_master": (
        {"cluster": W2P1, "task": {"type": "master", "index": 0}},
        ['TF_CONFIG["task"]["type"]', "'master'", "'chief'"],
    ),
    "type_not_in_cluster": (
        {"cluster": W2P1, "task": {"type": "chief", "index": 0}},
        ['TF_CONFIG["task"]["type"]', "(worker, ps, evaluator)", "'chief'"],
    ),
    "index_missing": (
        {"cluster": W2P1, "task": {"type": "ps"}},
        ['TF_CONFIG["task"]["index"]', "missing", "{'type': 'ps'}"],
    ),
    "index_bool": (
        {"cluster": W2P1, "task": {"type": "worker", "index": True}},
        ['TF_CONFIG["task"]["index"]', "0 to 1", "True (of type bool)"],
    ),
    "index_too_large": (
        {"cluster": W2P1, "task": {"type": "ps", "index": 1}},
        ['TF_CONFIG["task"]["index"]', "0 to 0 for type 'ps'", "1"],
    ),
    "index_other_digits": (
        {"cluster": W2P1, "task": {"type": "worker", "index": "١"}},
        ['TF_CONFIG["task"]["index"]', "0 to 1", "'١'"],
    ),
    "rpc_layer": (
        {"cluster": W2P1, "task": W0, "rpc_layer": "grpc+verbs"},
        ["TF_CONFIG[\"rpc_layer\"] must be 'grpc'", "'grpc+verbs'"],
    ),
    "second_worker_without_cluster": (
        {"task": {"type": "worker", "index": 1}},
        ['TF_CONFIG["cluster"]', 'TF_CONFIG["task"]', "no cluster"],
    ),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_tf_config_is_refused_by_key(name):
    text, parts = MALFORMED[name]
    if not isinstance(text, str):
        text = json.dumps(text)
    with pytest.raises(ClusterConfigError) as caught:
        ClusterConfig.from_tf_config({"TF_CONFIG": text})
    message = str(caught.value)
    for part in parts:
        assert part in message
    assert len(message) < 1000
