"""Line searches: how far to go along a direction.

A search is a generator of steps. It is sent the value and the slope at each,
so that it does not know how, or where, these are computed.
"""

from collections.abc import Generator
import dataclasses
import math

from tfdist import checks
from tfdist import comparable

Search = Generator[float, tuple[float, float], float | None]

# A step that is nearer to an end of its bracket is moved away from it.
_MARGIN = 0.1
# Two values that differ by less, relative to the first, may be the same.
_ROUNDING = 1e-7
# Bounds of the next step when the bracket is not known yet, times the last.
_LEAST_GROWTH, _MOST_GROWTH = 2.0, 10.0


class LineSearch(comparable.Comparable):
    """A base.

    Attributes:
      step: Factor of the first step that is tried.
      decreases: Whether the function is lower where a search leads to.
    """

    step = 1.0
    decreases = True

    def search(self, value: float, slope: float, first: float) -> Search:
        """Searches for a step.

        Args:
          value: The function where the search begins.
          slope: Its derivative along the direction there, negative.
          first: The first step to try, more than 0.

        Yields:
          A step, more than 0. Sent back: value and slope there. A value that is
          not finite means that the step is too long.

        Returns:
          The step to take, which is the last one that was yielded; None where
          there is none that decreases the function enough.
        """
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class _Point:
    step: float
    value: float
    slope: float


class StrongWolfe(LineSearch):
    """A step that satisfies the strong Wolfe conditions.

    `f(x + a d) <= f(x) + decrease a g d` and
    `|g(x + a d) d| <= curvature |g d|`: found by bracketing and cubic
    interpolation (Nocedal and Wright 2006, algorithms 3.5 and 3.6). They
    guarantee `s y > 0`, so that L-BFGS can use each pair.

    Args:
      decrease: More than 0 and less than `curvature`.
      curvature: Less than 1; 0.9 is usual for quasi-Newton methods.
      max_evaluations: Steps that are tried at most. Then the best of them is
        taken, if it satisfies the first condition.
    """

    def __init__(
        self,
        decrease: float = 1e-4,
        curvature: float = 0.9,
        max_evaluations: int = 20,
    ):
        for name, value in (("decrease", decrease), ("curvature", curvature)):
            checks.positive(f"StrongWolfe: {name}", value)
        if not decrease < curvature < 1:
            raise ValueError(
                "Arguments `decrease` and `curvature` must be 0 < decrease < "
                f"curvature < 1. Received: decrease={decrease!r}, "
                f"curvature={curvature!r}"
            )
        self.decrease = decrease
        self.curvature = curvature
        self.max_evaluations = checks.count("max_evaluations", max_evaluations)

    def search(self, value: float, slope: float, first: float) -> Search:
        """See `LineSearch.search`."""
        start = previous = _Point(0.0, value, slope)
        step = first
        for tried in range(1, self.max_evaluations + 1):
            point = _at(step, (yield step))
            is_first = previous is start
            too_high = not self._decreases(start, point)
            if too_high or (not is_first and point.value >= previous.value):
                return (
                    yield from self._zoom(start, previous, point, point, tried)
                )
            if self._is_flat(start, point):
                return step
            if point.slope >= 0:
                return (
                    yield from self._zoom(start, point, previous, point, tried)
                )
            lowest = _lowest_of_cubic(previous, point)
            if lowest is None or lowest <= step:
                lowest = math.inf
            step = min(max(lowest, _LEAST_GROWTH * step), _MOST_GROWTH * step)
            previous = point
        # It decreases still; the last one is the lowest.
        return previous.step

    def _zoom(self, start, low, high, last, tried):
        """Algorithm 3.6.

        Args:
          start: The `_Point` at 0.
          low: That of the lower end of the bracket, from which it decreases
            toward the other.
          high: The other end.
          last: The one that was evaluated last.
          tried: Number of steps tried so far.
        """
        while tried < self.max_evaluations:
            step = _between(low, high)
            if step in (low.step, high.step):
                break  # There is no number between them.
            point = last = _at(step, (yield step))
            tried += 1
            if not self._decreases(start, point) or point.value >= low.value:
                high = point
                continue
            if self._is_flat(start, point):
                return step
            if point.slope * (high.step - low.step) >= 0:
                high = low
            low = point
        if not low.step:
            return None
        if low is not last:
            yield low.step
        return low.step

    def _decreases(self, start, point):
        return _decreases(self.decrease, start, point)

    def _is_flat(self, start, point):
        return abs(point.slope) <= -self.curvature * start.slope


