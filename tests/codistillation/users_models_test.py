"""Models of all kinds are codistilled: outputs, masks, dtypes, own steps."""

import keras
import numpy as np
import pytest

from tests import nightly
from tests.codistillation import oracles
from tests.codistillation.classifiers import CLASSES
from tests.codistillation.classifiers import FEATURES
from tests.codistillation.classifiers import Own
from tests.codistillation.classifiers import assert_same
from tests.codistillation.classifiers import data
from tests.codistillation.classifiers import deep
from tests.codistillation.classifiers import fit
from tests.codistillation.classifiers import linear
from tests.codistillation.classifiers import teachers_of
from tests.codistillation.classifiers import trained
from tfdist import placement
from tfdist.codistillation import CodistillationLoss
from tfdist.codistillation import CodistillationMixin
from tfdist.codistillation import Codistilled

layers = keras.layers


@pytest.mark.nightly
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


@pytest.mark.nightly
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


@pytest.mark.nightly
@pytest.mark.parametrize("listed", ["loss_weights", "loss"])
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


class Counting(keras.Model):
    """With a metric that it updates itself."""

    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(CLASSES)
        self.rows = keras.metrics.Sum(name="rows")

    def call(self, inputs):
        self.rows.update_state(keras.ops.ones_like(inputs[:, 0]))
        return self.dense(inputs)


def test_metrics_of_the_student_s_own_are_told_and_begin_again():
    x, y = data(batches=2)
    model = trained(Codistilled(Counting(), burn_in_steps=9))
    for _ in range(2):
        assert fit(model, x, y)["rows"] == len(x)
    assert [metric.name for metric in model.metrics].count("rows") == 1


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


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("which", "build"),
    [
        ("all", functional),
        ("all", Branching),
        ("classes", functional),
        ("classes", Branching),
    ],
)
def test_several_outputs(which, build):
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


@pytest.mark.nightly
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


@pytest.mark.nightly
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


def test_the_student_s_policy_decides_if_the_loss_is_scaled():
    keras.config.set_dtype_policy("mixed_float16")
    try:
        half = linear(1)
    finally:
        keras.config.set_dtype_policy("float32")
    scaled = [
        isinstance(
            trained(Codistilled(student, burn_in_steps=0)).optimizer,
            keras.optimizers.LossScaleOptimizer,
        )
        for student in (half, linear(1))
    ]
    assert scaled == [True, False]


class OwnCodistilled(CodistillationMixin, Own):
    """What a user writes for it."""


@pytest.mark.nightly
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


def test_a_model_is_placed_after_it_is_wrapped():
    student = linear(1)
    placement.place(student, {"*": "CPU:1"})
    with pytest.raises(ValueError, match="wrap the model first"):
        Codistilled(student, burn_in_steps=0)
    student = linear(1)
    model = Codistilled(student, burn_in_steps=0)
    placement.place(model, {"*": "CPU:1"})
    trained(model)
    model.set_teachers(teachers_of(student, linear(2)))
    assert fit(model, *data())["codistillation_loss"] > 0
    assert {w.value.device[-5:] for w in student.weights} == {"CPU:1"}


def two_outputs(seed):
    keras.utils.set_random_seed(seed)
    inputs = keras.Input((FEATURES,))
    outputs = {name: layers.Dense(3, name=name)(inputs) for name in "ab"}
    return keras.Model(inputs, outputs)


@pytest.mark.parametrize(
    ("build", "loss", "weights"),
    nightly.also(
        [(linear, ["mse", "mae"], [0.5, 0.25])],
        [
            (
                two_outputs,
                {"a": ["mse", "mae"], "b": "mse"},
                {"a": [0.5, 0.25], "b": 2.0},
            )
        ],
    ),
)
def test_several_losses_of_one_output_need_one_of_codistillation(
    build, loss, weights
):
    x, _ = data()
    for psi in (None, CodistillationLoss("mean_squared_error")):
        student = build(1)
        y = keras.tree.map_structure(np.zeros_like, student(x))
        model = Codistilled(student, burn_in_steps=0, loss=psi)
        trained(model, keras.optimizers.SGD(0.0), loss, loss_weights=weights)
        model.set_teachers(teachers_of(student, build(2)))
        if psi is None:
            with pytest.raises(ValueError, match="several losses of one.*: 2"):
                fit(model, x, y)
        else:
            assert fit(model, x, y)["codistillation_loss"] > 0
