"""What the construction of a strategy takes: checks, names, seeds."""

import itertools
import os
import sys

from absl import logging
import keras
import tensorflow as tf

from tfdist.averaging import LocalSteps
from tfdist.averaging import ParameterAveraging
from tfdist.cluster import members
from tfdist.cluster import preemption
from tfdist.correction import Correction
from tfdist.runtime.all_reduce import ring
from tfdist.runtime.all_reduce import ring_local
from tfdist.runtime.exchange import nonfinite
from tfdist.runtime.keras_hooks import following
from tfdist.runtime.local_steps import local
from tfdist.synchronization import Async
from tfdist.synchronization import Synchronization

_ON_PREEMPTION = ("exit", "note")
ON_STALL = ("drop", "fail", "wait")

_strategies = itertools.count()


def check_arguments(
    worker_timeout,
    start_timeout,
    variable_partitioner,
    communication,
    choice,
    on_preemption,
):
    """Refuses malformed arguments of `ParameterServerStrategy`.

    Raises:
      TypeError: One is of a wrong type.
      ValueError: One is not allowed; the message says what is.
    """
    if not worker_timeout > 2 * members.HEARTBEAT_SECONDS:
        raise ValueError(
            "worker_timeout must be more than two heartbeats, "
            f"{2 * members.HEARTBEAT_SECONDS:g} seconds, came: "
            f"{worker_timeout!r}."
        )
    if not start_timeout > 0:
        raise ValueError(
            f"start_timeout must be positive, came: {start_timeout!r}."
        )
    if variable_partitioner is not None and not callable(variable_partitioner):
        raise TypeError(
            "variable_partitioner must be callable with shape and dtype, "
            f"came: {variable_partitioner!r}."
        )
    if communication not in ring.CHOICES:
        raise ValueError(
            'communication must be "parameter_server" or "ring", came: '
            f"{communication!r}."
        )
    nonfinite.check_argument(choice)
    if on_preemption not in _ON_PREEMPTION:
        raise ValueError(
            f'on_preemption must be "exit" or "note", came: {on_preemption!r}.'
        )


def check_decisions(decisions):
    """Refuses a malformed argument of `ParameterServerStrategy`.

    Raises:
      ValueError: It is not allowed; the message says what is.
    """
    if decisions not in following.CHOICES:
        raise ValueError(
            "Argument `decisions` must be one of "
            f"{', '.join(following.CHOICES)}. Received: "
            f"decisions={decisions!r}"
        )


def check_recovery(
    server_timeout, stall_timeout, on_stall, snapshot_dir, snapshot_every
):
    """Refuses malformed arguments of `ParameterServerStrategy`.

    Raises:
      ValueError: One is not allowed; the message says what is.
    """
    for name, value in (
        ("server_timeout", server_timeout),
        ("stall_timeout", stall_timeout),
        ("snapshot_every", snapshot_every),
    ):
        if not value > 0:
            raise ValueError(f"{name} must be positive, came: {value!r}.")
    if on_stall not in ON_STALL:
        raise ValueError(
            f"on_stall must be one of {', '.join(ON_STALL)}, came: "
            f"{on_stall!r}."
        )
    if snapshot_dir is not None and not isinstance(
        snapshot_dir, str | os.PathLike
    ):
        raise TypeError(
            f"snapshot_dir must be a path or None, came: {snapshot_dir!r}."
        )


def check_method(synchronization, correction):
    """The `Synchronization` that was asked for, `Async` by default.

    Raises:
      TypeError: One of the two is none of tfdist's.
    """
    if synchronization is None:
        synchronization = Async()
    if not isinstance(synchronization, Synchronization):
        raise TypeError(
            "synchronization must be one of tfdist.synchronization (Async, "
            "Sync, SoftSync, BoundedStaleness), came: "
            f"{synchronization!r}."
        )
    if correction is not None and not isinstance(correction, Correction):
        raise TypeError(
            "correction must be one of tfdist.correction (DANA, "
            "DelayCompensation, FASGD, GapAware, InverseStaleness), came: "
            f"{correction!r}."
        )
    return synchronization


def check_local_steps(local_steps):
    """The `LocalSteps` that were asked for, or None.

    Raises:
      TypeError: They are neither that nor a number.
      ValueError: The number is not positive.
    """
    if local_steps is None or isinstance(local_steps, LocalSteps):
        return local_steps
    if isinstance(local_steps, int):
        return ParameterAveraging(local_steps)
    raise TypeError(
        "local_steps must be a number of steps or one of tfdist.averaging "
        "(AccruedGradients, ElasticAveraging, ParameterAveraging), came: "
        f"{local_steps!r}."
    )


def make_local(store, method, synchronization, *, num_workers, others, timeout):
    """What makes a worker take local steps.

    Args:
      store: The `ParameterStore`.
      method: The `LocalSteps`, resolved.
      synchronization: The `Synchronization`, resolved.
      num_workers: Number of workers.
      others: The `Peers` where there are no servers, else None.
      timeout: Seconds to wait for workers that have not begun.

    Returns:
      A `Local`.
    """
    settings = {"num_workers": num_workers, "worker_id": store.worker_id}
    if others is None:
        return local.Local(store, method, synchronization, **settings)
    joined = ring.Ring(others, store, method, timeout=timeout)
    return ring_local.RingLocal(
        store, method, synchronization, ring=joined, **settings
    )


def end_local_steps(reference):
    """At the end of the process: no step of this worker is lost.

    Args:
      reference: Weak reference to the `Local`.
    """
    steps = reference()
    raised = getattr(sys, "last_type", None) or getattr(sys, "last_exc", None)
    if steps is None or raised:
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
    number = next(_strategies)
    return f"tfdist/{'local' if config.is_local else 'cluster'}/{number}"


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
        logging.info("Random seed of all workers: %d.", seed)
    keras.utils.set_random_seed(seed)
