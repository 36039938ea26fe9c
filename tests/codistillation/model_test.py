"""The added loss inside `fit`, against NumPy and against plain Keras."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.codistillation import on_two_devices
from tests.codistillation import oracles
from tfdist.codistillation import CodistillationLoss
from tfdist.codistillation import CodistillationMixin
from tfdist.codistillation import Codistilled
from tfdist.codistillation.teacher import Teacher
from tfdist.codistillation.weights import snapshot

layers = keras.layers
FROM_LOGITS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
BATCH, FEATURES, CLASSES = 8, 5, 3


def data(seed=0, batches=1):
    stream = np.random.default_rng(seed)
    x = stream.standard_normal((BATCH * batches, FEATURES)).astype("float32")
    return x, stream.integers(0, CLASSES, len(x))


def linear(seed):
    keras.utils.set_random_seed(seed)
    return keras.Sequential([keras.Input((FEATURES,)), layers.Dense(CLASSES)])


def deep(seed):
    """With all that inference leaves out."""
    keras.utils.set_random_seed(seed)
    return keras.Sequential(
        [
            keras.Input((FEATURES,)),
            layers.Dense(16, activation="relu"),
            layers.BatchNormalization(momentum=0.5),
            layers.Dropout(0.5),
            layers.Dense(CLASSES),
        ]
    )


def trained(model, optimizer="sgd", loss=FROM_LOGITS, **kwargs):
    model.compile(optimizer, loss, **kwargs)
    return model


def teachers_of(student, *models):
    """Teachers with the weights of `models`."""
    made = [Teacher(student) for _ in models]
    for teacher, model in zip(made, models, strict=True):
        teacher.install(snapshot(model))
    return made


def fit(model, x, y, **kwargs):
    """Trains on all of it once, in order; returns the logs."""
    history = model.fit(
        x, y, batch_size=BATCH, shuffle=False, verbose=0, **kwargs
    )
    return {name: values[-1] for name, values in history.history.items()}


def assert_same(one, other):
    for a, b in zip(snapshot(one), snapshot(other), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("distance", ["cross_entropy", "mean_squared_logits"])
@pytest.mark.parametrize("weighted", [False, True])
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


def test_burn_in_is_exact_to_the_step():
    x, y = data(batches=6)
    plain = trained(deep(1), "adam")
    student = deep(1)
    model = trained(Codistilled(student, burn_in_steps=4), "adam")
    model.set_teachers(teachers_of(student, deep(2)))
    for step in range(6):
        batch = slice(step * BATCH, (step + 1) * BATCH)
        # A dropout mask depends on how many were drawn before.
        fit(plain, x[batch], y[batch])
        logs = fit(model, x[batch], y[batch])
        if step < 4:
            assert_same(plain, student)
            assert logs["codistillation_loss"] == 0
        else:
            assert logs["codistillation_loss"] > 0
    assert not np.array_equal(snapshot(plain)[0], snapshot(student)[0])


@pytest.mark.parametrize("why", ["no teachers", "none available", "weight 0"])
def test_without_teachers_it_is_plain_keras(why):
    x, y = data(batches=4)
    plain = trained(deep(1), "adam", metrics=["accuracy"])
    expected = fit(plain, x, y, epochs=2)
    student = deep(1)
    model = trained(
        Codistilled(
            student, burn_in_steps=0, weight=0.0 if why == "weight 0" else 1.0
        ),
        "adam",
        metrics=["accuracy"],
    )
    if why == "none available":
        model.set_teachers([Teacher(student), Teacher(student)])
    elif why == "weight 0":
        model.set_teachers(teachers_of(student, deep(2)))
    logs = fit(model, x, y, epochs=2)
    assert_same(plain, student)
    assert {name: logs[name] for name in expected} == expected


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


def test_inputs_reach_the_student_with_the_dtype_they_have():
    # In half precision these would all be infinite.
    x = np.array([[1e5], [2e5], [3e5], [4e5]] * 2, "float32")
    y = np.arange(8) % CLASSES
    keras.config.set_dtype_policy("mixed_float16")
    try:
        losses = []
        for wrap in (False, True):
            keras.utils.set_random_seed(1)
            student = keras.Sequential(
                [
                    keras.Input((1,)),
                    layers.Rescaling(1e-5, dtype="float32"),
                    layers.Dense(CLASSES),
                ]
            )
            model = student
            if wrap:
                model = Codistilled(student, burn_in_steps=0)
            trained(model)
            if wrap:
                model.set_teachers(teachers_of(student, student))
            logs = fit(model, x, y)
            losses.append(logs["loss"] - logs.get("codistillation_loss", 0))
    finally:
        keras.config.set_dtype_policy("float32")
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-3)


def test_inputs_that_are_left_out():
    x, y = data()
    keras.utils.set_random_seed(1)
    inputs = {
        "a": keras.Input((FEATURES,)),
        "b": keras.Input((FEATURES,), optional=True),
    }

    class AddIfThere(layers.Layer):
        def call(self, a, b=None):
            return a if b is None else a + b

    hidden = AddIfThere()(inputs["a"], inputs["b"])
    student = keras.Model(inputs, layers.Dense(CLASSES)(hidden))
    model = trained(Codistilled(student, burn_in_steps=0))
    model.set_teachers(teachers_of(student, student))
    logs = fit(model, {"a": x, "b": None}, y)
    assert logs["codistillation_loss"] > 0


@pytest.mark.parametrize("listed", ["loss", "loss_weights"])
def test_lists_for_outputs_in_a_dict_are_in_keras_s_order(listed):
    x, y = data()
    targets = {"value": x[:, :1], "classes": y}
    arguments = {
        "loss": {"value": "mse", "classes": "sparse_categorical_crossentropy"},
        "loss_weights": {"value": 10.0, "classes": 1.0},
    }
    results = []
    for given in (
        arguments,
        {
            **arguments,
            listed: [arguments[listed][n] for n in ("classes", "value")],
        },
    ):
        keras.utils.set_random_seed(1)
        student, peer = Branching(), Branching()
        peer(x)
        model = Codistilled(student, burn_in_steps=0)
        model.compile(keras.optimizers.SGD(0.0), **given)
        model.predict(x, verbose=0)
        model.set_teachers(teachers_of(student, peer))
        results.append(fit(model, x, targets))
    assert results[0]["loss"] == results[1]["loss"]
    assert (
        results[0]["codistillation_loss"] == results[1]["codistillation_loss"]
    )


def test_replicas_add_up_to_one_device():
    mirrored = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    one, two = on_two_devices.train(None), on_two_devices.train(mirrored)
    assert one["logs"].keys() == two["logs"].keys()
    for what, expected in one["logs"].items():
        np.testing.assert_allclose(two["logs"][what], expected, rtol=1e-5)
    np.testing.assert_allclose(two["evaluated"], one["evaluated"], rtol=1e-5)
    for a, b in zip(one["weights"], two["weights"], strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-6)


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


def test_stateful_layers_are_refused():
    student = keras.Sequential(
        [
            keras.Input((3, 2), batch_size=4),
            layers.GRU(2, stateful=True),
        ]
    )
    with pytest.raises(ValueError, match="'gru.*' is stateful"):
        Teacher(student)


def test_a_step_that_hides_the_input_is_refused():
    class Hides(CodistillationMixin, keras.Sequential):
        def train_step(self, batch):
            x, y = batch
            y_pred = self(x, training=True)
            self.compute_loss(y=y, y_pred=y_pred)

    model = Hides([keras.Input((FEATURES,)), layers.Dense(CLASSES)])
    model.configure_codistillation(burn_in_steps=9)
    trained(model)
    with pytest.raises(ValueError, match="calls compute_loss without x"):
        fit(model, *data())


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


def test_evaluation_is_of_the_student_alone():
    x, y = data()
    student = linear(1)
    model = trained(Codistilled(student, burn_in_steps=0), metrics=["accuracy"])
    model.set_teachers(teachers_of(student, linear(2)))
    logs = fit(model, x, y, validation_data=(x, y))
    found = model.evaluate(x, y, return_dict=True, verbose=0)
    assert set(found) == {"loss", "accuracy"}
    assert logs["val_loss"] == found["loss"]
    expected = FROM_LOGITS(y, student.predict(x, verbose=0))
    np.testing.assert_allclose(found["loss"], expected, rtol=1e-6)


class Branching(keras.Model):
    """Two outputs, in a dict."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.body = layers.Dense(4, activation="relu")
        self.classes = layers.Dense(CLASSES, activation="softmax")
        self.value = layers.Dense(1)

    def call(self, inputs):
        hidden = self.body(inputs)
        return {"value": self.value(hidden), "classes": self.classes(hidden)}


