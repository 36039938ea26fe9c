"""A group's own checkpoints, and weights to compare."""

import numpy as np

from tests.codistillation.scripted_exchange import checkpoint

WEIGHTS = (
    np.random.default_rng(0).standard_normal((20, 30)).astype("float32"),
    np.linspace(0, 1, 30, dtype="float32"),
    np.array(7, "int64"),
)


def own(step=0, weights=WEIGHTS):
    return checkpoint(weights, group=0, step=step)


def assert_same(got, expected):
    for a, b in zip(got, expected, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
