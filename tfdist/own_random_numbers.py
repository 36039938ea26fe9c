"""Each worker draws random numbers of its own, from a seed that all have."""

import contextlib

import numpy as np
import tensorflow as tf

from tfdist import variable_names

_SEED_STRIDE = 1_000_003
_MAX_SEED = 2**31 - 1


@contextlib.contextmanager
def of(config):
    """Scope of a step, in which `tf.random` draws numbers of a worker's own.

    Workers have the same global seed, and would draw the same ones. Eager
    operations still do: TensorFlow has one state for all of a process.

    Args:
      config: The `ClusterConfig`; the first worker draws what plain Keras
        would.

    Yields:
      The seed that all workers have, for `seeded`, or None.
    """
    graph = tf.compat.v1.get_default_graph()
    common = None if tf.executing_eagerly() else graph.seed
    if common is None:
        yield None
        return
    # An evaluator has no number.
    worker = config.worker_id if config.is_worker else 0
    with seeded(_seed_of(worker, common) if worker else common):
        yield common


@contextlib.contextmanager
def seeded(seed):
    """Scope in which `tf.random` draws from a seed of the graph.

    Args:
      seed: That of `of`, to draw what all other workers draw;
        None changes nothing.
    """
    if seed is None:
        yield
        return
    graph = tf.compat.v1.get_default_graph()
    before, graph.seed = graph.seed, seed
    try:
        yield
    finally:
        graph.seed = before


def spread_seed(state, worker):
    """Gives each worker a random stream of its own, the first Keras's.

    Workers are seeded alike; drawing the same dropout masks at the same step
    would waste what several workers are for.

    Args:
      state: Array, the state of a `SeedGenerator`.
      worker: Number of the worker.

    Returns:
      The worker's, a list of ints.
    """
    seed, *rest = state.tolist()
    return [_seed_of(worker, seed), *rest]


def spread_seeds(variables, values, worker):
    """Gives a worker random streams of its own, among values of variables.

    Args:
      variables: List of `keras.Variable`.
      values: Their values, a list of arrays or eager tensors.
      worker: Number of the worker.

    Returns:
      The worker's values, a list.
    """
    return [
        tf.constant(spread_seed(np.asarray(value), worker), variable.dtype)
        if variable_names.is_seed(variable.name)
        else value
        for variable, value in zip(variables, values, strict=True)
    ]


def _seed_of(worker, seed):
    """Returns a worker's own seed, that of the first being `seed`."""
    return (seed + worker * _SEED_STRIDE) % _MAX_SEED
