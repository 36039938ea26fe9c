"""Methods with local steps once more, in NumPy, from their papers' formulas.

Written from `papers.md` 1 and 8, in float64, for the whole parameter vector.
Averages are of parameters, not of their changes as in tfdist: that both come
to the same is part of what is shown. `gradient(weights, x, y)` is given.
"""

import copy

import numpy as np

# Optimizers of one worker, in the forms that Keras has them.


class Sgd:
    """v <- m v - rate g;  w <- w + v, or with Nesterov w + m v - rate g."""

    def __init__(self, rate, momentum=0.0, nesterov=False):
        self._rate, self._momentum, self._nesterov = rate, momentum, nesterov
        self.slots = [0.0]

    def apply(self, w, g):
        (v,) = self.slots
        v = self._momentum * v - self._rate * g
        self.slots = [v]
        if self._nesterov:
            return w + self._momentum * v - self._rate * g
        return w + v


class Adam:
    """Kingma and Ba 2015, algorithm 1, in its second form (section 2).

    With `decay` that of Loshchilov and Hutter 2019: AdamW.
    """

    def __init__(self, rate, decay=0.0):
        self._rate, self._decay, self._step = rate, decay, 0
        self.slots = [0.0, 0.0]

    def apply(self, w, g):
        self._step += 1
        m, v = self.slots
        m = 0.9 * m + 0.1 * g
        v = 0.999 * v + 0.001 * g**2
        self.slots = [m, v]
        scale = np.sqrt(1 - 0.999**self._step) / (1 - 0.9**self._step)
        w = w - self._rate * self._decay * w
        return w - self._rate * scale * m / (np.sqrt(v) + 1e-7)


class Adagrad:
    """rate / sqrt(sum of squares) from zero; papers.md 1."""

    def __init__(self, rate, epsilon=1e-10):
        self._rate, self._epsilon = rate, epsilon
        self.slots = [0.0]

    def apply(self, w, g):
        (total,) = self.slots
        total = total + g**2
        self.slots = [total]
        return w - self._rate * g / np.sqrt(total + self._epsilon)


# What becomes of the mean of the workers' weights.


class Mean:
    """Parameter averaging, local SGD: the mean itself (8.1, 8.3)."""

    def given(self, mean):
        """What the workers go on from, after their weights' mean."""
        return mean


class Bmuf:
    """8.4: W is the filtered model, W_g what workers are given.

    G = mean - W_g;  Delta <- eta Delta + zeta G;  W <- W + Delta;
    W_g = W, or with Nesterov W + eta Delta.
    """

    def __init__(self, start, momentum, rate=1.0, nesterov=True):
        self._w = self._given = start
        self._delta = 0.0
        self._momentum, self._rate, self._ahead = momentum, rate, nesterov

    def given(self, mean):
        g = mean - self._given
        self._delta = self._momentum * self._delta + self._rate * g
        self._w = self._w + self._delta
        self._given = self._w
        if self._ahead:
            self._given = self._w + self._momentum * self._delta
        return self._given


class DiLoCo:
    """8.6: D = theta - mean;  m <- b m + D;  theta <- theta - e (D + b m)."""

    def __init__(self, start, rate=0.7, momentum=0.9):
        self._theta, self._m = start, 0.0
        self._rate, self._momentum = rate, momentum

    def given(self, mean):
        d = self._theta - mean
        self._m = self._momentum * self._m + d
        step = d + self._momentum * self._m
        self._theta = self._theta - self._rate * step
        return self._theta


class Averaging:
    """Synchronous rounds: all train from one point, then are averaged.

    Args:
      start: The initial parameters, a vector.
      workers: Number of workers.
      gradient: Callable of weights, x and y.
      inner: Callable that makes a worker's optimizer.
      outer: One of the above.
      state: "local", "averaged" or "reset", of the inner optimizers.
    """

    def __init__(self, start, workers, gradient, inner, outer, state="local"):
        self.theta = np.asarray(start, "float64")
        self._inners = [inner() for _ in range(workers)]
        self._first = copy.deepcopy(self._inners[0].slots)
        self._gradient, self._outer, self._state = gradient, outer, state

    def round(self, batches):
        """Takes each worker's batches; returns what all go on from."""
        weights, examples = [], []
        for inner, mine in zip(self._inners, batches, strict=True):
            w = self.theta
            for x, y in mine:
                w = inner.apply(w, self._gradient(w, x, y))
            weights.append(w)
            examples.append(sum(len(x) for x, _ in mine))
        self.theta = self._outer.given(_mean(weights, examples))
        slots = [inner.slots for inner in self._inners]
        if self._state == "averaged":
            slots = [
                _mean(alike, examples) for alike in zip(*slots, strict=True)
            ]
        for inner in self._inners:
            if self._state == "averaged":
                inner.slots = slots
            elif self._state == "reset":
                inner.slots = copy.deepcopy(self._first)
        return self.theta


