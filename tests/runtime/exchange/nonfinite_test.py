"""Updates with NaN or Inf, in one process: what they leave behind.

The oracle is the same training without the batches that have them.
"""

import functools
import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import nightly
import tfdist
from tfdist import averaging
from tfdist import correction
from tfdist import synchronization

STEPS, POISONED = 7, (2, 3, 5)
ROWS, WIDTH = 1100, 64  # A table that is pulled by rows.


def batches(poisoned=(), skipped=()):
    """Batches of numbers of rows, inputs and labels; some have a NaN."""
    random = np.random.default_rng(5)
    for step in range(STEPS):
        # Some rows come again, and have to be fresh.
        rows = random.integers(0, 8, size=(4,)).astype("int32")
        x = random.normal(size=(4, 3)).astype("float32")
        y = random.normal(size=(4, 1)).astype("float32")
        if step in poisoned:
            x[1, 2] = np.nan
        if step not in skipped:
            yield {"rows": rows, "x": x}, y


def build(strategy, optimizer):
    """A model with an embedding and moving statistics."""
    keras.utils.set_random_seed(3)
    with strategy.scope():
        rows = keras.Input((), name="rows", dtype="int32")
        x = keras.Input((3,), name="x")
        hidden = keras.layers.Dense(WIDTH, name="first")(x)
        hidden = keras.layers.BatchNormalization(momentum=0.5)(hidden)
        hidden += keras.layers.Embedding(ROWS, WIDTH)(rows)
        model = keras.Model([rows, x], keras.layers.Dense(1)(hidden))
        model.compile(optimizer(), "mse")
    return model


def train(strategy, optimizer, data):
    """Trains; returns weights and the optimizer's variables, arrays."""
    model = build(strategy, optimizer)
    for x, y in data:
        model.train_on_batch(x, y)
    strategy.barrier()
    variables = [v.numpy() for v in model.optimizer.variables]
    return [*model.get_weights(), *variables]


def sgd():
    return keras.optimizers.SGD(0.05)


def averaged_adam():
    return keras.optimizers.Adam(0.05, use_ema=True, ema_momentum=0.5)


METHODS = {
    "rows": ({}, sgd),
    "average": ({}, averaged_adam),
    "sync": (
        {"synchronization": synchronization.Sync(on_drop="retry")},
        sgd,
    ),
    "late": (
        {
            "synchronization": synchronization.BoundedStaleness(0),
            "correction": correction.InverseStaleness(),
        },
        sgd,
    ),
}


@functools.cache
def without(optimizer):
    """What training without the bad batches comes to.

    With one worker it is the same by every method.
    """
    strategy = tfdist.AsyncStrategy(nonfinite="ignore")
    return train(strategy, optimizer, batches(skipped=POISONED))


@pytest.mark.parametrize(
    "name", nightly.also(["rows"], [name for name in METHODS if name != "rows"])
)
def test_a_refused_update_leaves_no_trace(name):
    arguments, optimizer = METHODS[name]
    strategy = tfdist.ParameterServerStrategy(**arguments)
    found = train(strategy, optimizer, batches(poisoned=POISONED))
    exchanges = strategy.journal.read_new()
    for mine, wanted in zip(found, without(optimizer), strict=True):
        assert np.isfinite(wanted).all()
        np.testing.assert_array_equal(mine, wanted)
    assert [e.nonfinite for e in exchanges] == [
        step in POISONED for step in range(STEPS)
    ]
    assert all(e.accepted != e.nonfinite for e in exchanges)
    accepted = STEPS - len(POISONED)
    assert strategy.updates_applied() == [accepted]
    (counts,) = strategy.gradient_counts().values()
    assert counts == {
        "pushed": STEPS,
        "accepted": accepted,
        "dropped": len(POISONED),
        "nonfinite": len(POISONED),
        "staleness": 0,
    }
    if name == "rows":
        # The look costs no more than that: rows still come alone.
        assert max(e.bytes_received for e in exchanges) < ROWS * WIDTH * 4