def functional():
    inputs = keras.Input((FEATURES,))
    hidden = layers.Dense(4, activation="relu")(inputs)
    return keras.Model(
        inputs,
        [
            layers.Dense(1, name="value")(hidden),
            layers.Dense(CLASSES, activation="softmax", name="classes")(hidden),
        ],
    )


@pytest.mark.parametrize("build", [Branching, functional])
@pytest.mark.parametrize("which", ["all", "classes"])
def test_several_outputs(build, which):
    x, y = data()
    targets = {"value": x[:, :1], "classes": y}
    keras.utils.set_random_seed(1)
    student, peer = build(), build()
    loss = None
    if which == "classes":
        loss = {"classes": CodistillationLoss()}
    model = trained(
        Codistilled(student, burn_in_steps=0, weight=2.0, loss=loss),
        keras.optimizers.SGD(0.0),
        {"value": "mse", "classes": "sparse_categorical_crossentropy"},
        loss_weights={"value": 0.5, "classes": 3.0},
    )
    if which == "all":
        predicted = [model.predict(x, verbose=0), peer.predict(x, verbose=0)]
    else:
        predicted = [student(x), peer(x)]
    if build is functional:
        predicted = [dict(zip(targets, p, strict=True)) for p in predicted]
    ours, theirs = (
        {name: np.array(one) for name, one in p.items()} for p in predicted
    )
    psi = -3 * np.mean((theirs["classes"] * np.log(ours["classes"])).sum(-1))
    if which == "all":
        psi += 0.5 * np.mean((ours["value"] - theirs["value"]) ** 2)
    model.set_teachers(teachers_of(student, peer))
    logs = fit(model, x, targets)
    phi = model.evaluate(x, targets, verbose=0, return_dict=True)["loss"]
    np.testing.assert_allclose(logs["codistillation_loss"], psi, rtol=1e-5)
    np.testing.assert_allclose(logs["loss"], phi + 2 * psi, rtol=1e-5)


