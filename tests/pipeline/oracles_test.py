"""The oracle of pipelines does what the papers' recursions say.

The oracle goes by half-ticks; the recursions here know of no pipeline, only
of versions of weights.
"""

import numpy as np
import pytest

from tests.pipeline import oracles

RATE = 0.3


def problem(depth, num_units, examples=3, seed=0):
    generator = np.random.default_rng(seed)
    sizes = [3, *generator.integers(2, 5, depth - 1), 2]
    weights = [
        generator.normal(size=shape) / np.sqrt(shape[0])
        for shape in zip(sizes, sizes[1:], strict=False)
    ]
    units = [
        (generator.normal(size=(n, 3)), generator.normal(size=(n, 2)))
        for n in np.broadcast_to(examples, num_units)
    ]
    return weights, units


def loss(weights, x, y):
    for w in weights[:-1]:
        x = np.tanh(x @ w)
    return np.mean((x @ weights[-1] - y) ** 2)


def assert_close(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-13)


class Recursion:
    """All versions of all weights, and Keras' momentum."""

    def __init__(self, weights, momentum=0.0):
        self.w = [[w] for w in weights]
        self.m = [np.zeros_like(w) for w in weights]
        self._momentum = momentum

    def step(self, gradients):
        for k, gradient in enumerate(gradients):
            self.step_of(k, gradient)

    def step_of(self, k, gradient):
        self.m[k] = self._momentum * self.m[k] - RATE * gradient
        self.w[k].append(self.w[k][-1] + self.m[k])

    def at(self, *indices):
        return [w[max(0, i)] for w, i in zip(self.w, indices, strict=True)]


def test_gradients_are_those_of_finite_differences():
    weights, ((x, y),) = problem(3, 1)
    found = oracles.gradients(weights, x, y)
    step = 1e-6
    for w, gradient in zip(weights, found, strict=True):
        for index in np.ndindex(w.shape):
            kept = w[index]
            w[index] = kept + step
            more = loss(weights, x, y)
            w[index] = kept - step
            less = loss(weights, x, y)
            w[index] = kept
            assert gradient[index] == pytest.approx(
                (more - less) / (2 * step), abs=1e-8
            )


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_flushes_train_with_the_gradient_of_the_whole_batch(name):
    weights, units = problem(3, 6, examples=[4, 4, 1, 2, 5, 3])
    expected = Recursion(weights, 0.9)
    for batch in (units[:3], units[3:]):
        x, y = (np.concatenate(parts) for parts in zip(*batch, strict=True))
        now = [w[-1] for w in expected.w]
        expected.step(oracles.gradients(now, x, y))
    found = oracles.train(weights, units, name, RATE, 0.9, batch_units=3)
    assert_close(found, [w[-1] for w in expected.w])


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize("sync", [False, True])
def test_pipedream_is_its_recursion(depth, momentum, sync):
    weights, units = problem(depth, 9)
    expected = Recursion(weights, momentum)
    for u, (x, y) in enumerate(units):
        late = [u - depth + 1 + (0 if sync else k) for k in range(depth)]
        expected.step(oracles.gradients(expected.at(*late), x, y))
    found = oracles.train(
        weights, units, "pipedream", RATE, momentum, vertical_sync=sync
    )
    assert_close(found, expected.at(*[9] * depth))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_2bw_is_its_recursion(momentum):
    depth, m = 3, 4
    weights, units = problem(depth, 5 * m, examples=[1, 4, 2, 3] * 5)
    expected = Recursion(weights, momentum)
    for t in range(5):
        batch = units[t * m : (t + 1) * m]
        x, y = (np.concatenate(parts) for parts in zip(*batch, strict=True))
        before = expected.at(*[t - 1] * depth)
        expected.step(oracles.gradients(before, x, y))
    found = oracles.train(
        weights, units, "pipedream_2bw", RATE, momentum, batch_units=m
    )
    assert_close(found, expected.at(*[5] * depth))


