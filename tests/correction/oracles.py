"""The corrections once more, in NumPy, from the formulas of their papers.

Written from `papers.md` 3, 5, 6 and 7, in float64, for the whole parameter
vector; each knows who pulled what. `run` trains virtual workers with them in a
given order of their arrivals, on any gradient function, so that every delay is
known.
"""

import numpy as np


class Nothing:
    """Asynchronous SGD; the base of the others."""

    def correct(self, g, *, worker, staleness, now, then):
        """The gradient that the optimizer gets.

        Args:
          g: Gradient, a vector.
          worker: Who computed it.
          staleness: Updates since.
          now: Parameters on the server.
          then: What the worker computed `g` from.
        """
        return g

    def observe(self, before, after):
        """An update has been made."""

    def given(self, theta):
        """What a worker gets."""
        return theta


class InverseStaleness(Nothing):
    """Zhang et al. 2016, equation 3."""

    def __init__(self, factor=1.0):
        self._factor = factor

    def correct(self, g, *, staleness, **_):
        return self._factor / (staleness if staleness > 0 else 1) * g


class DelayCompensation(Nothing):
    """Zheng et al. 2017, algorithm 2: -c, and with `decay` -a."""

    def __init__(self, lambda_0, decay=None, epsilon=1e-7):
        self._lambda_0, self._decay, self._epsilon = lambda_0, decay, epsilon
        self._mean_square = 0.0

    def correct(self, g, *, now, then, **_):
        rate = self._lambda_0
        if self._decay is not None:
            m = self._decay
            self._mean_square = m * self._mean_square + (1 - m) * g**2
            rate = rate / np.sqrt(self._mean_square + self._epsilon)
        return g + rate * g * g * (now - then)


class GapAware(Nothing):
    """Barkai et al. 2020, with the constants of papers.md 7."""

    def __init__(self, rate):
        self._rate = rate
        self._average, self._k = 0.0, 0

    def correct(self, g, *, now, then, **_):
        if not self._k:
            return g
        root = np.sqrt(self._average / (1 - 0.999**self._k))
        c = self._rate * (root + 1e-8)
        return g / (1 + np.abs(now - then) / c)

    def observe(self, before, after):
        step = (before - after) / self._rate
        self._average = 0.999 * self._average + 0.001 * step**2
        self._k += 1


class FASGD(Nothing):
    """Odena 2016, with the deviation that its text divides by."""

    def __init__(
        self,
        gamma=0.9,
        beta=0.9,
        epsilon=None,
        estimator="std",
        bias_correction=True,
    ):
        self._gamma, self._beta, self._estimator = gamma, beta, estimator
        self._epsilon = epsilon
        if epsilon is None:
            self._epsilon = {"std": 1e-6, "absmean": 1e-3}[estimator]
        self._debias = bias_correction
        self._n = self._b = self._v = 0.0
        self._t = 0

    def correct(self, g, *, staleness, **_):
        self._t += 1
        tau = max(1, staleness)
        spread = abs(g)
        if self._estimator == "std":
            self._n = self._gamma * self._n + (1 - self._gamma) * g**2
            self._b = self._gamma * self._b + (1 - self._gamma) * g
            variance = np.maximum(self._n - self._b**2, 0)
            spread = np.sqrt(variance + self._epsilon)
        self._v = self._beta * self._v + (1 - self._beta) * spread
        sigma = self._v
        if self._debias:
            sigma = sigma / (1 - self._beta**self._t)
        if self._estimator == "absmean":
            sigma = sigma + self._epsilon
        return g / (sigma * tau)


class DanaZero(Nothing):
    """Hakimi et al. 2019, algorithm 4; with `strength` DANA-DC.

    Before the first update there is nothing to look ahead by: where updates
    average several gradients, the first workers get theta.

    Args:
      workers: Number of workers.
      rate: eta.
      gamma: Momentum.
      strength: lambda of DANA-DC.
      share: Gradients that an update averages.
    """

    def __init__(self, workers, rate, gamma=0.9, strength=0.0, share=1):
        self._v = [0.0] * workers
        self._rate, self._gamma = rate, gamma
        self._strength, self._share = strength, share
        self._begun = False

    def correct(self, g, *, worker, now, then, **_):
        g = g + self._strength * g * g * (now - then)
        self._v[worker] = self._gamma * self._v[worker] + g
        return self._v[worker]

    def observe(self, before, after):
        self._begun = True

    def given(self, theta):
        ahead = self._begun * self._rate * self._gamma * sum(self._v)
        return theta - ahead / self._share

    def gone(self, worker):
        """A worker is gone."""
        self._v[worker] = 0.0


class DanaSlim(Nothing):
    """Hakimi et al. 2019, section on DANA-Slim: what workers push."""

    def __init__(self, workers, gamma=0.9):
        self._v = [0.0] * workers
        self._gamma = gamma

    def correct(self, g, *, worker, **_):
        self._v[worker] = self._gamma * self._v[worker] + g
        return self._gamma * self._v[worker] + g


class Server:
    """Parameters, workers' copies of them, and an optimizer's rule.

    Args:
      start: The initial parameters, a vector.
      workers: Number of workers.
      correction: One of the above.
      apply: The rule: (parameters, gradient) -> parameters.
      share: Gradients that an update averages.

    Attributes:
      theta: The parameters.
      copies: What each worker has, a list.
      version: Updates.
    """

    def __init__(self, start, workers, correction, apply, share=1):
        self.theta = np.asarray(start, "float64")
        self.copies = [self.theta] * workers
        self.version = 0
        self.correction = correction
        self._pulled = [0] * workers
        self._apply, self._share = apply, share
        self._window = []

    def arrive(self, worker, gradient):
        """A worker's gradient of its copy arrives; returns its staleness."""
        staleness = self.version - self._pulled[worker]
        self._window.append(
            self.correction.correct(
                np.asarray(gradient, "float64"),
                worker=worker,
                staleness=staleness,
                now=self.theta,
                then=self.copies[worker],
            )
        )
        if len(self._window) == self._share:
            before = self.theta
            self.theta = self._apply(before, sum(self._window) / self._share)
            self.correction.observe(before, self.theta)
            self._window, self.version = [], self.version + 1
        self.copies[worker] = self.correction.given(self.theta)
        self._pulled[worker] = self.version
        return staleness
