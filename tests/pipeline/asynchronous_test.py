"""Pipelines without flushes, against formulas, NumPy and plain Keras."""

import keras
from keras import layers
import numpy as np
import pytest
import tensorflow as tf

from tests import nightly
from tests.pipeline import chains
from tests.pipeline import models
from tests.pipeline import oracles
from tfdist.pipeline import asynchronous
from tfdist.pipeline import pipelined
from tfdist.pipeline import schedules
from tfdist.pipeline import stages as stages_lib

pytestmark = pytest.mark.usefixtures("float64")


def check_against_numpy(schedule, depth, micro_batches, sync, **options):
    weights, units = (
        chains.initial(depth),
        chains.units_of([2] * 4 * micro_batches),
    )
    model = chains.chain(
        weights,
        chains.sgd(),
        micro_batches=micro_batches,
        schedule=schedule,
        vertical_sync=sync,
        **options,
    )
    chains.feed(model, chains.batches_of(units, micro_batches))
    assert chains.executor(model).in_flight == depth - 1
    batch_units = micro_batches if schedule == "pipedream_2bw" else 1
    # As many as the first stage has made.
    made = (len(units) - (depth - 1)) // batch_units
    assert int(model.optimizer.iterations) == made
    chains.executor(model).drain()
    assert chains.executor(model).in_flight == 0
    chains.assert_weights(
        model,
        oracles.train(
            weights,
            units,
            schedule,
            chains.RATE,
            chains.MOMENTUM,
            sync,
            batch_units,
        ),
    )
    assert int(model.optimizer.iterations) == len(units) // batch_units


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("schedule", "depth", "micro_batches", "sync"),
    [
        ("pipedream_2bw", 2, 2, False),
        ("pipedream_2bw", 3, 3, False),
        ("pipedream", 3, 1, False),
        ("pipedream", 2, 2, True),
        ("spectrain", 3, 1, False),
        ("ftpipe", 3, 2, False),
    ],
)
def test_graphs_train_as_numpy_does(schedule, depth, micro_batches, sync):
    check_against_numpy(schedule, depth, micro_batches, sync)


@pytest.mark.parametrize("schedule", schedules.ASYNCHRONOUS)
@pytest.mark.parametrize("depth", nightly.also([4], [2]))
def test_every_number_of_stages_trains_as_numpy_does(schedule, depth):
    batched = schedule == "pipedream_2bw"
    for sync in (False, True) if schedule == "pipedream" else (False,):
        check_against_numpy(
            schedule, depth, depth + 1 if batched else 2, sync, run_eagerly=True
        )


def test_pipedreams_stages_are_as_late_as_its_formula_says():
    # w(t + 1) = w(t) - eta * grad f(w_1(t - n + 1), ..., w_n(t)), and before
    # unit 0 there were no updates.
    depth, units = 3, chains.units_of([2] * 6)
    weights = chains.initial(depth)
    model = chains.chain(
        weights, chains.sgd(0.0), True, micro_batches=1, schedule="pipedream"
    )
    made = [[w] for w in weights]
    for t, (x, y) in enumerate(units):
        late = [made[k][max(0, t - (depth - 1 - k))] for k in range(depth)]
        for k, g in enumerate(oracles.gradients(late, x, y)):
            made[k].append(made[k][-1] - chains.RATE * g)
    chains.feed(model, chains.batches_of(units, 1))
    chains.executor(model).drain()
    chains.assert_weights(model, [of_stage[-1] for of_stage in made])


@pytest.mark.nightly
def test_each_stage_counts_its_own_updates_for_adam():
    depth, units = 3, chains.units_of([3] * 7)
    weights = chains.initial(depth)

    def adam():
        # A rate that changes at each update shows whose count is used.
        return keras.optimizers.Adam(
            keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5),
            weight_decay=0.01,
            clipnorm=0.5,
        )

    model = chains.chain(weights, adam(), micro_batches=1, schedule="pipedream")
    chains.feed(model, chains.batches_of(units, 1))
    chains.executor(model).drain()
    made = [[w] for w in weights]
    newest = [keras.Variable(w) for w in weights]
    optimizers = [adam() for _ in weights]
    for t, (x, y) in enumerate(units):
        late = [made[k][max(0, t - (depth - 1 - k))] for k in range(depth)]
        for k, g in enumerate(oracles.gradients(late, x, y)):
            optimizers[k].apply([tf.constant(g)], [newest[k]])
            made[k].append(newest[k].numpy())
    chains.assert_weights(model, [of_stage[-1] for of_stage in made], atol=1e-9)
    assert int(model.optimizer.iterations) == len(units)


