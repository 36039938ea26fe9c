"""Versions of each task, left on its server for others to compare with.

Tasks of one cluster build graphs for each other: an operation or a state that
one version has and another has not fails late, or computes something else.
"""

import json
import platform
import zlib

from absl import logging
import keras
import tensorflow as tf

from tfdist.cluster import member_table
from tfdist.cluster import refusal
from tfdist.cluster import sessions
from tfdist.version import __version__

_NAME = "tfdist/versions"
# What has to be the same everywhere, of what is told.
COMPARED = ("tfdist", "tensorflow", "keras")


def own():
    """Returns the versions of this process: a dict of name to version."""
    return {
        "tfdist": __version__,
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "python": platform.python_version(),
    }


def leave(config):
    """Leaves this process's versions on its own server.

    Args:
      config: Its `ClusterConfig`.
    """
    text = json.dumps({**own(), **told_of(config)})

    @tf.function(autograph=False)
    def write():
        with tf.device(_device(config.task_type, config.task_index)):
            tf.raw_ops.AssignVariableOp(
                resource=_handle(), value=tf.constant(text)
            )

    write()


def told_of(config):
    """Facts of its cluster that a task tells, beside its versions.

    Args:
      config: The task's `ClusterConfig`.

    Returns:
      A dict.
    """
    return {
        "cluster": config.fingerprint,
        "workers": checksum(config),
        "members": list(member_table.names_of(config)),
    }


def checksum(config):
    """A checksum of what a server has to know of its cluster.

    Args:
      config: The `ClusterConfig` of any of its tasks.
    """
    parts = [config.fingerprint]
    if config.initial_workers < config.num_workers:
        # Data is divided by it.
        parts.append(config.initial_workers)
    text = json.dumps(parts)
    return zlib.crc32(text.encode())


def build_read():
    """Builds the text that was left, a string, in the scope's device."""
    return tf.raw_ops.ReadVariableOp(resource=_handle(), dtype=tf.string)


def told_by(address, task, timeout):
    """Reads what a parameter server has left, in any thread.

    Args:
      address: Its `host:port`.
      task: Its number.
      timeout: Seconds for its answer.

    Returns:
      A dict from `parse`, or None where it does not say, or not yet.
    """
    deadline = sessions.Deadline(timeout)
    with tf.Graph().as_default() as graph, tf.device(_device("ps", task)):
        text = build_read()
    try:
        session = sessions.open_session(address, "ps", task, graph, deadline)
        try:
            return parse(sessions.run(session, text, deadline))
        finally:
            session.close()
    except (tf.errors.OpError, OSError):
        return None


def parse(text):
    """Parses the text of `leave`, a dict; empty where it is malformed.

    Args:
      text: Bytes.
    """
    try:
        told = json.loads(text)
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}


def is_of_another_cluster(told, config):
    """Whether `compare` would refuse a task, were it a server.

    Args:
      told: Dict from `parse`.
      config: The `ClusterConfig` that the task should have, but for its place.
    """
    here = told_of(config)
    if not config.num_ps:
        # Nobody waits for an evaluator, which may be the only one to list it.
        del here["members"]
    return any(told.get(name, value) != value for name, value in here.items())


def differences(told, names=COMPARED):
    """Returns the versions in which another task differs.

    Args:
      told: Dict from `parse`.
      names: Which versions to compare.

    Returns:
      A list of sentences' parts, such as "tensorflow 2.20.0 (here 2.21.0)".
    """
    here = own()
    return [
        f"{name} {told.get(name, 'of an unknown version')} (here {here[name]})"
        for name in names
        if told.get(name) != here[name]
    ]


def compare(config):
    """Compares what the servers run with what this worker does.

    Warns of other versions.

    Call it when the servers are ready.

    Args:
      config: The `ClusterConfig` of a connected worker or evaluator.

    Raises:
      ClusterConfigError: A server is one of another cluster: started by
        mistake on the same ports, or with another list of workers.
    """
    leave(config)
    here = _device(config.task_type, config.task_index)

    @tf.function(autograph=False)
    def read():
        texts = []
        for task in range(config.num_ps):
            with tf.device(_device("ps", task)):
                texts.append(build_read())
        # Copied to the caller: no eager tensor may live on a server.
        with tf.device(here):
            return tf.stack(texts)

    try:
        texts = read().numpy()
    except (tf.errors.FailedPreconditionError, tf.errors.NotFoundError):
        logging.warning(
            "A parameter server does not say which versions it runs: it has "
            "an older tfdist than this worker's %s.",
            __version__,
        )
        return
    except tf.errors.OpError:
        return  # A server went away; who needs it says so.
    for name, address, text in zip(
        config.ps_names, config.ps_addresses, texts, strict=True
    ):
        told, own_cluster = parse(text), told_of(config)
        workers = own_cluster["workers"]
        if told.get("workers", workers) != workers:
            raise refusal.ClusterConfigError(
                f"Parameter server {name} at {address} is one of another "
                "cluster, with other workers, another number of servers or "
                f"another `initial_workers` than those of {config.task_name}. "
                "Is an earlier run still there, on the same ports? All tasks "
                'need the same TF_CONFIG but for "task".'
            )
        members = own_cluster["members"]
        if told.get("members", members) != members:
            raise refusal.ClusterConfigError(
                'TF_CONFIG["cluster"]["evaluator"] must be the same in all '
                f"tasks. Received: {config.task_name} knows of "
                f"{_evaluators(members)}, and parameter server {name} at "
                f"{address} of {_evaluators(told['members'])}."
            )
        different = differences(told)
        if different:
            logging.warning(
                "Parameter server %s runs %s: tasks of one cluster should run "
                "the same versions, or steps may fail or compute something "
                "else.",
                name,
                ", ".join(different),
            )


def _evaluators(members):
    names = [name for name in members if name.startswith("/job:evaluator")]
    return ", ".join(names) or "no evaluator"


def _device(job, task):
    return f"/job:{job}/replica:0/task:{task}/device:CPU:0"


def _handle():
    return tf.raw_ops.VarHandleOp(dtype=tf.string, shape=[], shared_name=_NAME)