def chain(forward, backward, first, y):
    """Gradients where a backward computes its forward with other weights.

    Each stage does so from the input that its forward had. The last one
    makes the error, of its own second forward.
    """
    inputs = [first]
    for w in forward[:-1]:
        inputs.append(np.tanh(inputs[-1] @ w))
    output = inputs[-1] @ backward[-1]
    error = 2 * (output - y) / output.size
    found = [inputs[-1].T @ error]
    error = error @ backward[-1].T
    for x, w in zip(inputs[-2::-1], backward[-2::-1], strict=True):
        error = error * (1 - np.tanh(x @ w) ** 2)
        found.insert(0, x.T @ error)
        error = error @ w.T
    return found


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("depth", [1, 2, 4])
def test_ftpipe_is_its_recursion(depth, momentum):
    weights, units = problem(depth, 9)
    expected = Recursion(weights, momentum)
    for u, (x, y) in enumerate(units):
        forward = expected.at(*[u - depth + 1 + k for k in range(depth)])
        backward = expected.at(*[u] * depth)
        expected.step(chain(forward, backward, x, y))
    found = oracles.train(weights, units, "ftpipe", RATE, momentum)
    assert_close(found, expected.at(*[9] * depth))


@pytest.mark.parametrize("smoothed", [False, True])
@pytest.mark.parametrize("depth", [1, 2, 4])
def test_spectrain_is_its_recursion(depth, smoothed):
    gamma = 0.9
    weights, units = problem(depth, 9)
    # v of all versions, as SpecTrain's paper has it: w - s * rate * v.
    w = [[one] for one in weights]
    v = [[np.zeros_like(one)] for one in weights]
    scale = 1 - gamma if smoothed else 1.0

    def predicted(version, steps):
        return [
            w[k][max(0, version[k])]
            - steps[k] * RATE * v[k][max(0, version[k])]
            for k in range(depth)
        ]

    for u, (x, y) in enumerate(units):
        late = [u - depth + 1 + k for k in range(depth)]
        ahead = [k // 2 + depth - k - 1 for k in range(depth)]
        forward = predicted(late, ahead)
        backward = predicted([u] * depth, [k // 2 for k in range(depth)])
        for k, gradient in enumerate(chain(forward, backward, x, y)):
            v[k].append(gamma * v[k][-1] + scale * gradient)
            w[k].append(w[k][-1] - RATE * v[k][-1])
    found = oracles.train(
        weights, units, "spectrain", RATE, gamma, smoothed=smoothed
    )
    assert_close(found, [one[-1] for one in w])


def test_spectrain_without_recomputation_keeps_activations():
    # One unit through three stages, after one unit that makes momentum: by
    # hand, with stored activations and predicted weights for the errors.
    weights, units = problem(3, 2)
    found = oracles.train(
        weights, units, "spectrain", RATE, 0.9, recompute=False
    )
    other = oracles.train(weights, units, "spectrain", RATE, 0.9)
    w = Recursion(weights, 0.9)
    first = oracles.gradients(weights, *units[0])
    # Unit 1 begins before unit 0 is back, except at the last stage. Stage 2
    # predicts one step, forward and backward, as it has one update then.
    x, y = units[1]
    inputs = [x, np.tanh(x @ weights[0])]
    inputs.append(np.tanh(inputs[1] @ weights[1]))
    # Unit 0: predictions with m = 0 are the weights themselves.
    w.step(first)
    ahead = [w.w[k][1] + s * w.m[k] for k, s in enumerate((0, 0, 1))]
    output = inputs[2] @ ahead[2]
    error = 2 * (output - y) / output.size
    gradients = [inputs[2].T @ error]
    error = (error @ ahead[2].T) * (1 - inputs[2] ** 2)
    gradients.insert(0, inputs[1].T @ error)
    error = (error @ ahead[1].T) * (1 - inputs[1] ** 2)
    gradients.insert(0, inputs[0].T @ error)
    w.step(gradients)
    assert_close(found, w.at(2, 2, 2))
    assert not np.allclose(found[0], other[0], rtol=1e-6)


@pytest.mark.parametrize(
    "name", ["gpipe", "1f1b", "pipedream", "pipedream_2bw", "ftpipe"]
)
def test_a_single_stage_trains_as_without_a_pipeline(name):
    weights, units = problem(1, 5)
    plain = Recursion(weights, 0.9)
    for t, (x, y) in enumerate(units):
        at = t - 1 if name == "pipedream_2bw" else t
        plain.step(oracles.gradients(plain.at(at), x, y))
    found = oracles.train(weights, units, name, RATE, 0.9)
    assert_close(found, plain.at(5))


def test_nothing_that_is_given_changes():
    weights, units = problem(2, 3)
    kept = [w.copy() for w in weights]
    oracles.train(weights, units, "pipedream", RATE, 0.9)
    for one, other in zip(weights, kept, strict=True):
        np.testing.assert_array_equal(one, other)
