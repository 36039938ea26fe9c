"""L-BFGS whose vectors lie on shards; here are only scalars."""

from collections.abc import Callable
import dataclasses
import enum
import math

import numpy as np

from tfdist.sandblaster import commands
from tfdist.sandblaster import pair_memory

HISTORY = "history"
"""The matrix of pairs: rows of steps, then of gradient changes."""
DIRECTION = "direction"
# A point and its gradient, for the current one and the one that is tried: they
# change places, so that the current one is never half-written.
POINTS = ("point/0", "point/1")
GRADIENTS = ("gradient/0", "gradient/1")
# With samples: the gradients on what a sample shares with the next one, and on
# what it shares with the one before.
AFTER = ("after/0", "after/1")
BEFORE = "before"

# A pair is of no use if `s y` is at most this times `s s`, or a direction if
# its cosine to the steepest one is at most this.
_TINY = 1e-10
# Relative difference of values and gradients of one function at one point, by
# rounding.
_ROUNDED = 1e-6
# Of Powell's damping: Nocedal and Wright 2006, procedure 18.2.
_DAMPED = 0.2

Evaluate = Callable[..., float]


class Outcome(enum.Enum):
    """The outcome of an iteration.

    MOVED: The point is another one; lower, but with a fixed step.
    CONVERGED: One of the tolerances was reached.
    STUCK: There is no lower point along the steepest direction either; with
      rounded values, the minimum is as near as they can tell.
    """

    MOVED = "moved"
    CONVERGED = "converged"
    STUCK = "stuck"


@dataclasses.dataclass(frozen=True)
class Iteration:
    """One iteration.

    Attributes:
      outcome: An `Outcome`.
      value: The function's value at the current point.
      gradient_norm: The largest absolute value of the gradient there.
      step: The length along the direction; 0 where the point is the old one.
      evaluations: Number of evaluations of function and gradient.
      restarted: Whether the memory was forgotten, as its direction was of no
        use.
    """

    outcome: Outcome
    value: float
    gradient_norm: float
    step: float
    evaluations: int
    restarted: bool


def rows(memory):
    """Returns the argument `rows` of `Shards` for a number of pairs."""
    return {HISTORY: pair_memory.rows(memory)}


