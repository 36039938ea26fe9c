"""The construction of a strategy: checks, connections, names, seeds."""

import dataclasses
import functools
import os
import sys
import threading
import warnings

from absl import logging
import keras
import tensorflow as tf

from tfdist import checks
from tfdist import nonfinite_log
from tfdist.cluster import config as config_lib
from tfdist.cluster import connection
from tfdist.cluster import helper_server
from tfdist.cluster import peers
from tfdist.cluster import preemption
from tfdist.cluster import registration
from tfdist.cluster import server
from tfdist.cluster import server_discovery
from tfdist.cluster import termination
from tfdist.cluster import tf_config
from tfdist.data_shares import strategy_order
from tfdist.runtime import compose
from tfdist.runtime.keras_hooks import chief_decisions
from tfdist.runtime.keras_hooks import outside_scope
from tfdist.runtime.keras_hooks import preemption_exit
from tfdist.runtime.variables import table
from tfdist.strategies import fault_tolerance

# Names that `namespace` has returned.
_namespaces = []
_lock = threading.Lock()
# The launcher's flag that leaves a job out.
_LAUNCHED_WITHOUT = {"ps": "--num_ps=0", "evaluator": "--noevaluator"}


def check_arguments(variable_partitioner, nonfinite, decisions):
    """Refuses malformed arguments of `ParameterServerStrategy`.

    Raises:
      TypeError: One is of a wrong type.
      ValueError: One is not allowed; the message says what is.
    """
    if variable_partitioner is not None and not callable(variable_partitioner):
        raise TypeError(
            "Argument `variable_partitioner` must be callable with shape and "
            f"dtype. Received: variable_partitioner={variable_partitioner!r}"
        )
    for name, value, choices in (
        ("nonfinite", nonfinite, nonfinite_log.CHOICES),
        ("decisions", decisions, chief_decisions.CHOICES),
    ):
        if value not in choices:
            raise ValueError(
                f"Argument `{name}` must be one of {', '.join(choices)}. "
                f"Received: {name}={value!r}"
            )


def check_without_servers(config, partitioner):
    """Refuses what cannot be done without servers.

    Args:
      config: The `ClusterConfig`.
      partitioner: The strategy's `variable_partitioner`, or None.

    Raises:
      ClusterConfigError: The cluster has other tasks than workers.
      ValueError: Variables are to be split over servers.
    """
    for job in ("ps", "evaluator"):
        if job in config.spec:
            raise tf_config.ClusterConfigError(
                "A strategy without servers is for workers alone: TF_CONFIG"
                f'["cluster"] must have no job "{job}" (`tfdist launch '
                f"{_LAUNCHED_WITHOUT[job]}`). Received: jobs "
                f"{list(config.spec)}."
            )
    if partitioner is not None:
        raise ValueError(
            "Argument `variable_partitioner` must be None with "
            'communication="ring", which has no servers to split variables '
            f"over. Received: variable_partitioner={partitioner!r}"
        )


def check_helpers(config, method, from_bytes):
    """Refuses helpers where they have not been tried.

    Args:
      config: The `ClusterConfig`.
      method: A `Method`.
      from_bytes: The argument `table_bytes`.

    Raises:
      ClusterConfigError: There are helpers, and the method is another than
        `Async()` with a replica of each variable.
    """
    is_tried = _is_plain(method) and from_bytes is None
    if "helper" in config.spec and not is_tried:
        raise tf_config.ClusterConfigError(
            'TF_CONFIG["cluster"] must have no job "helper" but with Async(), '
            "no correction, no local_steps and no table_bytes. Received: "
            f"{len(config.spec['helper'])} helpers with {method.name} and "
            f"table_bytes={from_bytes!r}"
        )


