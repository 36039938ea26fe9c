"""What tasks of one cluster tell each other, in one process."""

import dataclasses
import json

import pytest

from tfdist.cluster import ClusterConfig
from tfdist.cluster import versions

SPEC = {"ps": ["a:1"], "worker": ["b:1", "c:1"], "evaluator": ["d:1"]}
CONFIG = ClusterConfig(spec=SPEC, task_type="worker", task_index=0)


@pytest.mark.parametrize(
    "other, is_same",
    [
        ({"task_type": "evaluator"}, True),
        ({"spec": {**SPEC, "ps": ["e:1"]}}, True),
        ({"initial_workers": 2}, True),
        ({"spec": {**SPEC, "ps": ["a:1", "e:1"]}}, False),
        ({"spec": {**SPEC, "worker": ["b:1", "e:1"]}}, False),
        # They would divide the data into other shares.
        ({"initial_workers": 1}, False),
    ],
    ids=json.dumps,
)
def test_tasks_of_another_cluster_are_told_apart(other, is_same):
    other = dataclasses.replace(CONFIG, **other)
    same = versions._workers(other) == versions._workers(CONFIG)
    assert same == is_same