@pytest.mark.nightly
def test_one_stage_is_plain_keras():
    x, y, sample_weight = models.data("mlp", 12)
    trained = []
    for schedule in (None, "pipedream", "spectrain"):
        model = models.make("mlp")
        if schedule:
            pipelined.pipeline(
                model, [["*"]], micro_batches=1, schedule=schedule
            )
        model.compile(chains.sgd(), models.KINDS["mlp"].loss, run_eagerly=True)
        model.fit(x, y, 4, 2, 0, sample_weight=sample_weight, shuffle=False)
        trained.append(model.get_weights())
    for other in trained[1:]:
        for one, two in zip(trained[0], other, strict=True):
            np.testing.assert_array_equal(one, two)


def noisy(constraint=None):
    """Random masks and moving statistics in every stage but the last."""
    keras.utils.set_random_seed(3)
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((4,)),
            layers.Dense(6, "tanh", kernel_constraint=constraint, name="a"),
            layers.BatchNormalization(),
            layers.Dropout(0.5, seed=1),
            layers.Dense(5, "tanh", name="b"),
            layers.GaussianNoise(0.5, seed=2),
            layers.BatchNormalization(),
            layers.Dense(3, "softmax", name="c"),
        ]
    )


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("kind", "schedule"),
    [
        ("mlp", "pipedream_2bw"),
        ("noisy", "ftpipe"),
        ("skip", "pipedream"),
        ("two", "ftpipe"),
    ],
)
def test_a_batch_that_is_alone_in_the_pipeline_is_trained_as_by_keras(
    kind, schedule
):
    # Then no weights are late: what a backward computes again must be what
    # its forward had, and each moving statistic moves once.
    like = "mlp" if kind == "noisy" else kind
    x, y, sample_weight = models.data(like, 9)
    if like == "two":
        sample_weight = None
    micro_batches = 3 if schedule == "pipedream_2bw" else 1
    trained = []
    for piped in (False, True):
        if kind == "noisy":
            model = noisy(keras.constraints.MaxNorm(0.5))
        else:
            model = models.make(kind)
        if piped:
            pipelined.pipeline(
                model,
                models.KINDS[like].stages,
                micro_batches=micro_batches,
                schedule=schedule,
            )
        model.compile(chains.sgd(), models.KINDS[like].loss, run_eagerly=True)
        for _ in range(3):
            model.train_on_batch(x, y, sample_weight)
            if piped:
                chains.executor(model).drain()
        trained.append(model.get_weights())
    for one, two in zip(*trained, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-9, atol=1e-12)


@pytest.mark.nightly
def test_state_passes_from_unit_to_unit():
    # With weights that stay as they are, whatever the order of the tasks,
    # each unit has the seeds and statistics that it has without a pipeline.
    x, y, _ = models.data("mlp", 15)
    trained = []
    for piped in (False, True):
        model = noisy()
        if piped:
            pipelined.pipeline(
                model, ["b", "c"], micro_batches=1, schedule="pipedream"
            )
        loss = models.KINDS["mlp"].loss
        model.compile(keras.optimizers.SGD(0.0), loss, run_eagerly=True)
        history = model.fit(x, y, 3, verbose=0, shuffle=False).history
        trained.append([*model.get_weights(), history["loss"]])
    for one, two in zip(*trained, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-9, atol=1e-12)


def test_the_loss_that_is_shown_of_sums_is_that_of_the_batch():
    x, y = np.arange(7.0)[:, None], np.ones((7, 1))
    shown = []
    for piped in (False, True):
        model = keras.Sequential(
            [
                keras.Input((1,)),
                layers.Dense(2, kernel_regularizer="l2", name="a"),
                layers.Dense(1, kernel_initializer="ones", name="b"),
            ]
        )
        model.layers[0].kernel.assign([[0.5, 2.0]])
        if piped:
            pipelined.pipeline(
                model, ["b"], micro_batches=2, schedule="pipedream_2bw"
            )
        loss = keras.losses.MeanSquaredError(reduction="sum")
        model.compile(keras.optimizers.SGD(0.0), loss, run_eagerly=True)
        history = model.fit(x, y, 4, verbose=0, shuffle=False).history
        shown.append(history["loss"])
    assert shown[1] == pytest.approx(shown[0], rel=1e-9)