def tables(method, from_bytes, rule):
    """Returns what a strategy's arguments say about tables.

    Args:
      method: A `Method`.
      from_bytes: The argument `table_bytes`.
      rule: The argument `table_rule`.

    Returns:
      `TableSettings`.

    Raises:
      ValueError: They are malformed, or the method has no tables.
    """
    if rule not in table.RULES:
        raise ValueError(
            f"Argument `table_rule` must be one of {', '.join(table.RULES)}. "
            f"Received: table_rule={rule!r}"
        )
    if from_bytes is None:
        return table.NO_TABLES
    if not checks.is_count(from_bytes, 1):
        raise ValueError(
            "Argument `table_bytes` must be a positive number of bytes or "
            f"None. Received: table_bytes={from_bytes!r}"
        )
    if not _has_tables(method):
        raise ValueError(
            "Argument `table_bytes` must be None but with Async() or Sync() "
            "without backup workers, no correction and no local_steps: other "
            "methods need a replica of each variable. Received: "
            f"table_bytes={from_bytes!r} with {method.name}"
        )
    if rule == "dense" and method.waits:
        raise ValueError(
            'Argument `table_rule` must be "lazy" with Sync(): an update of '
            "all rows for the gradient of each worker would let them decay as "
            "many times in a step. Received: "
            f"table_rule={rule!r} with {method.name}"
        )
    return table.TableSettings(int(from_bytes), rule)


def _has_tables(method):
    """Whether rows of tables can be updated by each worker's gradient."""
    return _is_plain(method) or (
        method.needs_servers
        and method.synchronization.takes_all
        and method.correction is None
        and method.local_steps is None
    )


def _is_plain(method):
    """Whether each gradient is applied when it arrives, as it is."""
    return (
        not method.needs_order
        and method.correction is None
        and method.local_steps is None
    )


def portions(method, decisions, work, portions_per_worker):
    """Returns what a strategy's arguments say about portions of the data.

    Args:
      method: A `Method`.
      decisions: The argument `decisions`.
      work: The argument `work`.
      portions_per_worker: The argument of that name.

    Returns:
      Portions of an epoch for each worker, int; None for fixed shares.

    Raises:
      ValueError: They are malformed, or the method has no portions.
    """
    checks.one_of("work", work, ("shares", "queue"))
    portions_per_worker = checks.count(
        "portions_per_worker", portions_per_worker
    )
    if work == "shares":
        return None
    reason = None
    if not method.needs_servers:
        reason = (
            f'communication="{method.communication}", which has no server for '
            "the queue"
        )
    elif method.waits:
        reason = f"{method.name}, where workers wait for each other"
    elif method.local_steps is not None:
        reason = (
            f"local_steps={method.local_steps!r}, of which a worker that dies "
            "takes some with it"
        )
    elif decisions != "chief":
        reason = f"decisions={decisions!r}, where calls of `fit` differ"
    if reason is not None:
        raise ValueError(
            'Argument `work` must be "shares" but with Async() or SoftSync(), '
            'servers, no local_steps and decisions="chief". Received: '
            f'work="queue" with {reason}'
        )
    return portions_per_worker


def resolve(method, config):
    """The method with all settings known for a cluster.

    Args:
      method: A `Method`.
      config: The `ClusterConfig`.

    Returns:
      A `Method`; one worker alone has nobody to make a ring with.

    Raises:
      ValueError: The settings do not fit together.
    """
    if config.is_local:
        resolved = method.alone()
    else:
        resolved = method.resolve(config.num_workers, config.initial_workers)
    if config.num_workers > 1:
        return resolved
    return dataclasses.replace(resolved, communication="parameter_server")


def cluster(resolver, needs_servers):
    """The cluster as `TF_CONFIG` or a resolver describes it.

    Args:
      resolver: A `tf.distribute.cluster_resolver.ClusterResolver`, or None.
      needs_servers: Whether it must have any.

    Returns:
      A `ClusterConfig`, and a callable that gives it as it is later, or None.
    """
    if resolver is None:
        return config_lib.ClusterConfig.from_tf_config(
            needs_servers=needs_servers
        ), None
    look_up = functools.partial(
        config_lib.ClusterConfig.from_resolver,
        resolver,
        needs_servers=needs_servers,
    )
    return look_up(), look_up


def resolver_of(resolver):
    """Returns `strategy.cluster_resolver`, as of TensorFlow's strategies.

    Args:
      resolver: The argument `cluster_resolver`, or None.

    Returns:
      The argument; else one that reads `TF_CONFIG`: in one process, of no
      cluster.
    """
    if resolver is not None:
        return resolver
    return tf.distribute.cluster_resolver.TFConfigClusterResolver()


def serve_if_server(config, look_up, tolerance, writes_on_command=False):
    """Serves, and ends the process, on a task that is there for workers.

    Args:
      config: The `ClusterConfig`.
      look_up: See `cluster`.
      tolerance: A `FaultTolerance`.
      writes_on_command: See `tfdist.cluster.server.serve`.
    """
    if config.is_ps:
        snapshot_dir, snapshot_every = fault_tolerance.snapshots_of(
            tolerance, os.environ
        )
        sys.exit(
            server.serve(
                config,
                start_timeout=tolerance.start_timeout,
                snapshot_dir=snapshot_dir,
                snapshot_every=snapshot_every,
                writes_on_command=writes_on_command,
            )
        )
    if config.is_helper:
        timeout = tolerance.start_timeout
        sys.exit(helper_server.serve(config, timeout, look_up))


