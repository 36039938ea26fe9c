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

from tests.strategies.twins import assert_same
import tfdist

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
SOME = [("all_reduce", "")]
OTHERS = [
    *((kind, "") for kind in STRATEGIES if (kind, "") not in SOME),
    *(
        (kind, setting)
        for kind in ("servers", "all_reduce", "local")
        for setting in SETTINGS
        if setting and (kind, setting) not in SOME
    ),
]


@pytest.mark.nightly
@pytest.mark.parametrize(("kind", "setting"), [*SOME, *OTHERS])
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


@pytest.mark.nightly
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


@pytest.mark.nightly
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
