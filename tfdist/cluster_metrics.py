"""Keras metrics over the data of several workers."""

import hashlib

import numpy as np


def topic(model, state_of_run):
    """Returns the topic of the states of a model's metrics.

    All workers find the same where there are servers: it is made of the numbers
    of the variables there. Models that share all weights differ in their
    optimizers.

    Args:
      model: The compiled `keras.Model`.
      state_of_run: The strategy's state.
    """
    optimizer = getattr(model, "optimizer", None)
    # The first variable of an optimizer is its step counter.
    counter = [] if optimizer is None else optimizer.variables[:1]
    numbers = state_of_run.numbers_of(
        [variable.value for variable in (*model.weights, *counter)]
    )
    return f"metrics/{hashlib.sha256(str(numbers).encode()).hexdigest()}"


def state(model, fit=0):
    """The totals and counts that a model's metrics have come to.

    Args:
      model: The compiled `keras.Model`.
      fit: The number of the call of `fit` that they are of, where all workers
        know one.

    Returns:
      A dict that JSON can hold: what tells metrics apart (`fit`, `names`,
      `shapes`), and `values`, numbers and nested lists, one for each of
      `model.metrics_variables`.
    """
    values = [v.numpy().tolist() for v in model.metrics_variables]
    return {**_kind(model, fit), "values": values}


def total(model, states, fit=0):
    """The results of a model's metrics for added up states.

    Args:
      model: The compiled `keras.Model`; its own metrics are as before
        afterwards.
      states: Iterable of what `state` returned; those of another call of
        `fit`, of a model with other metrics, or of one that has not yet built
        them, are left out.
      fit: As for `state`.

    Returns:
      A dict of metric name to float, or to nested lists of floats where the
      metric has several numbers; empty if there is no state.
    """
    kind = _kind(model, fit)
    states = [s["values"] for s in states if kind.items() <= s.items()]
    if not states:
        return {}
    variables = model.metrics_variables
    own = [variable.numpy() for variable in variables]
    try:
        for k, variable in enumerate(variables):
            parts = [np.asarray(s[k]) for s in states]
            variable.assign(np.sum(parts, axis=0))
        return _flat(model.get_metrics_result())
    finally:
        for variable, value in zip(variables, own, strict=True):
            variable.assign(value)


def _flat(results):
    """Returns results as numbers and lists, without dicts in them, as logs.

    Keras leaves the dict of a metric with several named results as it is.
    """
    found = {}
    for name, value in results.items():
        if isinstance(value, dict):
            found.update(_flat(value))
        else:
            found[name] = np.asarray(value).astype(float).tolist()
    return found


def _kind(model, fit):
    """Returns what metrics have in common whose states may be added up."""
    # That of `compile` has those of the user. Not the names of results, of
    # which a model may show fewer in an evaluation.
    parts = [
        [metric, *getattr(metric, "metrics", ())] for metric in model.metrics
    ]
    return {
        "fit": fit,
        "names": sorted(metric.name for part in parts for metric in part),
        "shapes": [list(v.shape) for v in model.metrics_variables],
    }
