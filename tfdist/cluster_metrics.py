"""Keras metrics over the data of several workers."""

import numpy as np


def state(model):
    """The totals and counts that a model's metrics have come to.

    Returns:
      A list of numbers and nested lists, one for each of
      `model.metrics_variables`.
    """
    return [v.numpy().tolist() for v in model.metrics_variables]


def total(model, states):
    """The results of a model's metrics for added up states.

    Args:
      model: The compiled `keras.Model`; its own metrics are as before
        afterwards.
      states: Iterable of what `state` returned; those of a model with other
        metrics, or of one that has not yet built them, are left out.

    Returns:
      A dict of metric name to float, empty if there is no state.
    """
    variables = model.metrics_variables
    states = [s for s in states if len(s) == len(variables)]
    if not states:
        return {}
    own = [variable.numpy() for variable in variables]
    try:
        for k, variable in enumerate(variables):
            parts = [np.asarray(s[k]) for s in states]
            variable.assign(np.sum(parts, axis=0))
        results = model.get_metrics_result()
        return {name: float(np.asarray(v)) for name, v in results.items()}
    finally:
        for variable, value in zip(variables, own, strict=True):
            variable.assign(value)
