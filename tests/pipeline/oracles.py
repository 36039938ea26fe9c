"""Pipelines in plain NumPy, written from the papers' formulas.

Nothing of `tfdist` is used here, so that what tfdist does can be compared
with it.
"""

import numpy as np

_NAMES = ("pipedream", "pipedream_2bw", "spectrain", "ftpipe")


def train(
    weights,
    units,
    schedule,
    learning_rate,
    momentum=0.0,
    vertical_sync=False,
    batch_units=1,
):
    """Trains a chain of stages through a pipeline, which ends up empty.

    Stage k is y = tanh(x @ w), the last one y = x @ w. The loss of a unit is
    the mean of the squared errors over all elements. At each stage and
    update, as Keras does it,

        m = momentum * m - learning_rate * g
        w = w + m

    where g is the gradient of one unit, or of a batch of `batch_units`: the
    mean of its units' gradients, weighted by their examples.

    The asynchronous schedules go by half-ticks h: stage k of K does the
    forward of unit (h - k) / 2 where h - k is even, otherwise the backward
    of unit (h - (2 K - 1 - k)) / 2, and then the update.

    Args:
      weights: A list of K float arrays [in, out].
      units: A list of pairs (x, y), of [examples, in] and [examples, out].
      schedule: "pipedream" (backward with the weights of its forward),
        "pipedream_2bw" (batch t with W(t - 1)), "spectrain" (forward with
        weights predicted by floor(k / 2) + K - k - 1 updates, backward by
        floor(k / 2)), or "ftpipe" (forward and backward, which computes its
        forward again from the same input, with the weights there are then).
      learning_rate: A float.
      momentum: A float.
      vertical_sync: Of "pipedream": unit u uses version max(0, u - K + 1) of
        every stage.
      batch_units: Of "pipedream_2bw": units of an update.

    Returns:
      A list of K arrays: the weights after all updates.
    """
    assert schedule in _NAMES, schedule
    assert not vertical_sync or schedule == "pipedream"
    assert schedule == "pipedream_2bw" or batch_units == 1
    assert len(units) % batch_units == 0
    stages = [_Stage(w, learning_rate, momentum) for w in weights]
    if schedule == "pipedream_2bw":
        assert batch_units >= len(weights)
    rule = _Rule(schedule, len(weights), vertical_sync, batch_units)
    _train_by_half_ticks(stages, units, batch_units, rule)
    return [stage.versions[-1] for stage in stages]


def gradients(weights, x, y):
    """The gradients of the loss of one unit, with the same `weights`.

    Returns:
      A list of arrays as `weights`.
    """
    inputs = []
    for k, w in enumerate(weights):
        inputs.append(x)
        x = _forward(x, w, k == len(weights) - 1)
    error = _loss_gradient(x, y)
    found = []
    for k in reversed(range(len(weights))):
        last = k == len(weights) - 1
        output = _forward(inputs[k], weights[k], last)
        gradient, error = _backward(inputs[k], output, weights[k], error, last)
        found.insert(0, gradient)
    return found


class _Stage:
    """The weights of a stage, all versions of them, and its optimizer."""

    def __init__(self, w, learning_rate, momentum):
        self.versions = [np.array(w, np.float64)]
        self.m = np.zeros_like(self.versions[0])
        self._rate, self._momentum = learning_rate, momentum

    def update(self, gradient):
        self.m = self._momentum * self.m - self._rate * gradient
        self.versions.append(self.versions[-1] + self.m)

    def predicted(self, updates):
        return self.versions[-1] + updates * self.m


class _Rule:
    """The weights that a forward and a backward use."""

    def __init__(self, schedule, depth, vertical_sync, batch_units):
        self._schedule, self._depth = schedule, depth
        self._vertical_sync, self._batch_units = vertical_sync, batch_units

    def of_forward(self, stage, k, unit):
        if self._schedule == "pipedream_2bw":
            return stage.versions[max(0, unit // self._batch_units - 1)]
        if self._vertical_sync:
            return stage.versions[max(0, unit - self._depth + 1)]
        if self._schedule == "spectrain":
            return stage.predicted(k // 2 + self._depth - k - 1)
        return stage.versions[-1]

    def of_backward(self, stage, k, stashed):
        if self._schedule == "spectrain":
            return stage.predicted(k // 2)
        if self._schedule == "ftpipe":
            return stage.versions[-1]
        return stashed


def _train_by_half_ticks(stages, units, batch_units, rule):
    depth = len(stages)
    # By stage and unit: what comes in, forward and backward; what is kept.
    inputs = {(0, u): x for u, (x, _) in enumerate(units)}
    errors, stash = {}, {}
    sums = [0.0] * depth
    for h in range(2 * (depth + len(units))):
        for k, stage in enumerate(stages):
            last = k == depth - 1
            if (h - k) % 2 == 0:
                u = (h - k) // 2
                if not 0 <= u < len(units):
                    continue
                x, w = inputs[k, u], rule.of_forward(stage, k, u)
                output = _forward(x, w, last)
                stash[k, u] = x, w, output
                inputs[k + 1, u] = output
                if last:
                    errors[k, u] = _loss_gradient(output, units[u][1])
                continue
            u = (h - (2 * depth - 1 - k)) // 2
            if not 0 <= u < len(units):
                continue
            x, stashed, output = stash.pop((k, u))
            w = rule.of_backward(stage, k, stashed)
            error = errors.pop((k, u))
            if w is not stashed:
                output = _forward(x, w, last)
                if last:
                    error = _loss_gradient(output, units[u][1])
            gradient, errors[k - 1, u] = _backward(x, output, w, error, last)
            batch = units[u - u % batch_units :][:batch_units]
            share = len(units[u][0]) / sum(len(x) for x, _ in batch)
            sums[k] = sums[k] + gradient * share
            if (u + 1) % batch_units == 0:
                stage.update(sums[k])
                sums[k] = 0.0


def _forward(x, w, last):
    return x @ w if last else np.tanh(x @ w)


def _backward(x, output, w, error, last):
    """The gradients of the weights and of the inputs."""
    if not last:
        error = error * (1 - output**2)
    return x.T @ error, error @ w.T


def _loss_gradient(output, y):
    return 2 * (output - y) / output.size
