"""The rule of files on the tasks of a cluster, without the cluster."""

from tfdist.cluster import ClusterConfig
from tfdist.saving import files

_SPEC = {
    "worker": ("a:1", "b:1"),
    "ps": ("c:1",),
    "evaluator": ("d:1",),
}


def files_of(task_type="worker", task_index=1):
    """The `Files` of a task; that of worker 1 is not the chief's."""
    return files.Files(ClusterConfig(_SPEC, task_type, task_index))


def chief():
    """The `Files` of the chief."""
    return files_of("worker", 0)