def _mean(values, examples):
    total = sum(n * value for n, value in zip(examples, values, strict=True))
    return total / sum(examples)


# Outer optimizers of asynchronous local SGD.


class DelayedNesterov:
    """8.7, algorithm 3 of the paper, line by line."""

    def __init__(self, rate, momentum, delay, c=0.0):
        self._rate, self._beta = rate, momentum
        self._delay, self._c = delay, c
        self._buffer = self._m = 0.0
        self._t = 0

    def apply(self, theta, g):
        n, c, beta = self._delay, self._c, self._beta
        self._buffer = self._buffer + g
        if (self._t + 1) % n == 0:
            self._m = beta * self._m + self._buffer / n
            step = (1 - c * n + c) * beta * self._m + g / n
            self._buffer = 0.0
        else:
            step = c * beta * self._m + g / n
        self._t += 1
        return theta - self._rate * step


# Workers around a centre.


class ElasticSync:
    """8.5, equations 5 and 6; between them, local steps.

    x_i <- x_i - eta g_i - alpha (x_i - c);  c <- c + beta (mean x_i - c).

    Args:
      start: Where all begin.
      workers: Number of workers.
      gradient: Callable of weights, x and y.
      inner: Callable that makes a worker's optimizer.
      alpha: The moving rate of one worker.
      period: The elastic force acts in every one of so many steps.
    """

    def __init__(self, start, workers, gradient, inner, alpha, period):
        self.centre = np.asarray(start, "float64")
        self.own = [self.centre] * workers
        self._inners = [inner() for _ in range(workers)]
        self._gradient, self._period = gradient, period
        self._alpha, self._beta = alpha, workers * alpha
        self._t = 0

    def step(self, batches):
        """All take a step, of one (x, y) each."""
        self._t += 1
        before, centre = self.own, self.centre
        self.own = [
            inner.apply(w, self._gradient(w, x, y))
            for inner, w, (x, y) in zip(
                self._inners, before, batches, strict=True
            )
        ]
        if self._t % self._period == 0:
            self.own = [
                w - self._alpha * (point - centre)
                for w, point in zip(self.own, before, strict=True)
            ]
            mean = sum(before) / len(before)
            self.centre = centre + self._beta * (mean - centre)


class ElasticAsync:
    """8.5, algorithm 1: one worker after the other, the centre read once.

    x is captured before the elastic move; the gradient is of x, too.

    Args: See `ElasticSync`.
    """

    def __init__(self, start, workers, gradient, inner, alpha, period):
        self.centre = np.asarray(start, "float64")
        self.own = [self.centre] * workers
        self._inners = [inner() for _ in range(workers)]
        self._clocks = [0] * workers
        self._gradient, self._alpha = gradient, alpha
        self._period = period

    def step(self, k, x, y):
        """Worker `k` takes a step."""
        self._clocks[k] += 1
        point = self.own[k]
        force = 0.0
        if self._clocks[k] % self._period == 0:
            force = self._alpha * (point - self.centre)
            self.centre = self.centre + force
        trained = self._inners[k].apply(point, self._gradient(point, x, y))
        self.own[k] = trained - force


# Downpour.


class Downpour:
    """papers.md 1: accrued gradients, fetched and pushed at rates of their own.

    A fetch that a step begins with is made at the end of the step before, and
    after its push.

    Args:
      start: Where all begin.
      workers: Number of workers.
      gradient: Callable of weights, x and y.
      rate: Of the local steps.
      server: The server's optimizer.
      n_fetch: Steps between fetches.
      n_push: Steps between pushes.
    """

    def __init__(self, start, workers, gradient, rate, server, n_fetch, n_push):
        self.theta = np.asarray(start, "float64")
        self.own = [self.theta] * workers
        self.pushes = 0
        self._accrued = [0.0] * workers
        self._steps = [0] * workers
        self._gradient, self._rate, self._server = gradient, rate, server
        self._n_fetch, self._n_push = n_fetch, n_push

    def step(self, k, x, y):
        """Worker `k` takes a step."""
        g = self._gradient(self.own[k], x, y)
        self._accrued[k] = self._accrued[k] + g
        self.own[k] = self.own[k] - self._rate * g
        self._steps[k] += 1
        if self._steps[k] % self._n_push == 0:
            self.theta = self._server.apply(self.theta, self._accrued[k])
            self._accrued[k] = 0.0
            self.pushes += 1
        if self._steps[k] % self._n_fetch == 0:
            self.own[k] = self.theta