def connect(config, look_up, needs_servers, tolerance):
    """Connects a worker or an evaluator to the others.

    Args:
      config: The `ClusterConfig`.
      look_up: See `cluster`.
      needs_servers: Whether parameters are on servers; else workers exchange
        between themselves.
      tolerance: A `FaultTolerance`.

    Returns:
      `Connections`, with the `ClusterConfig` as it is when servers answer.

    Raises:
      TimeoutError: The servers could not be reached in time.
    """
    if config.num_ps:
        preemption.install(
            exits=tolerance.on_preemption == "exit",
            stop=preemption_exit.stop_loops,
        )
    others = membership = None
    if not needs_servers:
        others = peers.join(
            config, tolerance.start_timeout, tolerance.worker_timeout
        )
    if look_up is not None and config.num_ps:
        # A server may move while it is waited for.
        servers = server_discovery.ServerDiscovery(config, look_up)
        servers.wait(tolerance.start_timeout)
        config = servers.config
    worker_device, devices = connection.connect(config, tolerance.start_timeout)
    if config.num_ps:
        membership = registration.join(config, devices, tolerance.start_timeout)
    if config.num_workers > 1:
        # Keras expects the steps of the whole data set, and calls the end of
        # this worker's share a lack of data.
        warnings.filterwarnings("ignore", "Your input ran out of data")
    return compose.Connections(
        config, look_up, worker_device, devices, membership, others
    )


def end_local_steps(reference):
    """At the end of the process: no step of this worker is lost.

    Args:
      reference: Weak reference to the `Local`.
    """
    steps = reference()
    if steps is None or termination.script_has_failed():
        return
    try:
        steps.finish()
    except (tf.errors.OpError, TimeoutError) as error:
        if not preemption.received():
            raise
        logging.warning(
            "Has to leave, and its last local steps are lost: %s", error
        )


def namespace(config):
    """Prefix of the names of a new strategy's resources."""
    # Workers that run the same script construct their strategies in the same
    # order, so they agree on the number.
    with _lock:
        _namespaces.append(coming_namespace(config))
        return _namespaces[-1]


def coming_namespace(config):
    """The name that `namespace` returns next, which nothing has yet."""
    kind = "local" if config.is_local else "cluster"
    return f"tfdist/{kind}/{len(_namespaces)}"


def begin_program(config):
    """Takes note of the strategy, and of what was made without it.

    Args:
      config: The `ClusterConfig`.
    """
    strategy_order.note_strategy()
    if not config.is_local and config.is_worker:
        outside_scope.refuse_to_fit()


def described(strategy, *axes):
    """Text of a strategy for `repr`: its method and its cluster.

    Args:
      strategy: The strategy.
      *axes: What it is made of; None for what it lacks.
    """
    config = strategy.cluster
    where = "one process"
    if not config.is_local:
        where = (
            f"{config.task_name} of {config.num_workers} workers and "
            f"{config.num_ps} parameter servers"
        )
    method = ", ".join(repr(axis) for axis in axes if axis is not None)
    return f"<{type(strategy).__name__}: {method}; {where}>"


def checked_seed(seed):
    """Returns the argument `seed` as an int, or None.

    Raises:
      ValueError: NumPy takes no such seed.
    """
    if seed is None:
        return None
    if not checks.is_count(seed, 0) or seed >= 2**32:
        allowed = "an integer of at least 0 and below 2**32, or None"
        raise ValueError(checks.refusal("seed", allowed, seed))
    return int(seed)


def set_seed(config, seed):
    """Seeds all random generators, the same on all workers.

    Args:
      config: The `ClusterConfig`.
      seed: int; None for one of the cluster's own if none has been set.
    """
    if seed is None:
        if (
            config.num_workers == 1
            or tf.compat.v1.get_seed(None)[0] is not None
        ):
            return
        seed = config.fingerprint
        logging.info(
            "Random seed of all workers (TensorFlow, NumPy, Python): %d.", seed
        )
    keras.utils.set_random_seed(seed)
