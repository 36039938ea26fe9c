"""A metric of a simulated run, over epochs and over virtual time."""

import re

import numpy as np

_NO_METRICS = ("seconds", "epoch", "updates", "train_loss", "loss")
_SMALLER = re.compile(
    r"loss$|error|entropy|divergence|perplexity|hinge|poisson|huber|log_?cosh|"
    r"false_?(positives|negatives)|(^|_)(mae|mse|mape|msle|rmse|bce|kld)$",
    re.IGNORECASE,
)


def default_metric(histories):
    """Returns the metric that runs are compared by.

    Args:
      histories: List of `History`, with evaluations.

    Returns:
      `accuracy` if the model has it, else its first metric, else its loss on
      the validation data, else, without such data, `train_loss`.
    """
    names = list(dict.fromkeys(k for h in histories for k in h.evaluations[-1]))
    own = [name for name in names if name not in _NO_METRICS]
    if "accuracy" in own:
        return "accuracy"
    return (own or [n for n in ("loss", "train_loss") if n in names])[0]


def smaller_is_better(metric):
    """Whether a metric is a loss or an error, by its name.

    Args:
      metric: As Keras names it, in upper or lower case, also behind the name
        of an output.
    """
    return _SMALLER.search(metric) is not None


def curve(history, metric, axis="epoch"):
    """A metric's course.

    Args:
      history: A `History`.
      metric: Name in its evaluations.
      axis: `epoch`, `updates` or `seconds`.

    Returns:
      Two float vectors, of the axis and of the metric; evaluations that do
      not have it (`train_loss` before the first gradient) are left out.
    """
    rows = [r for r in history.evaluations if r.get(metric) is not None]
    return (
        np.array([row[axis] for row in rows], "float64"),
        np.array([row[metric] for row in rows], "float64"),
    )


def value_at(history, metric, place, axis="epoch"):
    """A metric at a place: between evaluations linear, after the last as it."""
    x, y = curve(history, metric, axis)
    return float(np.interp(place, x, y)) if len(x) else float("nan")


def mean_over_epochs(history, metric, epochs):
    """The area under a metric's curve over epochs, divided by these.

    Args:
      history: A `History`.
      metric: Name in its evaluations.
      epochs: Where the area ends; a run that ended before counts from
        there with its last value.
    """
    x, y = curve(history, metric)
    if not len(x) or not epochs:
        return float("nan")
    if x[-1] < epochs:
        x, y = np.append(x, epochs), np.append(y, y[-1])
    if len(x) == 1 or x[-1] == x[0]:
        return float(y[-1])
    area = np.sum(np.diff(x) * (y[1:] + y[:-1]) / 2)
    return float(area / (x[-1] - x[0]))


def best(history, metric):
    """A metric's best value, NaN if there is none."""
    _, y = curve(history, metric)
    y = y[np.isfinite(y)]
    if not len(y):
        return float("nan")
    return float(y.min() if smaller_is_better(metric) else y.max())


def last(history, metric):
    """A metric's last value, NaN if there is none."""
    _, y = curve(history, metric)
    return float(y[-1]) if len(y) else float("nan")


def first_at(history, metric, value, axis):
    """Place at which a metric was first seen at a value or better, or None.

    Args:
      history: A `History`.
      metric: Name in its evaluations.
      value: At least this; of a loss or an error at most this.
      axis: `epoch`, `updates` or `seconds`.
    """
    x, y = curve(history, metric, axis)
    there = y <= value if smaller_is_better(metric) else y >= value
    return float(x[np.argmax(there)]) if there.any() else None


def mean_curve(histories, metric, axis="epoch"):
    """The mean course of several runs.

    Args:
      histories: List of `History`, of several seeds.
      metric: Name in their evaluations.
      axis: `epoch` or `seconds`.

    Returns:
      Three float vectors: the axis, as the longest training has it, the mean
      and the standard deviation.
    """
    curves = [curve(history, metric, axis) for history in histories]
    curves = [pair for pair in curves if len(pair[0])]
    if not curves:
        return (np.zeros(0),) * 3
    x, _ = max(curves, key=lambda pair: (len(pair[0]), pair[0][-1]))
    values = np.stack([np.interp(x, *pair) for pair in curves])
    return x, values.mean(axis=0), spread(values)


def spread(values):
    """Standard deviation of a sample along the first axis; of one: 0."""
    values = np.asarray(values, "float64")
    if len(values) < 2:
        return np.zeros(values.shape[1:])
    return np.std(values, axis=0, ddof=1)
