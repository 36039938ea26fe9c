"""A worker's connection to the parameter servers."""

import re
import socket

from absl import logging
import tensorflow as tf

from tfdist import private_tensorflow
from tfdist import quiet
from tfdist.cluster import gpus
from tfdist.cluster import helpers
from tfdist.cluster import incarnation
from tfdist.cluster import sessions
from tfdist.cluster import tf_config
from tfdist.cluster import waiting

_RETRIED = (
    tf.errors.UnavailableError,
    tf.errors.DeadlineExceededError,
    tf.errors.AbortedError,
)

# Clusters that this process is connected to.
_connected = set()
# The one that this process's runtime was started for.
_started = []


def connect(config, timeout):
    """Connects this worker to all parameter servers, and to its helpers.

    The worker knows only these and itself, so that workers may come,
    die and come back without the others noticing.

    Args:
      config: The `ClusterConfig` of a worker or an evaluator.
      timeout: Seconds to wait for servers that are not up yet, and then for
        them to answer.

    Returns:
      A tuple: the name of this process's CPU device, and the list of the
      servers' devices, in order. Without servers both are this process.

    Raises:
      ClusterConfigError: The cluster gives this task no address.
      TimeoutError: A server or helper could not be reached; the message names
        it.
    """
    if not config.num_ps:
        device = tf.config.list_logical_devices("CPU")[0].name
        return device, [device]
    worker = f"/job:{config.task_type}/replica:0/task:{config.task_index}"
    devices = (
        f"{worker}/device:CPU:0",
        [
            f"/job:ps/replica:0/task:{k}/device:CPU:0"
            for k in range(config.num_ps)
        ],
    )
    if config.address is None:
        raise tf_config.ClusterConfigError(
            f'TF_CONFIG["cluster"] must list {config.task_type!r}: the '
            f"servers reach {config.task_name} at its address. Received: jobs "
            f"{sorted(config.spec)}"
        )
    if config in _connected:
        # Reconnecting would take what this process has on the servers
        # from under the strategies that it made before.
        return devices
    addresses = dict(zip(config.ps_names, config.ps_addresses, strict=True))
    wait_for_listeners("parameter server", addresses, timeout)
    wait_for_listeners("helper", helpers.addresses(config), timeout)
    helpers.wait(config, timeout)
    _wait_for_servers(config, timeout)
    gpus.warn_of_helpers(config)
    helpers.keep_in_use(config)
    _connected.add(config)
    return devices


def reconnect(config):
    """Connects this process to the servers, or to those that are new.

    Their addresses may be others than before. TensorFlow asks each server
    that it knew whether it is still in the same life; those that are not lose
    what this process had there, and are new.

    Args:
      config: The `ClusterConfig` of a worker or an evaluator.

    Raises:
      tf.errors.OpError: A server is not there.
    """
    if not _started:
        # A first connection to others that fails half-way leaves TensorFlow's
        # server behind, and no second one gets its port. Alone it does not.
        start_alone(config)
        _started.append(config)
    private_tensorflow.move_servers(config.ps_addresses, config.helpers)


def renew(config):
    """Reconnects this process, to the same lives of the servers.

    They forget the functions that it has called. What has a name there stays.

    Args:
      config: The `ClusterConfig` of a worker or an evaluator.

    Raises:
      tf.errors.OpError: A server is not there.
    """
    private_tensorflow.leave_servers()
    reconnect(config)


def absent(config):
    """Names of the servers that do not answer just now, a list.

    Args:
      config: The `ClusterConfig`.
    """
    lives = incarnation.read_all(config)
    return [
        name
        for name, life in zip(config.ps_names, lives, strict=True)
        if life is None
    ]


def start_alone(config):
    """Starts this process's server, which knows of no other task.

    Args:
      config: The `ClusterConfig`.

    Raises:
      OSError: It does not start.
    """
    spec = {config.task_type: {config.task_index: config.address}}
    with quiet.quietly():  # It logs its session configuration.
        tf.config.experimental_connect_to_cluster(
            tf.train.ClusterSpec(spec),
            job_name=config.task_type,
            task_index=config.task_index,
        )
    start_runtime(config)


def start_runtime(config):
    """Starts this process's server and makes its connections.

    `experimental_connect_to_cluster` only notes what is wanted.

    Args:
      config: The `ClusterConfig`.

    Raises:
      OSError: This process's own server does not start.
    """
    try:
        tf.config.list_logical_devices("CPU")
    except tf.errors.UnknownError as error:
        if "gRPC server" not in error.message:
            raise
        raise OSError(
            f"{config.task_name} cannot serve on its address in TF_CONFIG, "
            f"{config.address} ({error.message}). Is the port in use?"
        ) from error


def warn_of_port(config):
    """Logs that anybody who reaches this process's server may use it."""
    logging.warning(
        "%s serves on port %s of every network interface, without "
        "authentication or encryption: keep it in a private network.",
        config.task_name,
        config.address.rsplit(":", 1)[1],
    )


def another_cluster(config, other):
    """The error of a process that is already a task of another cluster.

    Args:
      config: The `ClusterConfig` that is refused.
      other: The one that this process has to stay with.
    """
    return tf_config.ClusterConfigError(
        f"This process must stay {other.task_name} of a cluster of "
        f"{other.num_workers} workers, and cannot take part in another one. "
        f"Received: {config.task_name} of {config.num_workers}"
    )


def wait_for_listeners(kind, addresses, timeout, is_enough=lambda there: False):
    """Waits until every port is open.

    Args:
      kind: What listens, for the message.
      addresses: Dict of task name to `host:port`.
      timeout: Seconds.
      is_enough: Called with the names of those whose ports are open: whether
        the others need not be waited for.

    Raises:
      TimeoutError: One is not; the message names it.
    """
    missing = {name: f"{kind} {name} at {a}" for name, a in addresses.items()}

    def all_listen():
        for name in list(missing):
            try:
                sessions.try_port(addresses[name], 2.0)
                del missing[name]
            except socket.gaierror as error:
                missing[name] = (
                    f"{kind} {name} at {addresses[name]} (this host name does "
                    f"not resolve: {error.strerror})"
                )
            except OSError:
                pass
        return not missing or is_enough(addresses.keys() - missing)

    waiting.wait_until(
        all_listen,
        what=lambda: ", ".join(missing.values()),
        timeout=timeout,
        hint="Is it running, and is its address in TF_CONFIG right?",
    )


def _wait_for_servers(config, timeout):
    """Connects to the servers, whose ports are open."""
    silent = config.ps_names
    reason = ""

    def attempt():
        nonlocal silent, reason
        # Reconnecting after a connection that came about in part was seen
        # to crash.
        if not_there := absent(config):
            silent, reason = not_there, "it does not say which life it is in"
            return False
        try:
            reconnect(config)
        except _RETRIED as error:
            reason = error.message.split("\n", 1)[0]
            tasks = re.findall(r"/job:ps/replica:0/task:(\d+)", error.message)
            named = [f"/job:ps/task:{task}" for task in dict.fromkeys(tasks)]
            silent = named or config.ps_names
            return False
        return True

    addresses = dict(zip(config.ps_names, config.ps_addresses, strict=True))

    def described():
        servers = ", ".join(f"{name} at {addresses[name]}" for name in silent)
        return f"parameter server {servers} to answer ({reason})"

    waiting.wait_until(
        attempt,
        what=described,
        timeout=timeout,
        hint="Is that which listens there a parameter server of this cluster?",
    )
