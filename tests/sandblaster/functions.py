"""Functions to minimize, and L-BFGS on whole vectors as an oracle."""

import itertools

import numpy as np
import tensorflow as tf

from tfdist.sandblaster import fence
from tfdist.sandblaster import minimizer
from tfdist.sandblaster import shards

_names = itertools.count()


def rosenbrock(x):
    """Rosenbrock's function of n variables and its gradient, in NumPy."""
    a, b = x[:-1], x[1:]
    gradient = np.zeros_like(x)
    gradient[:-1] += -400 * a * (b - a**2) - 2 * (1 - a)
    gradient[1:] += 200 * (b - a**2)
    return np.sum(100 * (b - a**2) ** 2 + (1 - a) ** 2), gradient


class Quadratic:
    """`x A x / 2 - b x` with a random positive definite matrix.

    Args:
      number: Of variables.
      seed: Of the matrix.
    """

    def __init__(self, number, seed=0):
        random = np.random.default_rng(seed)
        root = random.normal(size=(number, number))
        self.matrix = root @ root.T / number + np.eye(number)
        self.vector = random.normal(size=number)
        self.minimum = np.linalg.solve(self.matrix, self.vector)

    def __call__(self, x):
        gradient = self.matrix @ x - self.vector
        return x @ (gradient - self.vector) / 2, gradient


def make_shards(start, number, memory, dtype="float64"):
    """Shards of this process, with `start` as the point."""
    device = tf.config.list_logical_devices("CPU")[0].name
    name, devices = f"functions/{next(_names)}", [device] * number
    made = shards.Shards(
        name,
        len(start),
        dtype,
        devices,
        device,
        minimizer.rows(memory),
        fence.Fence(name, devices, device),
    )
    made.fence.begin()
    made.create()
    made.load(minimizer.POINTS[0], tf.constant(start, dtype))
    return made


def evaluator(function, made, points=None):
    """A callable for `Minimizer.iterate`, of a function in NumPy."""

    def evaluate(point, gradient):
        x = made.fetch(point).numpy()
        value, slope = function(x)
        if points is not None:
            points.append(x)
        made.load(gradient, tf.constant(slope))
        return float(value)

    return evaluate


def two_loop(pairs, gradient):
    """Nocedal and Wright 2006, algorithm 7.4: the direction, on vectors."""
    q, alphas = gradient.copy(), []
    for s, y in reversed(pairs):
        alphas.append(s @ q / (s @ y))
        q = q - alphas[-1] * y
    if pairs:
        s, y = pairs[-1]
        q = q * (s @ y) / (y @ y)
    for (s, y), alpha in zip(pairs, reversed(alphas), strict=True):
        q = q + (alpha - y @ q / (s @ y)) * s
    return -q


def trajectory(function, start, memory, line_search, iterations):
    """The points of L-BFGS on whole vectors, with the same line search."""
    x = np.array(start, np.float64)
    value, gradient = function(x)
    pairs, points = [], [x]
    for _ in range(iterations):
        direction = two_loop(pairs, gradient)
        slope = direction @ gradient
        first = 1.0 if pairs else 1.0 / np.sqrt(gradient @ gradient)
        search = line_search.search(value, slope, first)
        step = next(search)
        while True:
            trial = x + step * direction
            trial_value, trial_gradient = function(trial)
            try:
                step = search.send((trial_value, trial_gradient @ direction))
            except StopIteration as end:
                assert end.value == step
                break
        pair = trial - x, trial_gradient - gradient
        if pair[0] @ pair[1] > 1e-10 * (pair[0] @ pair[0]):
            pairs = [*pairs, pair][-memory:]
        x, value, gradient = trial, trial_value, trial_gradient
        points.append(x)
    return points
