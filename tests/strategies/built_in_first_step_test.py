"""Models with a `train_step` of their own are built in their first step.

Under a strategy Keras would call them before it, to build them: those of many
examples have no `call`, or data of another kind than it takes.
"""

import contextlib
import functools
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import nightly
from tests.strategies.twins import assert_same
import tfdist
from tfdist import private_keras
from tfdist.cluster import fit_progress
from tfdist.runtime.keras_hooks import fit_call
from tfdist.runtime.variables.variables import plain_name
from tfdist.saving import callbacks

_random = np.random.default_rng(3)
TRIPLETS = tuple(_random.normal(size=(3, 12, 5)).astype("float32"))


class Noisy(keras.layers.Layer):
    """A layer whose random numbers have a state that `build` makes."""

    def build(self, shape):
        self.dropout = keras.layers.Dropout(0.25)

    def call(self, x, training=False):
        return self.dropout(x, training=training)


class Contrastive(keras.Model):
    """Triplets, and nothing that is built or could be called.

    Keras does not know of all parts, and the labels are not those of the data.
    """

    def __init__(self):
        super().__init__()
        self.encoder = keras.Sequential(
            [
                keras.layers.Dense(4, activation="tanh"),
                keras.layers.BatchNormalization(),
                Noisy(),
            ]
        )
        self.others = types.SimpleNamespace(projector=keras.layers.Dense(2))
        self.mean = keras.metrics.Mean("mean")

    def _loss(self, data, training):
        points = [
            self.others.projector(self.encoder(x, training=training))
            for x in data
        ]
        logits = tf.stack(
            [tf.reduce_sum(points[0] * x, axis=1) for x in points[1:]], axis=1
        )
        labels = tf.zeros(tf.shape(logits)[:1], tf.int32)
        loss = self.compute_loss(y=labels, y_pred=logits)
        self.mean.update_state(loss)
        results = self.compute_metrics(None, labels, logits)
        return loss, {**results, "mean": self.mean.result()}

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss, logs = self._loss(data[0], training=True)
        variables = [
            *self.encoder.trainable_variables,
            *self.others.projector.trainable_variables,
        ]
        gradients = tape.gradient(loss, variables)
        self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return logs

    def test_step(self, data):
        return self._loss(data[0], training=False)[1]


def _train(scope, *, is_evaluated_first=False, on_batches=False, **settings):
    keras.utils.set_random_seed(7)
    with scope:
        model = Contrastive()
        model.compile(
            keras.optimizers.Adam(0.1),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
            **settings,
        )
    seen = []
    if is_evaluated_first:
        seen.append(model.evaluate(TRIPLETS, verbose=0))
    if on_batches:
        seen += [model.train_on_batch(TRIPLETS) for _ in range(2)]
    data = tf.data.Dataset.from_tensor_slices((TRIPLETS,)).batch(4)
    for _ in range(2):
        fitted = model.fit(data, epochs=2, validation_data=data, verbose=0)
        seen.append(fitted.history)
    weights = model.get_weights() + model.others.projector.get_weights()
    slots = [np.array(one) for one in model.optimizer.variables]
    return seen, weights, slots


@functools.cache
def _plain(setting):
    return _train(contextlib.nullcontext(), **SETTINGS[setting])


STRATEGIES = {
    "servers": tfdist.AsyncStrategy,
    "all_reduce": tfdist.AllReduceStrategy,
    "peers": tfdist.PeerToPeerStrategy,
    "gossip": tfdist.GossipStrategy,
    # Validation is of what the last exchange has brought.
    "local": lambda: tfdist.ParameterAveragingStrategy(period=1),
    "ring": lambda: tfdist.ParameterAveragingStrategy(
        period=1, communication="ring"
    ),
}
SETTINGS = {
    "": {},
    "evaluated": {"is_evaluated_first": True},
    "batches": {"on_batches": True},
    "eager": {"run_eagerly": True},
    "compiled": {"jit_compile": True},
    "several": {"steps_per_execution": 2},
}
SOME = [("servers", ""), ("all_reduce", ""), ("local", "eager")]
OTHERS = [
    *((kind, "") for kind in STRATEGIES if (kind, "") not in SOME),
    *(
        (kind, setting)
        for kind in ("servers", "all_reduce", "local")
        for setting in SETTINGS
        if setting and (kind, setting) not in SOME
    ),
]