class Minimizer:
    """Minimizes a function of a vector on shards.

    `shards` holds the current point in the vector `point`. In one round trip
    the pair of the last step goes into the history and all dot products come
    back; in the next the direction is combined and the first trial point made.
    Each evaluation costs one more, for the slope.

    Args:
      shards: The `Shards`, made with `rows(memory)`.
      memory: Number of pairs.
      line_search: A `LineSearch`.
      damping: Whether a pair without enough curvature is damped (Powell 1978)
        instead of left out.
      gradient_tolerance: Converged when no element of the gradient is larger.
      value_tolerance: Converged when the value decreases by no more than this,
        relative to the value's size (at least 1). Not used with a fixed step.
      has_samples: Whether each point is evaluated on a sample of its own
        (multi-batch L-BFGS), which needs a fixed step.

    References:
      Liu and Nocedal, "On the limited memory BFGS method for large scale
      optimization", Mathematical Programming 1989. Berahas, Nocedal and Takac,
      "A multi-batch L-BFGS method for machine learning", NIPS 2016.
    """

    def __init__(
        self,
        shards,
        memory,
        line_search,
        damping=False,
        gradient_tolerance=1e-5,
        value_tolerance=2.2e-9,
        has_samples=False,
    ):
        self._shards = shards
        self._memory = pair_memory.PairMemory(memory)
        self._line_search = line_search
        self._damping = damping
        self._gradient_tolerance = gradient_tolerance
        self._value_tolerance = value_tolerance
        self._has_samples = has_samples
        # Number of the sample at the current point.
        self._sample = 0
        # Which of the two is the current point.
        self._now = 0
        # Of the current point: value, dot products of the history and the
        # gradient, its square, its largest element. None before it is known.
        self._known = None
        # Of the current point, when the function may have become another one:
        # the value and the square of the gradient that were known of it.
        self._before = None

    @classmethod
    def of(cls, shards, optimizer):
        """Makes one with the settings of an `LBFGS`."""
        return cls(
            shards,
            optimizer.memory,
            optimizer.line_search,
            optimizer.damping,
            optimizer.gradient_tolerance,
            optimizer.value_tolerance,
            optimizer.sample < 1,
        )

    @property
    def point(self):
        """Name of the vector that is the current point."""
        return POINTS[self._now]

    @property
    def trial(self):
        """Name of the vector that is tried."""
        return POINTS[1 - self._now]

    @property
    def value(self):
        """Value at the current point; None before it is known."""
        known = self._known or self._before
        return None if known is None else known[0]

    def moved(self):
        """The vector `point` was replaced: the function is to be evaluated."""
        self._known = self._before = None
        self._sample = 0
        self._memory.clear()

    def move_to(self, values):
        """Makes a vector of this process the point.

        Who still reads the point before finds that one whole.

        Args:
          values: Tensor `(number,)`.
        """
        self._shards.load(self.trial, values)
        self._now = 1 - self._now
        self.moved()

    def look_again(self):
        """The function may be another one: it is evaluated again.

        If it is, the pairs are forgotten.
        """
        if self._known is not None:
            value, _, square, _ = self._known
            self._before, self._known = (value, square), None

    def iterate(self, evaluate: Evaluate) -> Iteration:
        """Makes one iteration.

        Args:
          evaluate: Callable of the names of a point and of the vector that
            gets the gradient there; returns the value, a float. With samples
            also of the sample's number, and of the names of the vectors that
            get the gradients on what it shares with the one before and with
            the next.

        Returns:
          An `Iteration`.

        Raises:
          ValueError: The function, or its gradient, is not finite at the first
            point.
        """
        evaluations = 0
        # Not after `clear`: an iteration that is interrupted goes back to the
        # pairs of before.
        slot = self._memory.free_slot
        if self._known is None:
            self._look_around(evaluate)
            evaluations = 1
        if self._known[3] <= self._gradient_tolerance:
            return self._ended(Outcome.CONVERGED, 0.0, evaluations, False)
        restarted = False
        while True:
            slope, length, first = self._choose_direction()
            if slope < -_TINY * length * math.sqrt(self._known[2]):
                made = self._search(evaluate, slot, slope, length, first)
                evaluations += made[1]
                if made[0] is not None:
                    break
            if not self._memory.slots:
                return self._ended(Outcome.STUCK, 0.0, evaluations, restarted)
            self._memory.clear()
            restarted = True
        step, _, decrease = made
        done = self._known[3] <= self._gradient_tolerance
        if self._line_search.decreases:
            size = max(abs(self.value), abs(self.value + decrease), 1.0)
            done = done or decrease <= self._value_tolerance * size
        outcome = Outcome.CONVERGED if done else Outcome.MOVED
        return self._ended(outcome, step, evaluations, restarted)

    def _ended(self, outcome, step, evaluations, restarted):
        return Iteration(
            outcome, self.value, self._known[3], step, evaluations, restarted
        )

    def _look_around(self, evaluate):
        """Learns about a point that no iteration has led to."""
        gradient = GRADIENTS[self._now]
        value = self._evaluated(evaluate, self._now, self._sample)
        if not math.isfinite(value):
            raise ValueError(
                "The loss of the data set must be finite where the "
                f"minimization begins. Received: {value}"
            )
        (products,), *norms = self._shards.run(_of_gradient(gradient))
        if not math.isfinite(norms[0]):
            raise ValueError(
                "The gradient of the loss must be finite where the "
                "minimization begins. Received: one whose squares add up to "
                f"{norms[0]}"
            )
        self._known = value, products, *norms
        before, self._before = self._before, None
        if before and not np.allclose(
            before, (value, norms[0]), rtol=_ROUNDED, atol=0
        ):
            self._memory.clear()

    def _evaluated(self, evaluate, which, sample):
        """Evaluates one of the two points; returns the value."""
        names = POINTS[which], GRADIENTS[which]
        if self._has_samples:
            return evaluate(*names, sample, BEFORE, AFTER[which])
        return evaluate(*names)

    def _choose_direction(self):
        """Makes the direction, and the first trial point.

        Returns:
          The slope along the direction, its length, and the first step.
        """
        _, products, square, _ = self._known
        of_rows, of_gradient = self._memory.coefficients(products)
        first = 1.0 if self._memory.slots else 1.0 / math.sqrt(square)
        first *= self._line_search.step
        gradient = GRADIENTS[self._now]
        slope, length = self._shards.run(
            [
                commands.Combine(DIRECTION, HISTORY, of_rows),
                commands.Axpy(DIRECTION, of_gradient, gradient),
                *self._go(first),
                commands.Dot(DIRECTION, gradient),
                commands.Norm(DIRECTION),
            ]
        )
        return slope, length, first

    def _go(self, step):
        """The commands that make the trial point."""
        return [
            commands.Copy(self.trial, self.point),
            commands.Axpy(self.trial, step, DIRECTION),
        ]

    def _search(self, evaluate, slot, slope, length, first):
        """Searches along the direction, and goes where that has led to.

        Returns:
          The step, None if there is none; the number of evaluations; and by how
          much the value has decreased.
        """
        search = self._line_search.search(self.value, slope, first)
        step, evaluations = next(search), 0
        gradient = GRADIENTS[1 - self._now]
        while True:
            value = self._evaluated(evaluate, 1 - self._now, self._sample + 1)
            evaluations += 1
            (trial_slope,) = self._shards.run(
                [commands.Dot(gradient, DIRECTION)]
            )
            try:
                step = search.send((value, trial_slope))
            except StopIteration as end:
                if end.value is None:
                    return None, evaluations, 0.0
                break
            self._shards.run(self._go(step))
        decrease = self.value - value
        self._accept(slot, step, value, slope, trial_slope, length)
        return step, evaluations, decrease

    def _accept(self, slot, step, value, slope, trial_slope, length):
        """The trial point becomes the current one."""
        memory = self._memory
        old, new = GRADIENTS[self._now], GRADIENTS[1 - self._now]
        curvature = step * (trial_slope - slope)
        if self._has_samples:
            before, after = self._shards.run(
                [
                    commands.Dot(AFTER[self._now], DIRECTION),
                    commands.Dot(BEFORE, DIRECTION),
                ]
            )
            curvature = step * (after - before)
        part = self._part_kept(curvature, step * step * -slope, step * length)
        pair, others = [], ()
        if part:
            s, y = memory.rows_of(slot)
            pair = [
                # s, in the place of the direction.
                commands.Scale(DIRECTION, step),
                commands.SetRow(HISTORY, s, DIRECTION),
                # y, in the place of the old gradient.
                *self._change(old, new, part, step),
                commands.SetRow(HISTORY, y, old),
            ]
            others = (DIRECTION, old)
        (*pair_products, products), square, largest = self._shards.run(
            [*pair, *_of_gradient(new, others)]
        )
        if part:
            memory.add(slot, *pair_products)
        self._known = value, products, square, largest
        self._now = 1 - self._now
        self._sample += 1

    def _change(self, old, new, part, step):
        """The commands that make `part * y + (1 - part) * B s` of `old`.

        `B`, of which `s` is a step, has the product `-step * old` with it.
        """
        if not self._has_samples:
            return [
                commands.Scale(old, -part - (1 - part) * step),
                commands.Axpy(old, part, new),
            ]
        # On the same examples at both points.
        return [
            commands.Scale(old, -(1 - part) * step),
            commands.Axpy(old, part, BEFORE),
            commands.Axpy(old, -part, AFTER[self._now]),
        ]

    def _part_kept(self, curvature, expected, length):
        """The part of a gradient change that goes into the memory.

        Args:
          curvature: `s y`.
          expected: `s B s`, where `B` is the Hessian as far as it was known.
          length: Of `s`.

        Returns:
          The factor of `y` in `part * y + (1 - part) * B s`, a float; 0 where
          the pair is left out.
        """
        is_known = bool(self._memory.slots)
        if self._damping and is_known and curvature < _DAMPED * expected:
            return (1 - _DAMPED) * expected / (expected - curvature)
        return float(curvature > _TINY * length**2)

    def state(self):
        """Returns what `restore` needs, which JSON can hold."""
        known = None
        if self._known is not None:
            value, products, square, largest = self._known
            known = [value, products.tolist(), square, largest]
        return {
            "now": self._now,
            "known": known,
            "before": self._before,
            "memory": self._memory.state(),
            "sample": self._sample,
        }

    def restore(self, state, is_complete=True):
        """Becomes what another one was, whose vectors are on the shards.

        Args:
          state: From `state`.
          is_complete: Whether no iteration has begun since. Where one may
            have, the gradient is evaluated again: it may have become a
            gradient change. The iteration is the same to the bit.
        """
        self._now = state["now"]
        self._memory.restore(state["memory"])
        self._sample = state.get("sample", 0)
        self._known = None
        self._before = state.get("before")
        # With samples, a snapshot has no gradient on a part of one.
        is_complete = is_complete and not self._has_samples
        if state["known"] is None:
            return
        value, products, square, largest = state["known"]
        if is_complete:
            self._known = value, np.array(products), square, largest
        else:
            self._before = value, square


def _of_gradient(gradient, others=()):
    """The commands whose results are known of each current point.

    Args:
      gradient: Name of the gradient.
      others: Names of vectors whose dot products with the history are wanted
        as well; before those of the gradient.
    """
    return [
        commands.RowDots(HISTORY, (*others, gradient)),
        commands.Dot(gradient, gradient),
        commands.MaxNorm(gradient),
    ]