def test_blocks_on_shared_devices_train_as_on_their_own():
    check_against_numpy(
        "ftpipe",
        4,
        2,
        False,
        run_eagerly=True,
        devices=["CPU:0", "CPU:1", "CPU:0", "CPU:1"],
    )


class Clipped(keras.optimizers.SGD):
    """Looks at the gradients of all weights."""

    def apply(self, grads, trainable_variables=None):
        """Clips them by their norm."""
        grads, _ = tf.clip_by_global_norm(grads, 1.0)
        super().apply(grads, trainable_variables)


class ClippedPairs(keras.optimizers.SGD):
    """Looks at them where Keras's training step hands them over."""

    def apply_gradients(self, grads_and_vars):
        """Clips them by their norm."""
        grads, variables = zip(*grads_and_vars, strict=True)
        grads, _ = tf.clip_by_global_norm(grads, 1.0)
        return super().apply_gradients(zip(grads, variables, strict=True))


# Older versions of Keras do not have it.
SEVERAL = [
    (
        {"optimizer": getattr(keras.optimizers, name)(lambda _: None)},
        f"must not be {name}",
    )
    for name in ["MultiOptimizer"]
    if hasattr(keras.optimizers, name)
]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schedule": "gpipe"}, "`schedule` must be one of pipedream, .*gpipe"),
        (
            {"schedule": "pipedream_2bw", "micro_batches": 2},
            "must be .* stages, 3, .*: micro_batches=2",
        ),
        ({"schedule": "ftpipe", "vertical_sync": True}, "`vertical_sync` must"),
        (
            {"schedule": "spectrain", "optimizer": chains.sgd(0.0)},
            "smoothed gradient.*SGD with momentum=0.0",
        ),
        ({"optimizer": keras.optimizers.Nadam()}, "must not be Nadam"),
        ({"optimizer": Clipped()}, "`apply` or.* of its own.*=Clipped"),
        ({"optimizer": ClippedPairs()}, "`apply_gradients` of its.*=Clipped"),
        *SEVERAL,
        (
            {"optimizer": keras.optimizers.SGD(global_clipnorm=1.0)},
            "`global_clipnorm` of the optimizer must be None.*Received: .*=1.0",
        ),
        (
            {"optimizer": keras.optimizers.SGD(use_ema=True)},
            "`use_ema` of the optimizer must be False.*Received: .*=True",
        ),
        (
            {"optimizer": keras.optimizers.SGD(gradient_accumulation_steps=2)},
            "`gradient_accumulation_steps` of the optimizer must be None.*=2",
        ),
        (
            {
                "schedule": "pipedream_2bw",
                "micro_batches": 3,
                "loss": keras.losses.MeanSquaredError(reduction="none"),
            },
            "reduction 'none'",
        ),
    ],
)
def test_what_cannot_be_right_is_refused(changes, message):
    options = {"schedule": "pipedream", "micro_batches": 1, **changes}
    model = models.make("mlp")
    optimizer = options.pop("optimizer", "sgd")
    stages = stages_lib.split(model, ["b", "c"], ["CPU:0"] * 3)
    model.compile(optimizer, options.pop("loss", "mse"))
    with pytest.raises(ValueError, match=message):
        asynchronous.AsynchronousPipeline(model, stages, **options)


def test_tied_weights_of_different_stages_are_refused():
    with pytest.raises(ValueError, match="shared.*stages 0 and 1"):
        model = pipelined.pipeline(
            models.make("tied"),
            models.KINDS["tied"].stages,
            schedule="pipedream",
        )
        model.compile("sgd", "mse")


class OwnLoss(keras.Sequential):
    """With a loss that is Keras's, and a term of a weight if there is one."""

    term, regularized = None, True

    def compute_loss(self, x, y, y_pred, sample_weight):
        if not self.regularized:
            return tf.reduce_mean(y_pred)
        loss = super().compute_loss(x, y, y_pred, sample_weight)
        if self.term is not None:
            loss += tf.reduce_sum(self.term.value**2)
        return loss