def test_language_model_with_masked_steps():
    tokens = np.array([[1, 2, 3, 0], [4, 5, 0, 0]] * 4)

    def build(seed):
        keras.utils.set_random_seed(seed)
        return keras.Sequential(
            [
                keras.Input((None,), dtype="int32"),
                layers.Embedding(6, 4, mask_zero=True),
                layers.GRU(4, return_sequences=True),
                layers.Dense(6),
            ]
        )

    plain = trained(build(1), keras.optimizers.SGD(0.0))
    student, peer = build(1), build(2)
    model = trained(
        Codistilled(student, burn_in_steps=0), keras.optimizers.SGD(0.0)
    )
    model.set_teachers(teachers_of(student, peer))
    logs = fit(model, tokens, tokens)
    psi = oracles.distance(
        oracles.softmax(peer.predict(tokens, verbose=0)),
        student.predict(tokens, verbose=0),
        "cross_entropy",
    )[tokens > 0].mean()
    np.testing.assert_allclose(logs["codistillation_loss"], psi, rtol=1e-5)
    phi = fit(plain, tokens, tokens)["loss"]
    np.testing.assert_allclose(logs["loss"], phi + psi, rtol=1e-5)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision(policy):
    x, y = data()
    keras.config.set_dtype_policy(policy)
    try:
        student = deep(1)
        model = trained(Codistilled(student, burn_in_steps=0), "adam")
        model.set_teachers(teachers_of(student, deep(2)))
        logs = fit(model, x, y)
    finally:
        keras.config.set_dtype_policy("float32")
    assert np.isfinite(logs["loss"])
    assert 0.5 < logs["codistillation_loss"] < 5


