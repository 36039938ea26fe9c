"""The added loss inside `fit`, against NumPy and against plain Keras."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.codistillation import on_two_devices
from tests.codistillation import oracles
from tests.codistillation.classifiers import BATCH
from tests.codistillation.classifiers import CLASSES
from tests.codistillation.classifiers import FROM_LOGITS
from tests.codistillation.classifiers import Own
from tests.codistillation.classifiers import assert_same
from tests.codistillation.classifiers import data
from tests.codistillation.classifiers import deep
from tests.codistillation.classifiers import fit
from tests.codistillation.classifiers import linear
from tests.codistillation.classifiers import teachers_of
from tests.codistillation.classifiers import trained
import tfdist
from tfdist.codistillation import CodistillationLoss
from tfdist.codistillation import Codistilled
from tfdist.codistillation.teacher import Teacher
from tfdist.codistillation.weights import snapshot


@pytest.mark.parametrize(
    ("distance", "weighted"),
    [("cross_entropy", True), ("mean_squared_logits", False)],
)
def test_step_is_the_paper_s(distance, weighted):
    rate, weight, temperature = 0.3, 0.7, 1.0
    if distance == "cross_entropy":
        temperature = 2.0
    x, y = data()
    examples = np.linspace(0.5, 2, BATCH) if weighted else np.ones(BATCH)
    student, *peers = (linear(seed) for seed in (1, 2, 3))
    kernel, bias = snapshot(student)
    z, *given = (
        x @ w + b for w, b in (snapshot(one) for one in (student, *peers))
    )

    settings = {"temperature": temperature}
    q = np.mean(
        [oracles.targets(one, distance, **settings) for one in given], axis=0
    )
    gradient = oracles.softmax(z) - np.eye(CLASSES)[y]
    gradient += weight * oracles.gradient(q, z, distance, **settings)
    gradient *= examples[:, None] / BATCH
    psi = oracles.distance(q, z, distance, **settings)

    model = trained(
        Codistilled(
            student,
            burn_in_steps=0,
            weight=weight,
            loss=CodistillationLoss(distance, from_logits=True, **settings),
        ),
        keras.optimizers.SGD(rate),
    )
    model.set_teachers(teachers_of(student, *peers))
    logs = fit(model, x, y, sample_weight=examples if weighted else None)

    new_kernel, new_bias = snapshot(student)
    np.testing.assert_allclose(
        new_kernel, kernel - rate * x.T @ gradient, rtol=1e-5, atol=1e-6
    )
    np.testing.assert_allclose(
        new_bias, bias - rate * gradient.sum(0), rtol=1e-5, atol=1e-6
    )
    np.testing.assert_allclose(
        logs["codistillation_loss"], (examples * psi).mean(), rtol=1e-5
    )
    phi = -np.log(oracles.softmax(z))[np.arange(BATCH), y]
    np.testing.assert_allclose(
        logs["loss"], (examples * (phi + weight * psi)).mean(), rtol=1e-5
    )


@pytest.mark.nightly
@pytest.mark.parametrize("weighted", [True, False])
def test_a_smaller_batch_counts_by_its_examples(weighted):
    x, y = data(batches=2)
    x, y = x[: BATCH + BATCH // 4], y[: BATCH + BATCH // 4]
    examples = np.linspace(0.5, 2, len(x)) if weighted else None
    (teacher,) = teachers_of(linear(1), linear(2))
    logs = []
    for teachers in ([], [teacher]):
        model = trained(
            Codistilled(linear(1), burn_in_steps=0), keras.optimizers.SGD(0.0)
        )
        model.set_teachers(teachers)
        logs.append(fit(model, x, y, sample_weight=examples))
    plain, taught = logs
    np.testing.assert_allclose(
        taught["codistillation_loss"], taught["loss"] - plain["loss"], rtol=1e-5
    )


def test_a_loss_of_each_example_has_the_distance_in_it_once():
    x, y = data()
    student = linear(1)
    (teacher,) = teachers_of(student, linear(2))
    totals = []
    for reduction in ("sum", None):
        model = trained(
            Codistilled(student, burn_in_steps=0),
            loss=keras.losses.SparseCategoricalCrossentropy(
                from_logits=True, reduction=reduction
            ),
        )
        model.set_teachers([teacher])
        loss = model.compute_loss(x, y, model(x, training=True), None, True)
        totals.append(np.sum(loss))
    np.testing.assert_allclose(totals[1], totals[0], rtol=1e-5)


@pytest.mark.nightly
def test_burn_in_is_exact_to_the_step():
    x, y = data(batches=6)

    def steps_of(model, watched):
        """Weights after each step, and the mean distance until then."""
        found = []

        def look(step, logs):
            found.append((snapshot(watched), logs.get("codistillation_loss")))

        watch = keras.callbacks.LambdaCallback(on_train_batch_end=look)
        fit(model, x, y, callbacks=[watch])
        return found

    plain, student = trained(deep(1), "adam"), deep(1)
    model = trained(Codistilled(student, burn_in_steps=4), "adam")
    model.set_teachers(teachers_of(student, deep(2)))
    # A dropout mask depends on how many were drawn before.
    expected, found = steps_of(plain, plain), steps_of(model, student)
    same = [
        all(map(np.array_equal, alone, own))
        for (alone, _), (own, _) in zip(expected, found, strict=True)
    ]
    assert same == [True] * 4 + [False] * 2
    assert [loss > 0 for _, loss in found] == [False] * 4 + [True] * 2


@pytest.mark.nightly
@pytest.mark.parametrize("why", ["none available", "no teachers"])
def test_without_teachers_it_is_plain_keras(why):
    x, y = data(batches=4)
    plain = trained(deep(1), "adam", metrics=["accuracy"])
    expected = fit(plain, x, y, epochs=2)
    student = deep(1)
    model = trained(
        Codistilled(student, burn_in_steps=0), "adam", metrics=["accuracy"]
    )
    if why == "none available":
        model.set_teachers([Teacher(student), Teacher(student)])
    logs = fit(model, x, y, epochs=2)
    assert_same(plain, student)
    assert {name: logs[name] for name in expected} == expected


@pytest.mark.nightly
def test_replicas_add_up_to_one_device():
    mirrored = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    one, two = on_two_devices.train(None), on_two_devices.train(mirrored)
    assert one["logs"].keys() == two["logs"].keys()
    for what, expected in one["logs"].items():
        np.testing.assert_allclose(two["logs"][what], expected, rtol=1e-5)
    np.testing.assert_allclose(two["evaluated"], one["evaluated"], rtol=1e-5)
    for a, b in zip(one["weights"], two["weights"], strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-6)


@pytest.mark.nightly
def test_gradient_accumulation_counts_updates():
    x, y = data(batches=6)
    student = linear(1)
    model = trained(
        Codistilled(student, burn_in_steps=2),
        keras.optimizers.SGD(0.0, gradient_accumulation_steps=2),
    )
    model.set_teachers(teachers_of(student, linear(2)))
    moved = [
        fit(model, x[:BATCH], y[:BATCH])["codistillation_loss"] > 0
        for _ in range(6)
    ]
    assert moved == [False] * 4 + [True] * 2


def test_weight_may_be_a_schedule_from_the_end_of_the_burn_in():
    x, y = data(batches=5)
    student = linear(1)
    ramp = keras.optimizers.schedules.PolynomialDecay(0.0, 2, 1.0)
    model = trained(
        Codistilled(
            student,
            burn_in_steps=2,
            weight=ramp,
            loss=CodistillationLoss("mean_squared_logits", from_logits=True),
        ),
        keras.optimizers.SGD(0.0),
    )
    model.set_teachers(teachers_of(student, linear(2)))
    losses = [fit(model, x[:BATCH], y[:BATCH])["loss"] for _ in range(5)]
    phi = losses[0]
    psi = losses[-1] - phi
    np.testing.assert_allclose(
        losses, [phi, phi, phi, phi + psi / 2, phi + psi], rtol=1e-5
    )


@pytest.mark.nightly
def test_evaluation_is_of_the_student_alone():
    x, y = data()
    with tfdist.AsyncStrategy().scope():
        student = linear(1)
        model = trained(
            Codistilled(student, burn_in_steps=0), metrics=["accuracy"]
        )
    model.set_teachers(teachers_of(student, linear(2)))
    monitor = tfdist.callbacks.ClusterMonitor(verbose=0)
    logs = fit(model, x, y, validation_data=(x, y), callbacks=[monitor])
    assert logs["cluster_accuracy"] == logs["accuracy"]
    assert "val_codistillation_loss" not in logs
    found = model.evaluate(x, y, return_dict=True, verbose=0)
    assert set(found) == {"loss", "accuracy"}
    assert logs["val_loss"] == found["loss"]
    expected = FROM_LOGITS(y, student.predict(x, verbose=0))
    np.testing.assert_allclose(found["loss"], expected, rtol=1e-6)


@pytest.mark.nightly
def test_ways_to_run_a_step():
    x, y = data(batches=4)
    results = []
    for given in (
        {},
        {"jit_compile": True, "steps_per_execution": 2},
        {"run_eagerly": True},
    ):
        student = linear(1)
        model = trained(Codistilled(student, burn_in_steps=2), **given)
        model.set_teachers(teachers_of(student, linear(2)))
        fit(model, x, y)
        results.append(snapshot(student))
    for expected, *others in zip(*results, strict=True):
        for got in others:
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.nightly
def test_files_are_those_of_the_student(tmp_path):
    x, y = data(batches=3)
    student = deep(1)
    model = trained(Codistilled(student, burn_in_steps=1), "adam")
    path = tmp_path / "best.keras"
    model.set_teachers(teachers_of(student, deep(2)))
    fit(model, x, y, callbacks=[keras.callbacks.ModelCheckpoint(path)])
    again = keras.saving.load_model(path)
    assert type(again) is keras.Sequential
    assert_same(student, again)
    # Training goes on from there as if it had not been interrupted.
    assert int(again.optimizer.iterations) == 3
    resumed = Codistilled(deep(3), burn_in_steps=1)
    trained(resumed, "adam")
    resumed.optimizer.build(resumed.trainable_variables)
    model.save_weights(tmp_path / "weights.weights.h5")
    resumed.load_weights(tmp_path / "weights.weights.h5")
    assert int(resumed.optimizer.iterations) == 3
    assert_same(student, resumed.student)
    # What would make a file of the whole says what to do.
    with pytest.raises(NotImplementedError, match="save its student"):
        model.get_config()


class HasMetrics(keras.Model):
    """Says itself which metrics it has."""

    @property
    def metrics(self):
        return []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"burn_in_steps": -1}, "burn_in_steps.*Received: burn_in_steps=-1"),
        ({"weight": -1.0}, "weight.*Received: weight=-1.0"),
        (
            {"loss": "mse"},
            "`loss` must be a CodistillationLoss.*Received: loss='mse'",
        ),
        ({"student": Own()}, "Own has its own train_step"),
        ({"student": HasMetrics()}, "HasMetrics has its own metrics"),
    ],
)
def test_malformed_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Codistilled(**{"student": linear(1), "burn_in_steps": 1, **arguments})


def test_what_cannot_be_distilled_is_refused_in_compile():
    with pytest.raises(ValueError, match="'Poisson'.*Say so: loss="):
        Codistilled(linear(1), burn_in_steps=1).compile("sgd", "poisson")
