"""A learning rate per element from the spread of the gradients there."""

from typing import Literal

import keras
import tensorflow as tf

from tfdist import checks
from tfdist.correction import base
from tfdist.correction import optimizers
from tfdist.correction import rows

_FLOOR = 1e-3


class FASGD(base.Correction):
    """Divides a gradient by its moving standard deviation and its staleness.

    For every gradient `g` that arrives, element by element,

        n <- gamma * n + (1 - gamma) * g^2
        b <- gamma * b + (1 - gamma) * g
        sigma <- beta * sigma + (1 - beta) * sqrt(max(n - b^2, 0) + epsilon)
        g / (sigma * max(1, staleness))

    The paper prints an average of `1 / std` in the place of sigma, and divides
    by it, which would multiply the rate by the deviation. Its text, "dividing
    the learning rate by the standard deviation", and its program divide, as
    here. The program uses another estimate, `estimator="absmean"`:

        sigma <- beta * sigma + (1 - beta) * |g|
        g / ((sigma + epsilon) * max(1, staleness))

    All averages begin with 0, so the first values of sigma are too small, and
    the first steps some thirty times too large. With `bias_correction` sigma
    is divided by the sum of the weights of its average, `1 - beta^t`, and the
    first steps are three times too large (n and b are as in the paper);
    without it the rule is the paper's.

    For SGD, with or without momentum; the best learning rate is not that of
    SGD (the paper found 0.005, with 0.04 for SGD). Rows of sparse gradients:
    the averages of the others stay as they are.

    Costs 3 times the bytes of the parameters on the servers, once with
    `estimator="absmean"`.

    Args:
      gamma: Of the averages of g and g^2, 0 or more and less than 1. The paper
        gives no numbers; 0.9 is that of its program.
      beta: Of sigma, alike.
      epsilon: Positive; default: such that sigma, bias corrected, is at least
        0.001: 1e-6, with "absmean" 1e-3.
      estimator: "std" or "absmean".
      bias_correction: bool.

    References:
      Odena, "Faster asynchronous SGD", 2016, arXiv:1601.04033, section 3.
    """

    def __init__(
        self,
        gamma: float = 0.9,
        beta: float = 0.9,
        *,
        epsilon: float | None = None,
        estimator: Literal["std", "absmean"] = "std",
        bias_correction: bool = True,
    ):
        self.gamma = checks.in_range("FASGD: gamma", gamma, below=1.0)
        self.beta = checks.in_range("FASGD: beta", beta, below=1.0)
        if estimator not in ("std", "absmean"):
            raise ValueError(
                "Argument `estimator` of FASGD must be 'std' or 'absmean'. "
                f"Received: estimator={estimator!r}"
            )
        if epsilon is None:
            epsilon = _FLOOR**2 if estimator == "std" else _FLOOR
        self.epsilon = checks.in_range("FASGD: epsilon", epsilon, positive=True)
        self.estimator = estimator
        self.bias_correction = checks.flag(
            "FASGD: bias_correction", bias_correction
        )

    def check_optimizer(self, optimizer: keras.Optimizer) -> None:
        optimizers.check_is_sgd(
            "FASGD", optimizer, "it chooses the rate of each element itself"
        )

    def slots(self, shape: list[int], num_workers: int) -> dict[str, list[int]]:
        names = ["deviation"]
        if self.estimator == "std":
            names += ["mean", "mean_of_squares"]
        slots = dict.fromkeys(names, shape)
        if self.bias_correction:
            # Of each row: rows of tables are averaged over when they come.
            slots["weight"] = [*shape[:1], *(1 for _ in shape[1:])]
        return slots

    def correct(self, late: base.LateGradient, slots: base.Slots) -> tf.Tensor:
        # Of the same numbers as their deviation: else it would divide little.
        values = base.squarable(late.values)
        if late.indices is None:
            deviation = self._deviation(values, slots, None)
        else:
            numbers, places, total = rows.sums(values, late.indices)
            deviation = self._deviation(base.squarable(total), slots, numbers)
            deviation = tf.gather(deviation, places)
        staleness = tf.cast(tf.maximum(late.staleness, 1), deviation.dtype)
        return values / (deviation * staleness)

    def _deviation(self, gradient, slots, numbers):
        """Takes a gradient, or rows of one, into account; returns sigma."""

        def average(name, decay, value):
            mean = decay * slots.read(name, numbers) + (1 - decay) * value
            slots.assign(name, mean, numbers)
            return mean

        if self.estimator == "std":
            squares = average("mean_of_squares", self.gamma, gradient**2)
            mean = average("mean", self.gamma, gradient)
            # Rounding may make a variance of 0 negative.
            variance = tf.maximum(squares - mean**2, 0)
            spread = tf.sqrt(variance + self.epsilon)
        else:
            spread = tf.abs(gradient)
        deviation = average("deviation", self.beta, spread)
        if self.bias_correction:
            deviation = deviation / average("weight", self.beta, 1.0)
        if self.estimator == "absmean":
            deviation += self.epsilon
        return deviation