@pytest.mark.parametrize(("kind", "setting"), nightly.also(SOME, OTHERS))
def test_trains_as_without_a_strategy(kind, setting):
    found = _train(STRATEGIES[kind]().scope(), **SETTINGS[setting])
    # XLA itself would draw other random numbers. Adam divides by the size of
    # gradients, and so makes more of how sums are rounded.
    plain = _plain("" if setting == "compiled" else setting)
    assert_same(found, plain, tolerance=1e-4)


class Counts(keras.layers.Layer):
    """Counts its calls in a `tf.Variable` that does not say it is no weight."""

    def __init__(self):
        super().__init__()
        self.calls = tf.Variable(0.0)

    def call(self, x):
        self.calls.assign_add(1.0)
        return x


class OwnStep(keras.Model):
    """Its layers are built while its first step is traced."""

    def __init__(self, *layers):
        super().__init__()
        self.block = keras.Sequential(layers)

    def call(self, x):
        return self.block(x)

    def train_step(self, data):
        return super().train_step(data)


class Block(keras.layers.Layer):
    """Layers in a layer without `build`, which Keras calls to build them."""

    def __init__(self, *layers):
        super().__init__()
        self.layers = layers

    def call(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


MODELS = {
    "plain": lambda *layers: keras.Sequential(layers),
    "with_input": lambda *layers: keras.Sequential([keras.Input([1]), *layers]),
    "own_step": OwnStep,
    "own_step_of_block": lambda *layers: OwnStep(Block(*layers)),
}


@pytest.mark.parametrize(
    ("kind", "model", "eagerly"),
    [
        *(("servers", model, False) for model in MODELS),
        ("all_reduce", "own_step_of_block", True),
    ],
)
def test_keras_may_build_a_layer_that_assigns_a_tf_variable(
    kind, model, eagerly
):
    with STRATEGIES[kind]().scope():
        counts = Counts()
        model = MODELS[model](counts, keras.layers.Dense(1))
        model.compile("sgd", "mse", run_eagerly=eagerly)
    model.fit(np.ones([6, 1]), np.ones([6, 1]), batch_size=2, verbose=0)
    assert float(counts.calls) == 3.0


@pytest.mark.parametrize("is_built", [False, True])
def test_a_cluster_checkpoint_needs_layers_that_are_built(is_built, tmp_path):
    checkpoint = tfdist.callbacks.ClusterCheckpoint(tmp_path)
    with tfdist.AllReduceStrategy().scope():
        model = Contrastive()
        model.compile("sgd")
        if is_built:
            model.encoder.build([None, 5])
    checkpoint.set_model(model)
    if is_built:
        checkpoint.on_train_begin()
        assert model.optimizer.built
        return
    with pytest.raises(ValueError, match="layers that are not built: .*'dense"):
        checkpoint.on_train_begin()


def _all_of(model):
    return [v.numpy() for v in model.weights + model.optimizer.variables]


def _with_own_step():
    """A functional model: its layers are built, its optimizer is not."""

    class Own(keras.Model):
        def train_step(self, data):
            return super().train_step(data)

    x = keras.Input([1])
    model = Own(x, keras.layers.Dense(2)(x))
    model.compile("adam", "mse")
    return model


@pytest.mark.parametrize("kind", ["servers", "all_reduce"])
def test_a_backup_is_restored_with_the_slots_of_the_optimizer(kind, tmp_path):
    saved = _with_own_step()
    saved.optimizer.build(saved.trainable_variables)
    for variable in saved.optimizer.variables[2:]:
        variable.assign(variable + 3.0)
    saved.optimizer.iterations.assign(5)
    backup = keras.callbacks.BackupAndRestore(tmp_path, delete_checkpoint=False)
    backup.set_model(saved)
    backup.on_epoch_end(0)
    with STRATEGIES[kind]().scope():
        model = _with_own_step()
    data = np.ones([4, 1]), np.ones([4, 2])
    backup = keras.callbacks.BackupAndRestore(tmp_path, delete_checkpoint=False)
    assert not model.fit(*data, verbose=0, callbacks=backup).history
    assert_same(_all_of(model), _all_of(saved))
    found = model.fit(*data, epochs=2, verbose=0, callbacks=backup)
    assert found.epoch == [1]
    assert int(model.optimizer.iterations) == 6


@pytest.mark.parametrize("finds", [False, True])
def test_the_optimizer_of_compile_is_built_whether_there_is_a_backup(
    finds, tmp_path
):
    """Of all workers, or one that is started again has other numbers."""
    with tfdist.AsyncStrategy().scope():
        model = _with_own_step()
        model.other_optimizer = keras.optimizers.SGD()
    backup = keras.callbacks.BackupAndRestore(tmp_path)
    callbacks.see_backups(backup)
    backup.set_model(model)
    if finds:
        backup.on_epoch_end(0)
    backup.on_train_begin()
    assert model.optimizer.built


def _with_several():
    """A model whose layers have optimizers of their own, in a wrapper."""
    parts = {".*kernel": keras.optimizers.SGD(0.5, momentum=0.5)}
    parts = keras.optimizers.OptimizerMap(keras.optimizers.Adam(0.25), parts)
    model = _with_own_step()
    model.compile(keras.optimizers.MultiOptimizer(parts), "mse")
    return model


@pytest.mark.parametrize("has_others", [False, True])
def test_a_wrapper_of_several_is_one_optimizer(has_others, tmp_path):
    with tfdist.AsyncStrategy().scope():
        model = _with_several()
        if has_others:
            model.other = keras.optimizers.SGD(0.125)
    assert fit_call.makes_all_when_built(model) != has_others
    backup = keras.callbacks.BackupAndRestore(tmp_path)
    callbacks.see_backups(backup)
    backup.set_model(model)
    backup.on_train_begin()
    assert model.optimizer.built
    call = fit_call.FitCall(types.SimpleNamespace(f_locals={"self": model}), 1)
    call.find_rates()
    # The chief's rates are told in this order.
    assert call.own_rates() == (0.125,) * has_others + (0.5, 0.25)


def test_a_wrapper_of_several_makes_in_a_step_what_it_does_when_built():
    """A worker that comes back and passes a call makes them without a step."""
    made = []
    for is_passed in (False, True):
        strategy = tfdist.AsyncStrategy()
        with strategy.scope():
            model = _with_several()
            if is_passed:
                fit_call.build_optimizer(model)
            else:
                model.train_on_batch(np.ones([4, 1]), np.ones([4, 2]))
        variables = [*model.variables, *model.optimizer.variables]
        made.append(
            {
                v.value.ordinal: (plain_name(v.value.name), v.shape)
                for v in variables
                if v.name not in ("total", "count")
            }
        )
    assert made[0] == made[1]


@pytest.mark.parametrize("kind", ["averages", "several"])
def test_a_call_that_is_over_needs_no_optimizer(kind, monkeypatch):
    """At its end Keras asks for averages, of the wrapped optimizers, too."""
    strategy = tfdist.AsyncStrategy()
    with strategy.scope():
        model = _with_several() if kind == "several" else _with_own_step()
        if kind == "averages":
            model.compile(keras.optimizers.Adam(use_ema=True), "mse")
        model.other = keras.optimizers.SGD()
    data = np.ones([4, 1]), np.ones([4, 2])

    def leave_out_all(size, skips):
        fit_call.build_optimizer(model)
        private_keras.set_initial_epoch(model, fit_progress.OVER[0])
        return 2, 0

    decisions = strategy._runtime.chief_decisions
    monkeypatch.setattr(decisions, "begin_data", leave_out_all)
    assert not model.fit(*data, epochs=2, verbose=0).history
    assert not model.optimizer.built
    monkeypatch.undo()
    private_keras.set_initial_epoch(model, None)
    model.fit(*data, epochs=2, verbose=0)
    assert int(model.optimizer.iterations) == 2
    if kind == "averages":
        averages = model.optimizer._model_variables_moving_average
        assert_same(model.trainable_variables, averages)


def test_a_model_with_a_head_that_is_not_built_is_not_built(tmp_path, caplog):
    class Own(keras.Model):
        def __init__(self, *args):
            super().__init__(*args)
            self.head = keras.layers.Dense(2)
            # It has nothing to build, and only a step would call it.
            self.augmentation = keras.Sequential([keras.layers.RandomFlip()])
            self.evaluated = 0

        def train_step(self, data):
            return super().train_step(data)

        def test_step(self, data):
            self.head(data[0])
            return super().test_step(data)

        def evaluate(self, *args, **kwargs):
            self.evaluated += 1
            return super().evaluate(*args, **kwargs)

    data = np.ones([4, 1]), np.ones([4, 2])
    with tfdist.AsyncStrategy().scope():
        x = keras.Input([1])
        model = Own(x, keras.layers.Dense(2)(x))
        model.compile("adam", "mse")
    assert model.built and not fit_call.makes_all_when_built(model)
    backup = keras.callbacks.BackupAndRestore(tmp_path)
    callbacks.see_backups(backup)
    backup.set_model(model)
    backup.on_train_begin()
    assert f"are: ['{model.head.name}']" in caplog.text
    assert not model.optimizer.built
    # Those that no step has built are not in the file.
    backup.on_epoch_end(0)
    backup.on_train_begin()
    assert model.optimizer.built
    tfdist.SidecarEvaluator(model, data, verbose=0).start()
    assert "in the order of its `test_step`" in caplog.text
    # First to build it, then what it has pulled.
    assert model.evaluated == 2
    assert fit_call.makes_all_when_built(model)


class NeverCalled(keras.Model):
    """A model without `call`."""

    def train_step(self, data):
        return {"loss": tf.reduce_mean(data)}


@pytest.mark.parametrize("kind", ["servers", "all_reduce"])
@pytest.mark.parametrize("is_late", [False, True], ids=["outside", "late"])
def test_it_need_not_be_compiled_with_its_step_in_the_scope(kind, is_late):
    strategy = STRATEGIES[kind]()
    with strategy.scope():
        model = keras.Model() if is_late else NeverCalled()
    with strategy.scope() if is_late else contextlib.nullcontext():
        model.compile(run_eagerly=True)
    if is_late:
        model.train_step = lambda data: {"loss": tf.reduce_mean(data)}
    model.fit(np.ones([2, 3]), verbose=0)


@pytest.mark.parametrize("kind", ["servers", "all_reduce", "local"])
def test_a_first_step_makes_accumulators_of_zeros(kind):
    class WithMomentum(keras.Model):
        sums = None

        def train_step(self, data):
            weights = self.trainable_variables
            if self.sums is None:
                self.sums = [
                    tf.Variable(tf.zeros(w.shape), trainable=False)
                    for w in weights
                ]
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self(data[0]) - data[1]) ** 2)
            for total, gradient in zip(
                self.sums, tape.gradient(loss, weights), strict=True
            ):
                total.assign(0.5 * total + gradient)
            self.optimizer.apply([tf.identity(v) for v in self.sums], weights)
            return {"loss": loss}

    def train(scope):
        keras.utils.set_random_seed(1)
        with scope:
            x = keras.Input([2])
            model = WithMomentum(x, keras.layers.Dense(1)(x))
            model.compile(keras.optimizers.SGD(0.25))
        x = np.eye(4, 2)
        for _ in range(2):
            model.fit(x, x[:, :1], batch_size=2, shuffle=False, verbose=0)
        return model.variables

    assert_same(
        train(STRATEGIES[kind]().scope()), train(contextlib.nullcontext())
    )
