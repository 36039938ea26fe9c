"""What tasks of one cluster tell each other, in one process."""

import dataclasses
import json

import pytest
import tensorflow as tf

from tfdist.cluster import ClusterConfig
from tfdist.cluster import ClusterConfigError
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
    same = versions.checksum(other) == versions.checksum(CONFIG)
    assert same == is_same


@pytest.mark.parametrize(
    "other, is_same",
    [
        ({"task_type": "ps"}, True),
        ({"spec": {**SPEC, "worker": ["b:1", "e:1"]}}, False),
        ({"spec": {**SPEC, "evaluator": []}}, False),
        ({"initial_workers": 1}, False),
    ],
    ids=json.dumps,
)
def test_a_task_of_another_cluster_is_known_by_what_it_tells(other, is_same):
    other = dataclasses.replace(CONFIG, **other)
    told = versions.parse(json.dumps(versions.told_of(other)).encode())
    assert versions.is_of_another_cluster(told, CONFIG) != is_same
    # One with an older version tells less.
    assert not versions.is_of_another_cluster({"tfdist": "0.0.9"}, CONFIG)


def test_without_servers_an_evaluator_may_list_itself_alone():
    few = {"worker": SPEC["worker"]}
    workers, evaluator = (
        ClusterConfig(spec=spec, task_type="worker", task_index=0)
        for spec in (few, {**few, "evaluator": ["d:1"]})
    )
    told = versions.told_of(evaluator)
    assert not versions.is_of_another_cluster(told, workers)


def test_a_server_that_knows_of_no_evaluator_is_not_of_another_version(
    monkeypatch,
):
    """The table of members would not fit, whatever the versions."""
    here = "/job:localhost/replica:0/task:0/device:CPU:0"
    monkeypatch.setattr(versions, "_device", lambda job, task: here)
    few = {job: tasks for job, tasks in SPEC.items() if job != "evaluator"}
    config = dataclasses.replace(CONFIG, spec=few, task_type="ps")
    versions.leave(config)
    monkeypatch.setattr(versions, "leave", lambda config: None)
    with tf.device(here):
        versions.compare(config)
    with pytest.raises(
        ClusterConfigError,
        match="knows of /job:evaluator/task:0, and .* a:1 of no evaluator",
    ):
        versions.compare(CONFIG)