class Armijo(LineSearch):
    """The first step, shortened until it decreases the function enough.

    `f(x + a d) <= f(x) + decrease a g d`. One evaluation where the first step
    is good, but `s y` may be negative.

    Args:
      decrease: More than 0 and less than 1.
      shrink: The least and most factor by which a step is shortened, to the
        minimum of the parabola through what is known.
      max_evaluations: Steps that are tried at most.
    """

    def __init__(
        self,
        decrease: float = 1e-4,
        shrink: tuple[float, float] = (0.1, 0.5),
        max_evaluations: int = 20,
    ):
        self.decrease = checks.in_range(
            "Armijo: decrease", decrease, below=1.0, positive=True
        )
        if not 0 < shrink[0] <= shrink[1] < 1:
            raise ValueError(
                "Argument `shrink` must be two increasing numbers between 0 "
                f"and 1. Received: shrink={shrink!r}"
            )
        self.shrink = tuple(shrink)
        self.max_evaluations = checks.count("max_evaluations", max_evaluations)

    def search(self, value: float, slope: float, first: float) -> Search:
        """See `LineSearch.search`."""
        start, step = _Point(0.0, value, slope), first
        for _ in range(self.max_evaluations):
            point = _at(step, (yield step))
            if _decreases(self.decrease, start, point):
                return step
            # The parabola through value and slope at 0, and this value.
            factor = 0.0
            if math.isfinite(point.value):
                rise = point.value - value - step * slope
                factor = -slope * step / (2 * rise)
            least, most = self.shrink
            step *= min(max(factor, least), most)
        return None


class FixedStep(LineSearch):
    """The first step, whatever the function is there.

    One evaluation for each iteration. Nothing makes sure that the function
    decreases, so that training may diverge. The step is given up only where
    the function is not finite.

    Args:
      step: Its length, more than 0, times that of the direction; times
        `1 / |g|` as long as there are no pairs.
    """

    decreases = False

    def __init__(self, step: float = 1.0):
        self.step = checks.positive("step", step)

    def search(self, value: float, slope: float, first: float) -> Search:
        """See `LineSearch.search`."""
        point = _at(first, (yield first))
        return first if math.isfinite(point.value) else None


_NAMES = {"strong_wolfe": StrongWolfe, "armijo": Armijo, "fixed": FixedStep}


def of(given: str | dict | LineSearch) -> LineSearch:
    """Returns the line search that an argument means.

    Args:
      given: A name, a dict from `config_of`, or a `LineSearch`.

    Raises:
      ValueError: It is none of these.
    """
    if type(given) in _NAMES.values():
        return given
    if isinstance(given, str) and given in _NAMES:
        return _NAMES[given]()
    if isinstance(given, dict):
        settings = dict(given)
        return _NAMES[settings.pop("name")](**settings)
    raise ValueError(
        f"Argument `line_search` must be one of {', '.join(_NAMES)}, or a "
        f"{', '.join(kind.__name__ for kind in _NAMES.values())} of "
        f"tfdist.sandblaster. Received: line_search={given!r}"
    )


def config_of(search: LineSearch) -> dict:
    """Returns the name and settings of a line search, a dict."""
    (name,) = (n for n, kind in _NAMES.items() if type(search) is kind)
    return {"name": name, **vars(search)}


def _at(step, answer):
    """The `_Point` of a step, whose value is infinite if it is not finite."""
    value, slope = answer
    if not (math.isfinite(value) and math.isfinite(slope)):
        return _Point(step, math.inf, math.inf)
    return _Point(step, value, slope)


def _decreases(decrease, start, point):
    """Whether the value at a point is low enough.

    Near a minimum rounding hides the decrease. Then the slope tells, which for
    a parabola means the same (the approximate Wolfe condition: Hager and
    Zhang, "A new conjugate gradient method with guaranteed descent", 2005).

    Args:
      decrease: The part of what the slope promises.
      start: The `_Point` at 0.
      point: The other one.
    """
    if point.value <= start.value + decrease * point.step * start.slope:
        return True
    may_be_same = point.value <= start.value + _ROUNDING * abs(start.value)
    return may_be_same and point.slope <= (2 * decrease - 1) * start.slope


def _between(low, high):
    """The next step in a bracket, not too near to its ends."""
    step = None
    if math.isfinite(high.value):
        step = _lowest_of_cubic(low, high)
    width = abs(high.step - low.step)
    least = min(low.step, high.step) + _MARGIN * width
    most = max(low.step, high.step) - _MARGIN * width
    if step is None or not least <= step <= most:
        return (low.step + high.step) / 2
    return step


def _lowest_of_cubic(one, other):
    """The minimum of the cubic through two points with their slopes.

    Nocedal and Wright 2006, equation 3.59.

    Returns:
      A step; None where there is none.
    """
    width = other.step - one.step
    d1 = one.slope + other.slope - 3 * (other.value - one.value) / width
    square = d1 * d1 - one.slope * other.slope
    if not square >= 0:
        return None
    d2 = math.copysign(math.sqrt(square), width)
    below = other.slope - one.slope + 2 * d2
    if not below:
        return None
    return other.step - width * (other.slope + d2 - d1) / below