@pytest.mark.parametrize(
    "settings",
    [{"jit_compile": True}, {"run_eagerly": True}, {"steps_per_execution": 2}],
    ids=lambda settings: next(iter(settings)),
)
def test_ways_to_run_a_step(settings):
    x, y = data(batches=4)
    results = []
    for given in ({}, settings):
        student = linear(1)
        model = trained(Codistilled(student, burn_in_steps=2), **given)
        model.set_teachers(teachers_of(student, linear(2)))
        fit(model, x, y)
        results.append(snapshot(student))
    for expected, got in zip(*results, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


class Own(keras.Model):
    """With a step and a loss of its own."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dense = layers.Dense(CLASSES)

    def call(self, inputs, training=False):
        return self.dense(inputs)

    def compute_loss(self, x, y, y_pred, sample_weight=None):
        return 2 * super().compute_loss(x, y, y_pred, sample_weight)

    def train_step(self, batch):
        x, y = batch
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(x=x, y=y, y_pred=y_pred)
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {"own": loss, **self.compute_metrics(x, y, y_pred)}


class OwnCodistilled(CodistillationMixin, Own):
    """What a user writes for it."""


def test_models_with_steps_of_their_own(tmp_path):
    x, y = data()
    student = OwnCodistilled()
    student.configure_codistillation(burn_in_steps=1)
    trained(student, keras.optimizers.SGD(0.0))
    student(x)
    keras.utils.set_random_seed(5)
    peer = Own()
    peer(x)
    student.set_teachers(teachers_of(student, peer))
    first = fit(student, x, y)
    second = fit(student, x, y)
    psi = oracles.distance(
        oracles.softmax(peer.predict(x, verbose=0)),
        student.predict(x, verbose=0),
        "cross_entropy",
    ).mean()
    np.testing.assert_allclose(second["own"] - first["own"], psi, rtol=1e-4)
    student.save(tmp_path / "model.keras")
    again = keras.saving.load_model(
        tmp_path / "model.keras",
        custom_objects={"OwnCodistilled": type(student)},
    )
    assert_same(student, again)


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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"burn_in_steps": -1}, "burn_in_steps.*came: -1"),
        ({"burn_in_steps": 2.5}, "burn_in_steps.*came: 2.5"),
        ({"weight": -1.0}, "weight.*came: -1.0"),
        ({"weight": float("nan")}, "weight.*came: nan"),
        ({"loss": "mse"}, "loss must be a CodistillationLoss.*came: 'mse'"),
        ({"student": 3}, "student must be a keras.Model, came: 3"),
        ({"student": Own()}, "Own has a train_step of its own"),
    ],
)
def test_malformed_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Codistilled(**{"student": linear(1), "burn_in_steps": 1, **arguments})


def test_what_cannot_be_distilled_is_refused_in_compile():
    with pytest.raises(ValueError, match="'Poisson'.*Say so: loss="):
        Codistilled(linear(1), burn_in_steps=1).compile("sgd", "poisson")


def test_outputs_that_do_not_exist_are_refused():
    student = linear(1)
    model = trained(
        Codistilled(
            student, burn_in_steps=0, loss={"nose": CodistillationLoss()}
        )
    )
    model.set_teachers(teachers_of(student, linear(2)))
    with pytest.raises(ValueError, match="does not have: \\['nose'\\]"):
        fit(model, *data())
