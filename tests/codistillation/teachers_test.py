"""Who teaches inside `fit`: which teachers count, and in which mode."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.codistillation.classifiers import CLASSES
from tests.codistillation.classifiers import FEATURES
from tests.codistillation.classifiers import assert_same
from tests.codistillation.classifiers import data
from tests.codistillation.classifiers import deep
from tests.codistillation.classifiers import fit
from tests.codistillation.classifiers import linear
from tests.codistillation.classifiers import teachers_of
from tests.codistillation.classifiers import trained
from tfdist.codistillation import CodistillationLoss
from tfdist.codistillation import Codistilled
from tfdist.codistillation.teacher import Teacher
from tfdist.codistillation.weights import snapshot

layers = keras.layers


@pytest.mark.nightly
def test_teachers_are_in_inference_mode_and_stay_as_they_are():
    x, y = data(batches=3)
    peer = trained(deep(2), "adam")
    fit(peer, x, y, epochs=3)  # Its statistics are those of nobody else.
    student = deep(1)
    plain = trained(deep(1), keras.optimizers.SGD(0.0))
    fit(plain, x, y)
    model = trained(
        Codistilled(
            student,
            burn_in_steps=0,
            loss=CodistillationLoss("mean_squared_logits", from_logits=True),
        ),
        keras.optimizers.SGD(0.0),
    )
    (teacher,) = teachers_of(student, peer)
    asked = peer.predict(x, verbose=0)
    np.testing.assert_allclose(teacher.outputs(x), asked, rtol=1e-5, atol=1e-6)
    again = teacher.outputs(x)
    np.testing.assert_array_equal(again, teacher.outputs(x))

    model.set_teachers([teacher])
    fit(model, x, y)
    # Only the student's own forward moved its statistics and its seeds.
    assert_same(plain, student)
    for ours, theirs in zip(
        student.non_trainable_variables,
        plain.non_trainable_variables,
        strict=True,
    ):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())
    np.testing.assert_allclose(teacher.outputs(x), asked, rtol=1e-5, atol=1e-6)


def test_no_gradient_reaches_a_teacher():
    student = linear(1)
    (teacher,) = teachers_of(student, linear(2))
    x, y = data()
    model = trained(Codistilled(student, burn_in_steps=0))
    model.set_teachers([teacher])
    held = [weight for _, weight in teacher._weights]
    with tf.GradientTape() as tape:
        tape.watch(held)
        loss = model.compute_loss(x, y, model(x, training=True), None, True)
    *own, from_kernel, from_bias = tape.gradient(
        loss, [*student.trainable_variables, *held]
    )
    assert all(gradient is not None for gradient in own)
    assert from_kernel is None
    assert from_bias is None


@pytest.mark.nightly
def test_mean_is_over_those_that_are_available():
    x, y = data()
    expected = None
    for there in ([True, False], [True]):
        student = linear(1)
        model = trained(Codistilled(student, burn_in_steps=0))
        teachers = teachers_of(student, linear(2), linear(3))[: len(there)]
        for teacher, is_there in zip(teachers, there, strict=True):
            if not is_there:
                teacher.retire()
        model.set_teachers(teachers)
        fit(model, x, y)
        if expected is None:
            expected = student
    assert_same(expected, student)


@pytest.mark.nightly
def test_teachers_that_diverge_are_left_out():
    x, y = data()
    students = []
    for diverged in (0, 1, 2):
        student = linear(1)
        peers = [linear(2), linear(3), linear(4)]
        for peer in peers[:diverged]:
            # Its weights are finite, and what it predicts is not.
            peer.layers[0].kernel.assign(np.full((FEATURES, CLASSES), 3e38))
        model = trained(Codistilled(student, burn_in_steps=0))
        model.set_teachers(
            teachers_of(student, *(peers if diverged else peers[1:]))
        )
        fit(model, x, y)
        students.append(student)
    for one, other in zip(
        snapshot(students[0]), snapshot(students[1]), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-6)
    assert np.isfinite(snapshot(students[2])[0]).all()


class Inside(layers.Layer):
    """A layer that is made of another one."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def build(self, input_shape):
        self.inner.build(input_shape)

    def call(self, inputs):
        return self.inner(inputs)


@pytest.mark.parametrize("wrap", [lambda layer: layer, Inside])
def test_stateful_layers_are_refused(wrap):
    student = keras.Sequential(
        [
            keras.Input((3, 2), batch_size=4),
            wrap(layers.GRU(2, stateful=True)),
        ]
    )
    with pytest.raises(ValueError, match="'gru.*' is stateful"):
        Teacher(student)


@pytest.mark.nightly
def test_augmentation_is_the_same_for_students_and_teachers():
    x, y = data()
    student = linear(1)

    def train(**kwargs):
        model = trained(
            Codistilled(
                student,
                burn_in_steps=0,
                loss=CodistillationLoss("mean_squared_logits", from_logits=1),
                **kwargs,
            ),
            keras.optimizers.SGD(0.0),
        )
        model.set_teachers(teachers_of(student, student))
        return fit(model, x, y), model.evaluate(x, y, verbose=0)

    logs, evaluated = train()
    noisy, clean = train(augmentation=layers.GaussianNoise(0.9))
    assert noisy["loss"] != logs["loss"]
    # A teacher with the student's own weights agrees on the same input only.
    assert noisy["codistillation_loss"] == 0
    assert clean == evaluated
