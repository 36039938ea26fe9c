"""The loss of codistillation against NumPy."""

import hypothesis
from hypothesis import strategies as st
import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import laws
from tests.codistillation import oracles
from tfdist.codistillation.loss import ACTIVATIONS
from tfdist.codistillation.loss import DISTANCES
from tfdist.codistillation.loss import CodistillationLoss
from tfdist.codistillation.loss import suited_to

CASES = [
    (distance, activation, temperature)
    for distance in DISTANCES
    for activation in ACTIVATIONS
    for temperature in (1.0, 3.0)
    if not (
        distance.startswith("mean_squared")
        and (temperature != 1 or activation != "softmax")
    )
]


def logits(seed, shape=(5, 4)):
    """Logits of a student and of two teachers."""
    return 2 * np.random.default_rng(seed).standard_normal((3, *shape))


@pytest.mark.parametrize("shape", [(5, 4), (3, 2, 4)], ids=str)
@pytest.mark.parametrize(("distance", "activation", "temperature"), CASES)
def test_value_and_gradient_are_the_formula(
    distance, activation, temperature, shape
):
    student, *teachers = logits(1, shape)
    loss = CodistillationLoss(
        distance,
        activation=activation,
        from_logits=True,
        temperature=temperature,
        reduction=None,
        dtype="float64",
    )
    settings = {"activation": activation, "temperature": temperature}
    q = np.mean(
        [oracles.targets(z, distance, **settings) for z in teachers], axis=0
    )

    z = tf.Variable(student)
    given = [tf.Variable(one) for one in teachers]
    with tf.GradientTape() as tape:
        targets = sum(loss.targets(one) for one in given) / len(given)
        psi = loss.from_targets(targets, z)
    gradient, *none = tape.gradient(psi, [z, *given])

    np.testing.assert_allclose(
        psi, oracles.distance(q, student, distance, **settings), rtol=1e-12
    )
    np.testing.assert_allclose(
        gradient,
        oracles.gradient(q, student, distance, **settings),
        rtol=1e-10,
        atol=1e-12,
    )
    assert none == [None, None], "gradient into a teacher"


@hypothesis.given(
    seed=st.integers(0, 2**20),
    temperature=st.floats(0.2, 20),
    weights=st.lists(st.floats(0, 3), min_size=5, max_size=5),
)
@laws.settings(max_examples=20)
def test_by_itself_it_weights_and_reduces_as_keras_losses(
    seed, temperature, weights
):
    student, teacher, _ = logits(seed)
    loss = CodistillationLoss(
        from_logits=True, temperature=temperature, dtype="float64"
    )
    ours = loss(teacher, student, sample_weight=np.array(weights))
    # Keras's cross-entropy of the softened probabilities is the same.
    theirs = keras.losses.CategoricalCrossentropy(
        from_logits=True, dtype="float64"
    )(
        oracles.softmax(teacher / temperature),
        student / temperature,
        sample_weight=np.array(weights),
    )
    np.testing.assert_allclose(ours, temperature**2 * theirs, rtol=1e-6)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("distance", ["cross_entropy", "kl_divergence"])
def test_probabilities_give_what_their_logits_give(distance, activation):
    student, teacher, _ = logits(2)
    settings = {"activation": activation, "temperature": 2.0}
    of_logits = CodistillationLoss(distance, from_logits=True, **settings)
    of_probabilities = CodistillationLoss(distance, **settings)
    squash = {"softmax": oracles.softmax, "sigmoid": oracles.sigmoid}
    np.testing.assert_allclose(
        of_probabilities(
            squash[activation](teacher), squash[activation](student)
        ),
        of_logits(teacher, student),
        rtol=1e-4,
    )


def test_kl_divergence_is_zero_between_the_same():
    student = logits(3)[0]
    loss = CodistillationLoss("kl_divergence", from_logits=True)
    np.testing.assert_allclose(loss(student, student), 0, atol=1e-6)