def test_terms_of_a_loss_that_would_not_be_trained_are_refused():
    x, y, _ = models.data("mlp", 4)
    made = models.make("mlp")
    model = OwnLoss(made.layers)
    model.build((None, 4))
    pipelined.pipeline(model, 2, micro_batches=1, schedule="ftpipe")
    loss = models.KINDS["mlp"].loss
    for compiled in (made, model):
        compiled.compile(keras.optimizers.SGD(0.0), loss, run_eagerly=True)
        compiled.train_on_batch(x, y)
    chains.executor(model).drain()
    np.testing.assert_allclose(
        model.get_metrics_result()["loss"], made.get_metrics_result()["loss"]
    )
    model.term = model.layers[0].kernel
    with pytest.raises(ValueError, match="a/kernel' by itself.*'gpipe'"):
        model.train_on_batch(x, y)
        chains.executor(model).drain()
    model.regularized = False
    with pytest.raises(ValueError, match="leaves out .*a/kernel'"):
        model.train_on_batch(x, y)
        chains.executor(model).drain()


def test_weights_that_are_set_after_compile_are_those_that_are_trained():
    # Its slots begin with a copy of the weights.
    model = chains.chain(
        chains.initial(2),
        keras.optimizers.ScheduleFreeAdamW(0.0),
        run_eagerly=True,
        micro_batches=1,
        schedule="pipedream",
    )
    weights = chains.initial(2, seed=5)
    model.set_weights(weights)
    chains.feed(model, chains.units_of([2]))
    chains.executor(model).drain()
    chains.assert_weights(model, weights)


def test_a_layer_that_is_frozen_after_compile_is_trained_as_compiled():
    trained = []
    for trainable in (True, False):
        model = chains.chain(
            chains.initial(2),
            chains.sgd(),
            run_eagerly=True,
            micro_batches=1,
            schedule="pipedream",
        )
        model.layers[0].trainable = trainable
        chains.feed(model, chains.units_of([2, 2]))
        chains.executor(model).drain()
        trained.append(model.get_weights())
    chains.assert_weights(model, trained[0])
    model.layers[0].trainable = True
    model.compile(chains.sgd(), "mse", run_eagerly=True)
    model.layers[0].trainable = False
    model.optimizer.build(model.trainable_variables)
    with pytest.raises(ValueError, match="again.* built without .*d0/kernel"):
        chains.feed(model, chains.units_of([2]))


@pytest.mark.parametrize("run_eagerly", nightly.also([True], [False]))
def test_saturated_outputs_of_earlier_stages_are_trained(run_eagerly):
    # Keras computes their crossentropy from logits, which have to come along.
    trained = []
    for piped in (False, True):
        keras.utils.set_random_seed(1)
        x = keras.Input((4,))
        middle = keras.layers.Dense(3, name="middle")(x)
        first = keras.layers.Dense(3, "softmax", name="first")(middle)
        last = keras.layers.Dense(3, "softmax", name="last")(x)
        model = keras.Model(x, [last, first])
        if piped:
            pipelined.pipeline(
                model, ["last"], micro_batches=1, schedule="ftpipe"
            )
        model.get_layer("first").kernel.assign(100 * np.eye(3))
        loss = [models.KINDS["mlp"].loss] * 2
        model.compile(chains.sgd(), loss, run_eagerly=run_eagerly)
        x, y, _ = models.data("mlp", 6)
        model.train_on_batch(x, [y, y])
        if piped:
            model.drain()
            assert model.stages[0].names == ["middle", "first"]
        trained.append(model.get_weights())
    for one, two in zip(*trained, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-9, atol=1e-12)


@pytest.mark.nightly
def test_what_is_under_way_is_none_of_what_follows(tmp_path):
    """Metrics that are reset, and a file that a function of Keras's writes."""
    model = models.make("mlp")
    pipelined.pipeline(model, ["b", "c"], micro_batches=1, schedule="pipedream")
    model.compile(chains.sgd(), models.KINDS["mlp"].loss)
    x, y, _ = models.data("mlp", 6)
    for _ in range(3):
        model.train_on_batch(x, y)
    keras.saving.save_model(model, tmp_path / "model.keras")
    for _ in range(3):
        model.train_on_batch(x, y)
    model.reset_metrics()
    model.drain()
    assert float(model.metrics[0].count) == 0
    saved = keras.saving.load_model(tmp_path / "model.keras").get_weights()
    again = models.make("mlp")
    pipelined.pipeline(again, ["b", "c"], micro_batches=1, schedule="pipedream")
    again.compile(chains.sgd(), models.KINDS["mlp"].loss)
    for _ in range(3):
        again.train_on_batch(x, y)
    for one, two in zip(saved, again.get_weights(), strict=True):
        np.testing.assert_array_equal(one, two)
