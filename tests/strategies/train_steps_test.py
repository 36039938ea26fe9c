"""Steps that users write themselves do the same under a strategy."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import nightly
from tests.strategies.twins import assert_trains_the_same
from tests.strategies.twins import classification
from tests.strategies.twins import compiled
from tests.strategies.twins import perceptron
from tests.strategies.twins import traces
import tfdist
from tfdist.runtime.exchange import subgraph_replay

X, Y = classification()
_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def _apply(optimizer, tape, loss, variables):
    gradients = tape.gradient(loss, variables)
    optimizer.apply_gradients(zip(gradients, variables, strict=True))


def _batches():
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(6)


class Custom(keras.Model):
    """Writes the step out, with a metric and a count of its own."""

    def __init__(self):
        super().__init__()
        self.hidden = keras.layers.Dense(4, activation="tanh")
        self.dense = keras.layers.Dense(3)
        self.mean = keras.metrics.Mean("mean")
        self.seen = self.add_weight(
            shape=(), initializer="zeros", trainable=False, name="seen"
        )

    def call(self, x):
        return self.dense(self.hidden(x))

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        _apply(self.optimizer, tape, loss, self.trainable_variables)
        self.seen.assign_add(tf.cast(tf.shape(x)[0], tf.float32))
        self.mean.update_state(loss)
        return {"mean": self.mean.result()}


class Taught(keras.Model):
    """A teacher that is the moving average of what is trained."""

    def __init__(self, student, teacher):
        super().__init__()
        self.student, self.teacher = student, teacher

    def call(self, x):
        return self.student(x)

    def train_step(self, data):
        result = super().train_step(data)
        pairs = zip(self.teacher.weights, self.student.weights, strict=True)
        for mine, other in pairs:
            mine.assign(0.5 * mine + 0.5 * other)
        return result


@pytest.mark.parametrize(
    "make",
    nightly.also(
        [tfdist.AllReduceStrategy, tfdist.AsyncStrategy],
        [
            tfdist.PeerToPeerStrategy,
            lambda: tfdist.ParameterAveragingStrategy(period=2),
        ],
    ),
    ids=["all_reduce", "servers", "peers", "local"],
)
def test_a_teacher_follows_in_the_step(make):
    with make().scope():
        student, teacher = (
            keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
            for _ in range(2)
        )
        teacher.trainable = False
        for layer in (student, teacher):
            layer.build([None, 1])
        model = Taught(student, teacher)
        model.compile(keras.optimizers.SGD(1.0), lambda y, out: y * out)
    ones = np.ones([4, 1], "float32")
    model.fit(ones, ones, batch_size=1, verbose=0)
    # The gradient is 1.
    w, mean = 0.0, 0.0
    for _ in range(4):
        w -= 1.0
        mean = (mean + w) / 2
    assert [float(layer.kernel[0, 0]) for layer in (student, teacher)] == [
        w,
        mean,
    ]


class Decorated(keras.Sequential):
    """A step that is a `tf.function`, with a branch for AutoGraph."""

    @tf.function
    def train_step(self, data):
        result = super().train_step(data)
        # After the optimizer's step.
        kernel, _ = self.trainable_weights
        kernel.assign(keras.ops.clip(kernel, -0.125, 0.125))
        if result["loss"] > 0.0:
            result["positive"] = tf.constant(1.0)
        else:
            result["positive"] = tf.constant(0.0)
        return result


@pytest.mark.nightly
@pytest.mark.parametrize(
    "strategy",
    [
        tfdist.AsyncStrategy,
        tfdist.AllReduceStrategy,
        lambda: tfdist.ParameterAveragingStrategy(period=2),
    ],
    ids=["servers", "all_reduce", "local"],
)
@pytest.mark.parametrize("eagerly", [False, True])
def test_a_train_step_that_is_a_function(strategy, eagerly):
    strategy = strategy()
    with strategy.scope():
        model = Decorated([keras.Input([5]), keras.layers.Dense(3)])
        model.compile("sgd", _loss, run_eagerly=eagerly)
    before = model.get_weights()
    history = model.fit(X, Y, batch_size=6, verbose=0).history
    assert history["positive"] == [1.0]
    assert not np.array_equal(before[1], model.get_weights()[1])
    assert np.max(np.abs(model.get_weights()[0])) <= 0.125


class Unchanged(keras.Sequential):
    """Its own step, with which Keras does not build the optimizer before."""

    def train_step(self, data):
        return super().train_step(data)


@pytest.mark.parametrize(
    "make",
    nightly.also(
        [tfdist.AllReduceStrategy, tfdist.AsyncStrategy],
        [tfdist.PeerToPeerStrategy, tfdist.ParameterAveragingStrategy],
    ),
)
def test_a_loss_is_scaled_by_what_gradients_are_divided_by(make):
    with make().scope():
        kernel = keras.layers.Dense(
            1, use_bias=False, kernel_initializer="zeros"
        )
        model = Unchanged([keras.Input([1]), kernel])
        optimizer = keras.optimizers.LossScaleOptimizer(
            keras.optimizers.SGD(1.0), initial_scale=4.0, dynamic_growth_steps=2
        )
        model.compile(optimizer, lambda y, y_pred: y_pred)
    x = np.ones([8, 1], "float32")
    model.fit(x, x, batch_size=1, verbose=0)
    assert float(optimizer.dynamic_scale) == 64.0
    # Each gradient is 1.
    assert float(kernel.kernel[0, 0]) == -8.0
    names = [v.path.split("/")[-1] for v in optimizer.variables]
    assert names.count("dynamic_scale") == names.count("step_counter") == 1


@pytest.mark.parametrize("steps_per_execution", nightly.also([2], [1]))
def test_custom_train_step(steps_per_execution):
    def train(scope):
        with scope():
            model = compiled(
                Custom(),
                "adam",
                metrics=None,
                steps_per_execution=steps_per_execution,
            )
        history = model.fit(_batches(), epochs=2, verbose=0).history
        return history, traces(model), model.seen.numpy()

    assert assert_trains_the_same(train)[2] == 2 * len(X)


class Adversarial(keras.Model):
    """Two optimizers in one step, the second after the first."""

    def __init__(self):
        super().__init__()
        self.generator = keras.Sequential(
            [keras.Input((2,)), keras.layers.Dense(5)]
        )
        self.discriminator = keras.Sequential(
            [
                keras.Input((5,)),
                keras.layers.Dense(4, activation="tanh"),
                keras.layers.Dense(1),
            ]
        )
        self.seeds = keras.random.SeedGenerator(3)

    def compile(self, generator_optimizer, discriminator_optimizer):
        super().compile()
        self.generator_optimizer = generator_optimizer
        self.discriminator_optimizer = discriminator_optimizer

    def train_step(self, real):
        noise = keras.random.normal((6, 2), seed=self.seeds)
        with tf.GradientTape() as tape:
            fake_logits = self.discriminator(self.generator(noise))
            real_logits = self.discriminator(real)
            discriminator_loss = tf.reduce_mean(
                tf.nn.softplus(fake_logits) + tf.nn.softplus(-real_logits)
            )
        _apply(
            self.discriminator_optimizer,
            tape,
            discriminator_loss,
            self.discriminator.trainable_variables,
        )
        # Judged by the discriminator as it is after its own step.
        with tf.GradientTape() as tape:
            fake_logits = self.discriminator(self.generator(noise))
            generator_loss = tf.reduce_mean(tf.nn.softplus(-fake_logits))
        _apply(
            self.generator_optimizer,
            tape,
            generator_loss,
            self.generator.trainable_variables,
        )
        return {"d": discriminator_loss, "g": generator_loss}


@pytest.mark.nightly
def test_two_optimizers_in_one_step(monkeypatch):
    """The second optimizer's gradients depend on what the first has done.

    So they are not computed again on servers: the rates of the servers' step
    number are, and no more.
    """
    built_there = []
    plan = subgraph_replay.Lifter.plan

    def spy(self, value, live):
        planned = plan(self, value, live)
        if planned is not None:
            built_there.append(value.shape.as_list())
        return planned

    monkeypatch.setattr(subgraph_replay.Lifter, "plan", spy)
    rate = keras.optimizers.schedules.InverseTimeDecay(0.1, 1, 1.0)

    def train(scope):
        with scope():
            model = Adversarial()
            model.compile(keras.optimizers.SGD(rate), keras.optimizers.Adam())
        data = tf.data.Dataset.from_tensor_slices(X).batch(6)
        history = model.fit(data, epochs=2, verbose=0).history
        optimizers = model.generator_optimizer, model.discriminator_optimizer
        counts = [int(one.iterations) for one in optimizers]
        state = [np.array(v.numpy()) for o in optimizers for v in o.variables]
        return history, counts, state, model.get_weights()

    assert assert_trains_the_same(train)[1] == [8, 8]
    assert built_there
    assert all(shape == [] for shape in built_there)


def _loop(scope, run, distribute):
    """A custom training loop; returns its losses and what it has made."""
    with scope():
        model = perceptron()
        optimizer = keras.optimizers.Adam(0.05)
        mean = keras.metrics.Mean()

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = _loss(y, model(x, training=True))
        if loss < 1e6:  # For AutoGraph to convert.
            mean.update_state(2.0 * loss)
        _apply(optimizer, tape, loss, model.trainable_variables)
        mean.update_state(loss)
        return loss

    call = tf.function(step)

    def train_step(batch):
        return run(call, batch)

    losses = []
    for _ in range(2):
        for batch in distribute(_batches()):
            losses.append(float(train_step(batch)))
    return {
        "losses": losses,
        "mean": float(mean.result()),
        "weights": model.get_weights(),
        "optimizer": [np.array(v.numpy()) for v in optimizer.variables],
    }


@pytest.mark.nightly
def test_custom_loop():
    strategies = []

    def train(scope):
        strategy = tf.distribute.get_strategy()
        if isinstance(getattr(scope, "__self__", None), tf.distribute.Strategy):
            strategy = scope.__self__
            strategies.append(strategy)
        return _loop(
            scope,
            lambda fn, batch: strategy.run(fn, args=batch),
            strategy.experimental_distribute_dataset,
        )

    assert_trains_the_same(train)
    (strategy,) = strategies
    assert strategy.updates_applied() == [8]


@pytest.mark.nightly
def test_reductions_and_distributed_values():
    strategy = tfdist.AsyncStrategy()
    assert strategy.num_replicas_in_sync == 1

    @tf.function
    def step():
        return strategy.run(
            lambda: tf.distribute.get_replica_context().all_reduce(
                tf.distribute.ReduceOp.SUM, tf.constant(3.0)
            )
        )

    per_replica = step()
    assert float(strategy.reduce("SUM", per_replica, axis=None)) == 3.0
    assert [float(v) for v in strategy.experimental_local_results(per_replica)]

    values = strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant(context.replica_id_in_sync_group)
    )
    assert int(strategy.experimental_local_results(values)[0]) == 0


def test_dataset_from_function_is_told_its_place():
    strategy = tfdist.AsyncStrategy()

    def make(context):
        assert context.num_input_pipelines == 1
        assert context.input_pipeline_id == 0
        assert context.num_replicas_in_sync == 1
        return tf.data.Dataset.range(3).batch(
            context.get_per_replica_batch_size(2)
        )

    batches = strategy.distribute_datasets_from_function(make)
    assert [b.numpy().tolist() for b in batches] == [[0, 1], [2]]


@pytest.mark.nightly
def test_variables_assigned_in_a_step():
    """What a step reads after an assignment is what it has assigned."""

    def train(scope):
        strategy = getattr(scope, "__self__", tf.distribute.get_strategy())
        with scope():
            weight = tf.Variable([1.0, 2.0], name="weight")
            state = tf.Variable([0.5, 0.5], trainable=False, name="state")

        @tf.function
        def step():
            def body():
                state.assign(0.9 * state + 0.1 * weight)
                weight.assign_sub(state)
                state.assign_add(weight * weight)
                return state + weight

            return strategy.run(body)

        returned = [step().numpy() for _ in range(3)]
        return returned, weight.numpy(), state.numpy()

    assert_trains_the_same(train)
