"""The factor of late gradients.

Zhang et al. 2016, equation 3 (papers.md 3a): alpha0 / tau for tau > 0, alpha0
for tau = 0.
"""

import pytest
import tensorflow as tf

from tfdist.correction import InverseStaleness


@pytest.mark.parametrize(
    ("staleness", "expected"),
    [(0, 1.0), (1, 1.0), (2, 0.5), (3, 1 / 3), (1000, 0.001)],
)
def test_gradient_counts_by_its_staleness(staleness, expected):
    scale = InverseStaleness().scale(tf.constant(staleness, tf.int64))
    assert scale.dtype == tf.float64
    assert scale.shape == []
    assert scale.numpy() == expected


def test_factor_scales_all():
    correction = InverseStaleness(factor=0.6)
    late = [
        correction.scale(tf.constant(tau, tf.int64)).numpy() for tau in range(4)
    ]
    assert late == pytest.approx([0.6, 0.6, 0.3, 0.2], rel=1e-15)


def test_scale_can_be_compiled():
    compiled = tf.function(
        InverseStaleness(2).scale,
        input_signature=[tf.TensorSpec([], tf.int64)],
        autograph=False,
    )
    assert compiled(tf.constant(4, tf.int64)).numpy() == 0.5


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf")])
def test_factor_must_be_positive_and_finite(value):
    with pytest.raises(ValueError) as error:
        InverseStaleness(value)
    assert str(error.value) == (
        "Argument `factor` of InverseStaleness must be a number greater than 0 "
        f"and finite. Received: factor={value!r}"
    )


def test_repr_tells_corrections_apart():
    assert repr(InverseStaleness()) == "InverseStaleness(factor=1)"
    assert repr(InverseStaleness(0.25)) == "InverseStaleness(factor=0.25)"
