"""What a weight is after batches whose gradients are known, by kind.

The weight begins with 0 and each gradient is taken off it once: SGD of rate 1,
and a loss whose gradient is the datum. Powers of two make sums that tell which
batches counted.
"""

import functools
import itertools

from tests.keras_programs.columns import KINDS
from tests.keras_programs.columns import PERIOD
from tests.keras_programs.table import Documented
from tests.keras_programs.table import Each
from tests.keras_programs.table import Loose

OWN = ((1.0, 2.0, 4.0, 8.0), (16.0, 32.0, 64.0, 128.0))
"""Each worker's batches, where nothing else is said."""


def linear(*fits):
    """Weights after some calls of `fit`.

    Args:
        *fits: of each call a pair: the gradients of each worker's batches.

    Returns:
        By kind, the weight.
    """
    return {
        "sum": -sum(sum(own) for fit in fits for own in fit),
        "mean": -sum(sum(_means(fit)) for fit in fits),
        "half": -sum(sum(own) for fit in fits for own in fit) / 2,
        "local": -sum(sum(_periods(fit)) for fit in fits),
        "alone": Each(
            tuple(-sum(sum(fit[worker]) for fit in fits) for worker in (0, 1))
        ),
    }


def _means(fit):
    """The mean of those workers that have a batch, of each step."""
    for step in itertools.zip_longest(*fit):
        there = [g for g in step if g is not None]
        yield sum(there) / len(there)


def _periods(fit):
    """The mean of the workers' changes, weighted by steps, of each period."""
    for begin in range(0, max(map(len, fit)), PERIOD):
        steps = [own[begin : begin + PERIOD] for own in fit]
        weights = [len(own) for own in steps]
        changes = [sum(own) for own in steps]
        pairs = zip(weights, changes, strict=True)
        yield sum(n * change for n, change in pairs) / sum(weights)


def left_over(expected):
    """The cell of SoftSync for a number of gradients that is odd."""
    return Documented(
        Loose(expected["half"]),
        "strategies.md",
        "at the end of `fit`, up to s - 1 gradients that do not fill an update",
    )


def fetched_over(value):
    """The cell of Downpour where a compiled optimizer's settings are nothing.

    Args:
        value: what a weight is by the servers' optimizer.
    """
    return Documented(value, "averaging.md", "a fetch overwrites the result")


def scaled(expected, factor):
    """All numbers of an expectation times a factor."""
    return {kind: factor * value for kind, value in expected.items()}


def together(*expected):
    """Of expectations by kind, one of lists."""
    by_kind = {kind: [e[kind] for e in expected] for kind in expected[0]}
    pairs = zip(*(each.values for each in by_kind["alone"]), strict=True)
    return {**by_kind, "alone": Each(tuple(map(list, pairs)))}


def alike(value):
    """The same for every kind."""
    return dict.fromkeys(KINDS, value)


def updates(steps):
    """Updates, where each of two workers makes so many steps."""
    return {
        "sum": 2 * steps,
        "mean": steps,
        "half": steps,
        "local": steps,
        "alone": steps,
        "sent": steps,
        "loose": 2 * steps,
    }


def by_updates(steps, function):
    """An expectation of gradients that are all alike, so order is nothing.

    Args:
        steps: of each of two workers.
        function: of a number of updates, gives what comes of them.
    """
    counts = updates(steps)
    del counts["loose"]
    made = {kind: function(number) for kind, number in counts.items()}
    return {**made, "sent": functools.partial(_twice, made["sent"])}


def _twice(value):
    """What two workers come to that each come to `value`."""
    return 2 * (value() if callable(value) else value)
