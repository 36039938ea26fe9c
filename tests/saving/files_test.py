"""Who writes what a program saves."""

import pytest

from tests.saving import clusters
from tfdist.cluster import ClusterConfig
from tfdist.saving import files


def test_who_is_alone_saves_as_in_plain_keras():
    assert not files.of(ClusterConfig.local()).is_shared
    spec = {"worker": ("a:1",), "ps": ("b:1",)}
    assert not files.of(ClusterConfig(spec, "worker", 0)).is_shared
    # An evaluator runs the program as well, listed everywhere or not.
    listed = {**spec, "evaluator": ("c:1",)}
    assert files.of(ClusterConfig(listed, "worker", 0)).writes
    assert not files.of(ClusterConfig(spec, "evaluator", 0)).writes


@pytest.mark.parametrize(
    "task, writes, writes_logs",
    [
        (("worker", 0), True, True),
        (("worker", 1), False, False),
        (("evaluator", 0), False, True),
    ],
)
def test_the_chief_writes_and_an_evaluator_its_logs(task, writes, writes_logs):
    made = clusters.files_of(*task)
    assert (made.writes, made.writes_logs) == (writes, writes_logs)
    with made.own(), made.own():
        assert made.writes and made.writes_logs
    assert (made.writes, made.writes_logs) == (writes, writes_logs)


def test_tasks_write_drafts_of_different_names():
    spec = {"worker": ("a:2", "b:1"), "ps": ("c:1",)}
    names = {
        clusters.files_of("worker", 0).task_id,
        clusters.files_of("worker", 1).task_id,
        files.Files(ClusterConfig(spec, "worker", 0)).task_id,
    }
    assert len(names) == 3