LOCAL = {
    # Steps between two pushes, the bad one, and the method.
    "elastic": (3, 3, averaging.ElasticAveraging(3, alpha=0.5)),
    # It is pushed when nothing is fetched.
    "accrued": (2, 1, averaging.AccruedGradients(n_fetch=4, n_push=2)),
}


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["accrued", "elastic"])
def test_local_weights_that_are_not_finite_make_room_for_the_servers(name):
    length, bad, method = LOCAL[name]
    strategy = tfdist.ParameterServerStrategy(local_steps=method)
    optimizer = keras.optimizers.Adam
    found = train(strategy, optimizer, batches(poisoned=[bad]))
    # Among them the moments of the optimizer that takes the local steps.
    assert all(np.isfinite(value).all() for value in found)
    exchanges = strategy.journal.read_new()
    assert [e.nonfinite for e in exchanges] == [
        bad // length == number for number in range(-(-STEPS // length))
    ]


@pytest.mark.nightly
def test_a_period_that_is_not_finite_leaves_no_trace():
    arguments = {"local_steps": 3, "synchronization": synchronization.Sync()}
    found, expected = (
        train(tfdist.ParameterServerStrategy(**arguments), sgd, data)
        for data in (batches(poisoned=[4]), batches(skipped=[3, 4, 5]))
    )
    # The last is the clock of the worker's own steps.
    for mine, wanted in zip(found[:-2], expected[:-2], strict=True):
        np.testing.assert_array_equal(mine, wanted)


@pytest.mark.nightly
def test_fail_names_the_worker_and_what_is_not_finite():
    strategy = tfdist.AsyncStrategy(nonfinite="fail")
    model = build(strategy, sgd)
    (x, y), (bad_x, _), *_ = batches(poisoned=[1])
    model.train_on_batch(x, y)
    before = model.get_weights()
    with pytest.raises(tf.errors.InvalidArgumentError) as raised:
        model.train_on_batch(bad_x, y)
    text = str(raised.value)
    assert "/job:worker/task:0: the update of this step is not finite" in text
    assert "first/kernel" in text
    strategy.pull()
    for mine, wanted in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(mine, wanted)
    model.train_on_batch(x, y)
    assert strategy.updates_applied() == [2]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("choice", "local_steps"),
    [("drop", 1), ("drop", None), ("fail", None)],
)
def test_a_momentum_of_workers_forgets_what_was_refused(choice, local_steps):
    """Also with local steps, whose momentum is of changes of weights."""
    strategy = tfdist.ParameterServerStrategy(
        synchronization=synchronization.Async(),
        correction=correction.DANA(momentum=0.5),
        local_steps=local_steps,
        nonfinite=choice,
    )
    with strategy.scope():
        layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
        model = keras.Sequential([keras.Input((1,)), layer])
        model.compile(keras.optimizers.SGD(0.25), "mse")
    x = np.ones([1, 1], "float32")
    weight, momentum = 1.0, 0.0
    for step in range(5):
        if step == 1 and choice == "fail":
            with pytest.raises(tf.errors.InvalidArgumentError):
                model.train_on_batch(np.nan * x, x)
        elif step == 1:
            model.train_on_batch(np.nan * x, x)
        else:
            model.train_on_batch(x, 3 * x)
            gradient = 2 * (weight - 3.0)
            momentum = 0.5 * momentum + gradient
            weight -= 0.25 * (0.5 * momentum + gradient)
    strategy.barrier()
    np.testing.assert_allclose(layer.kernel.numpy(), [[weight]], rtol=1e-6)
    (counts,) = strategy.gradient_counts().values()
    assert (counts["accepted"], counts["nonfinite"]) == (4, choice == "drop")