def test_certain_teachers_give_finite_losses():
    certain = np.array([[1000.0, 0.0], [-1000.0, 0.0]])
    for distance in DISTANCES[:2]:
        loss = CodistillationLoss(distance, from_logits=True)
        assert np.isfinite(loss(certain, np.zeros([2, 2])))
    assert np.isfinite(CodistillationLoss()(np.eye(2)[:1], np.eye(2)[1:]))


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("distance", DISTANCES[:2])
def test_masked_classes_do_not_count(distance, activation):
    masked = tf.constant([-np.inf, 0, -np.inf, 0])
    student, teacher, _ = logits(5).astype("float32")
    loss = CodistillationLoss(
        distance, activation=activation, from_logits=True, reduction="sum"
    )

    def value_and_gradient(student, teacher):
        student = tf.Variable(student)
        with tf.GradientTape() as tape:
            psi = loss(teacher, student)
        return psi, tape.gradient(psi, student)

    psi, gradient = value_and_gradient(student + masked, teacher + masked)
    kept = [1, 3]
    expected = value_and_gradient(student[:, kept], teacher[:, kept])
    # A mean over classes of sigmoids, a sum over those of a softmax.
    scale = 2 if activation == "sigmoid" else 1
    np.testing.assert_allclose(scale * psi, expected[0], rtol=1e-5)
    np.testing.assert_allclose(
        scale * gradient.numpy()[:, kept], expected[1], rtol=1e-4, atol=1e-6
    )
    np.testing.assert_array_equal(gradient.numpy()[:, [0, 2]], 0)


def test_masked_steps_do_not_count():
    student, teacher, _ = logits(4, (2, 3, 4))
    loss = CodistillationLoss(from_logits=True)
    predictions = tf.constant(student, tf.float32)
    predictions._keras_mask = tf.constant(
        [[True, True, False], [True, False, False]]
    )
    rows = np.array([[0, 0, 1], [0, 1, 0]])
    q = oracles.targets(teacher, "cross_entropy")
    expected = oracles.distance(q, student, "cross_entropy")
    np.testing.assert_allclose(
        loss(teacher, predictions), expected[rows[0], rows[1]].mean(), rtol=1e-5
    )


def test_is_saved_like_any_loss():
    loss = CodistillationLoss("kl_divergence", temperature=2.0)
    again = keras.saving.deserialize_keras_object(
        keras.saving.serialize_keras_object(loss)
    )
    assert again.get_config() == loss.get_config()


@pytest.mark.parametrize(
    ("compiled", "distance", "activation", "from_logits"),
    [
        ("sparse_categorical_crossentropy", "cross_entropy", "softmax", False),
        (
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            "cross_entropy",
            "softmax",
            True,
        ),
        (keras.losses.categorical_crossentropy, "cross_entropy", "softmax", 0),
        ("binary_crossentropy", "cross_entropy", "sigmoid", False),
        ("mse", "mean_squared_error", "softmax", False),
        (keras.losses.Huber(), "mean_squared_error", "softmax", False),
    ],
)
def test_what_suits_a_compiled_loss(
    compiled, distance, activation, from_logits
):
    loss = suited_to(compiled)
    assert loss.distance == distance
    assert loss.activation == activation
    assert loss.from_logits == from_logits


def test_what_suits_has_the_same_reduction():
    compiled = keras.losses.SparseCategoricalCrossentropy(reduction="sum")
    assert suited_to(compiled).reduction == "sum"
    assert suited_to("mse").reduction == "sum_over_batch_size"


@pytest.mark.parametrize(
    ("compiled", "message"),
    [
        (
            keras.losses.SparseCategoricalCrossentropy(ignore_class=-1),
            "ignores class -1.*sample weight 0.*Say so: loss=",
        ),
        (keras.losses.CategoricalCrossentropy(axis=1), "axis 1.*Say so"),
    ],
)
def test_settings_that_teachers_cannot_have_are_asked_for(compiled, message):
    with pytest.raises(ValueError, match=message):
        suited_to(compiled)


def binary_crossentropy(y_true, y_pred):
    """A user's, of logits."""


class Huber(keras.losses.Loss):
    """A user's."""


@pytest.mark.parametrize(
    "compiled",
    ["poisson", lambda a, b: 0, "nonsense", binary_crossentropy, Huber()],
)
def test_what_suits_no_known_loss_is_asked_for(compiled):
    with pytest.raises(ValueError, match="Say so: loss="):
        suited_to(compiled)


@pytest.mark.parametrize(
    "arguments",
    [
        {"distance": "cosine"},
        {"temperature": 0},
        {"distance": "mean_squared_logits", "temperature": 2.0},
    ],
)
def test_malformed_arguments_are_refused(arguments):
    name = list(arguments)[-1]
    with pytest.raises(ValueError, match=f"{name}.*Received: {name}="):
        CodistillationLoss(**arguments)
