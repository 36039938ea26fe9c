"""SpecTrain's prediction, per optimizer."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import nightly
from tfdist.pipeline import prediction

OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1, momentum=0.5),
    "nesterov": lambda: keras.optimizers.SGD(0.1, momentum=0.5, nesterov=True),
    "rmsprop": lambda: keras.optimizers.RMSprop(0.01, rho=0.5, momentum=0.5),
    "adam": lambda: keras.optimizers.Adam(0.01, beta_1=0.5, beta_2=0.6),
    "amsgrad": lambda: keras.optimizers.Adam(
        0.01, beta_1=0.5, beta_2=0.6, amsgrad=True
    ),
    "adamw": lambda: keras.optimizers.AdamW(
        0.01, weight_decay=0.0, beta_1=0.5, beta_2=0.6
    ),
    "adamax": lambda: keras.optimizers.Adamax(0.01, beta_1=0.5, beta_2=0.6),
    "lion": lambda: keras.optimizers.Lion(0.01, beta_1=0.5, beta_2=0.6),
}
GRADIENTS = [np.float32([[0.3, -0.7], [2.0, 0.01]]), np.float32([-0.5])]


def variables():
    return [
        keras.Variable(np.float32([[1.0, 2.0], [3.0, 4.0]]), name="w"),
        keras.Variable(np.float32([5.0]), name="b"),
    ]


def train(optimizer, own, updates, gradients=GRADIENTS):
    for _ in range(updates):
        optimizer.apply([tf.constant(g) for g in gradients], own)


def predicted(optimizer, own, ahead, updates):
    found = prediction.predict(optimizer, own, ahead, tf.constant(updates))
    return [tensor.numpy() for tensor in found]


@pytest.mark.parametrize(
    "name",
    nightly.also(
        ["nesterov", "adam"], sorted({*OPTIMIZERS} - {"nesterov", "adam"})
    ),
)
def test_what_goes_on_as_it_does_is_predicted(name):
    # With the same gradient again and again, the average is the gradient.
    own, optimizer = variables(), OPTIMIZERS[name]()
    prediction.check(optimizer)
    optimizer.build(own)
    train(optimizer, own, 40)
    before = [v.numpy() for v in own]
    found = predicted(optimizer, own, 3, 40)
    for now, old in zip(own, before, strict=True):
        np.testing.assert_array_equal(now.numpy(), old)
    train(optimizer, own, 3)
    for prophecy, then, old in zip(found, own, before, strict=True):
        step = then.numpy() - old
        assert np.all(np.abs(step) > 1e-4)
        np.testing.assert_allclose(prophecy - old, step, rtol=1e-3)


@pytest.mark.parametrize("name", ["nesterov", "adam"])
@pytest.mark.parametrize(("ahead", "updates"), [(0, 2), (3, 0)])
def test_nothing_ahead_or_nothing_known_is_the_identity(name, ahead, updates):
    own, optimizer = variables(), OPTIMIZERS[name]()
    optimizer.build(own)
    train(optimizer, own, updates)
    found = predicted(optimizer, own, ahead, updates)
    for tensor, variable in zip(found, own, strict=True):
        np.testing.assert_array_equal(tensor, variable.numpy())


def test_sgd_is_the_papers_formula_with_keras_momentum():
    own, optimizer = variables()[1:], keras.optimizers.SGD(0.1, momentum=0.9)
    optimizer.build(own)
    velocity, weight = 0.0, 5.0  # eta * v of the paper is -velocity.
    for gradient in (1.0, -3.0, 0.5):
        train(optimizer, own, 1, [np.float32([gradient])])
        velocity = 0.9 * velocity - 0.1 * gradient
        weight += velocity
    found = predicted(optimizer, own, 4, 3)[0]
    np.testing.assert_allclose(found, [weight + 4 * velocity], rtol=1e-6)


def test_adam_corrects_the_bias_by_the_given_number_of_updates():
    # The learning rate halves after two updates, by that count as well; the
    # optimizer's own counter is at 1.
    own = variables()[1:]
    rate = keras.optimizers.schedules.PiecewiseConstantDecay([2], [0.1, 0.05])
    optimizer = keras.optimizers.Adam(rate, beta_1=0.5, beta_2=0.75)
    optimizer.build(own)
    train(optimizer, own, 1, [np.float32([2.0])])
    m, v, eps = 0.5 * 2, 0.25 * 4, 1e-7
    for updates, eta in ((2, 0.1), (3, 0.05)):
        correction = np.sqrt(1 - 0.75**updates) / (1 - 0.5**updates)
        step = eta * correction * m / (np.sqrt(v) + eps)
        found = predicted(optimizer, own, 2, updates)[0]
        expected = own[0].numpy() - 2 * step
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert int(optimizer.iterations) == 1


@pytest.mark.parametrize(
    "optimizer",
    [
        keras.optimizers.SGD(0.1),
        keras.optimizers.RMSprop(0.1),
        keras.optimizers.Adagrad(0.1),
    ],
    ids=lambda optimizer: type(optimizer).__name__,
)
def test_optimizers_without_momentum_are_refused(optimizer):
    name = type(optimizer).__name__
    with pytest.raises(ValueError, match=f"smoothed gradient.*{name}"):
        prediction.check(optimizer)


def test_amsgrad_goes_by_the_largest_variance():
    own = variables()[1:]
    optimizer = keras.optimizers.Adam(0.1, 0.5, 0.75, amsgrad=True)
    optimizer.build(own)
    m = v = largest = 0.0
    for gradient in (4.0, 0.0, 1.0):
        train(optimizer, own, 1, [np.float32([gradient])])
        m += (gradient - m) * 0.5
        v += (gradient**2 - v) * 0.25
        largest = max(largest, v)
    assert largest > v
    correction = np.sqrt(1 - 0.75**3) / (1 - 0.5**3)
    step = 0.1 * correction * m / (np.sqrt(largest) + 1e-7)
    found = predicted(optimizer, own, 2, 3)[0]
    np.testing.assert_allclose(found, own[0].numpy() - 2 * step, rtol=1e-6)