def test_what_comes_after_a_refused_update_counts():
    """Also where it belongs to a step that makes no update."""
    strategy = tfdist.AsyncStrategy()
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((3,)), keras.layers.BatchNormalization()]
        )
        optimizer = keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)
        model.compile(optimizer, "mse")
    means = []
    for x, _ in batches(poisoned=[1]):
        model.train_on_batch(x["x"], x["x"])
        means.append(model.layers[0].moving_mean.numpy())
    # The second batch is left out, not the third.
    assert [
        not np.array_equal(*pair) for pair in itertools.pairwise(means)
    ] == [step != 1 for step in range(1, STEPS)]
    assert strategy.updates_applied() == [STEPS // 2 - 1]
    assert np.isfinite(model.get_weights()).all()


@pytest.mark.parametrize("choice", nightly.also(["fail"], ["drop", "ignore"]))
def test_loss_scaling_is_no_poison(choice):
    """Keras makes gradients overflow on purpose, and skips such steps."""
    strategy = tfdist.AsyncStrategy(nonfinite=choice)
    with strategy.scope():
        keras.utils.set_random_seed(3)
        model = keras.Sequential(
            [
                keras.Input((3,)),
                keras.layers.Dense(4, dtype="mixed_float16"),
                keras.layers.BatchNormalization(dtype="mixed_float16"),
                keras.layers.Dense(1, dtype="mixed_float16"),
            ]
        )
        optimizer = keras.optimizers.LossScaleOptimizer(
            keras.optimizers.SGD(0.01), initial_scale=2.0**20
        )
        model.compile(optimizer, "mse")
    (x, y), *_ = batches()
    losses = [float(model.train_on_batch(x["x"], y)) for _ in range(16)]
    scale = float(optimizer.dynamic_scale.numpy())
    # Some steps were skipped, by Keras, and some were taken.
    skipped = round(20 - np.log2(scale))
    assert 0 < skipped < 16
    assert int(optimizer.iterations.numpy()) == 16 - skipped
    assert losses[-1] < losses[0]
    (counts,) = strategy.gradient_counts().values()
    assert counts == {
        "pushed": 16 - skipped,
        "accepted": 16 - skipped,
        "dropped": 0,
        "nonfinite": 0,
        "staleness": 0,
    }


class Highest(keras.layers.Layer):
    """Keeps the highest input of the training."""

    def build(self, shape):
        del shape
        self.highest = self.add_weight(
            shape=(),
            initializer=keras.initializers.Constant(-np.inf),
            trainable=False,
        )

    def call(self, x, training=False):
        if training:
            highest = keras.ops.max(x)
            self.highest.assign(
                keras.ops.cond(
                    highest > self.highest,
                    lambda: highest,
                    lambda: self.highest + 0.0,
                )
            )
        return x


@pytest.mark.nightly
@pytest.mark.parametrize("run_eagerly", [False, True])
def test_state_may_begin_with_infinity(run_eagerly):
    with tfdist.AsyncStrategy().scope():
        model = keras.Sequential([keras.Input([1]), Highest()])
        model.compile("sgd", "mse", run_eagerly=run_eagerly)
    x = np.array([[2.0], [5.0], [3.0]], "float32")
    model.fit(x, x, batch_size=1, shuffle=False, verbose=0)
    assert model.get_weights() == [5.0]


class Turns(keras.layers.Layer):
    """Counts steps in multiples of i."""

    def build(self, shape):
        del shape
        self.turns = self.add_weight(
            shape=(), dtype="complex64", initializer="zeros", trainable=False
        )

    def call(self, x, training=False):
        if training:
            self.turns.assign(self.turns.value + 1j)
        return x


def test_eager_steps_may_change_complex_state():
    with tfdist.AsyncStrategy().scope():
        model = keras.Sequential([keras.Input([1]), Turns()])
        model.compile("sgd", "mse", run_eagerly=True)
    x = np.ones([3, 1], "float32")
    model.fit(x, x, batch_size=1, verbose=0)
    assert model.get_weights() == [3j]


def test_ignore_does_not_look():
    with tfdist.AsyncStrategy(nonfinite="ignore").scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    model.train_on_batch(np.full([1, 1], np.nan), np.ones([1, 1]))
    assert not np.isfinite(model.get_weights()[0]).any()


def test_other_choices_are_refused():
    with pytest.raises(ValueError, match="drop, fail, ignore.*=None"):
        tfdist.AsyncStrategy(nonfinite=None)
