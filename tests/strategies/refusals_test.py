"""What cannot work is refused at once, in the user's words."""

import json

import keras
import pytest
import tensorflow as tf

from tests.strategies.twins import classification
from tests.strategies.twins import compiled
from tests.strategies.twins import perceptron
import tfdist

X, Y = classification()


def _fit(model):
    return model.fit(X, Y, batch_size=6, verbose=0)


def test_model_built_outside_the_scope():
    model = perceptron()
    with tfdist.AsyncStrategy().scope():
        compiled(model)
    with pytest.raises(ValueError, match=r"outside strategy\.scope"):
        _fit(model)


def test_model_built_outside_a_custom_loop():
    strategy = tfdist.AsyncStrategy()
    model = perceptron()
    with strategy.scope():
        optimizer = keras.optimizers.SGD()

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(X))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(
            zip(gradients, model.trainable_variables, strict=True)
        )

    with pytest.raises(ValueError, match=r"strategy\.scope\(\)"):
        strategy.run(step)


@pytest.mark.parametrize("built", [False, True])
def test_optimizer_created_outside_the_scope(built):
    optimizer = keras.optimizers.Adam()
    with tfdist.AsyncStrategy().scope():
        model = compiled(perceptron(), optimizer)
    if built:
        optimizer.build(model.trainable_variables)
    with pytest.raises(ValueError, match=r"below `with strategy\.scope"):
        _fit(model)


@pytest.mark.parametrize(
    "strategy",
    [
        tfdist.AsyncStrategy,
        tfdist.AllReduceStrategy,
        tfdist.PeerToPeerStrategy,
        tfdist.ParameterAveragingStrategy,
    ],
)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_model_compiled_outside_the_scope(strategy, optimizer):
    with strategy().scope():
        model = perceptron()
    compiled(model, optimizer)
    with pytest.raises(ValueError, match=r"below `with strategy\.scope"):
        _fit(model)


class OwnStep(keras.Model):
    """Has an optimizer besides that of `compile`."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(3)
        self.own_optimizer = keras.optimizers.SGD()

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(self.dense(data[0]))
        weights = self.trainable_variables
        self.own_optimizer.apply(tape.gradient(loss, weights), weights)
        return {"loss": loss}


def test_optimizer_outside_the_scope_that_no_step_uses():
    with tfdist.AsyncStrategy().scope():
        model = OwnStep()
    model.compile()
    _fit(model)


def test_model_of_another_strategy():
    with tfdist.AsyncStrategy().scope():
        model = perceptron()
    with tfdist.AsyncStrategy().scope():
        compiled(model, "adam")
    with pytest.raises(ValueError, match=r"below `with strategy\.scope"):
        _fit(model)


class Conditional(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(3)
        self.count = self.add_weight(
            shape=(), initializer="zeros", trainable=False, name="my_count"
        )

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        logs = super().train_step(data)
        tf.cond(
            tf.reduce_sum(data[0]) > 0.0,
            lambda: self.count.value.assign_add(1.0),
            lambda: self.count.value.read_value(),
        )
        return logs


def test_assignment_in_a_branch():
    with tfdist.AsyncStrategy().scope():
        model = compiled(Conditional())
    with pytest.raises(RuntimeError, match="my_count.*tf.where"):
        _fit(model)


@pytest.mark.nightly
def test_assignment_in_a_function_outside_run():
    with tfdist.AsyncStrategy().scope():
        model = perceptron()

    @tf.function
    def assign():
        model.trainable_variables[0].value.assign_add(tf.ones([5, 4]))

    with pytest.raises(RuntimeError, match="kernel.*strategy.run"):
        assign()


def test_optimizer_applied_in_a_function_outside_run():
    strategy = tfdist.AsyncStrategy()
    with strategy.scope():
        model = perceptron()
        optimizer = keras.optimizers.SGD()
        optimizer.build(model.trainable_variables)

    @tf.function
    def apply():
        gradients = [tf.ones_like(v) for v in model.trainable_variables]
        optimizer.apply(gradients, model.trainable_variables)

    with pytest.raises(RuntimeError, match=r"strategy\.run"):
        apply()


def test_run_inside_run():
    strategy = tfdist.AsyncStrategy()

    @tf.function
    def outer():
        return strategy.run(lambda: strategy.run(lambda: tf.constant(1)))

    with pytest.raises(RuntimeError, match="cross-replica context"):
        outer()


def test_what_is_not_a_dataset():
    strategy = tfdist.AsyncStrategy()
    with pytest.raises(TypeError, match=r"tf\.data\.Dataset. .* dataset=list"):
        strategy.experimental_distribute_dataset([1, 2, 3])


def test_variable_without_a_full_shape():
    with tfdist.AsyncStrategy().scope():
        with pytest.raises(ValueError, match="fully defined"):
            tf.Variable([1.0], shape=[None], name="ragged")


def test_colocation_with_a_foreign_variable():
    foreign = tf.Variable(1.0)
    strategy = tfdist.AsyncStrategy()
    with strategy.scope(), pytest.raises(ValueError, match="created under"):
        with strategy.extended.colocate_vars_with(foreign):
            pass


@pytest.mark.parametrize(
    "arguments",
    [
        {"synchronization": tfdist.synchronization.Sync()},
        {"correction": tfdist.correction.InverseStaleness()},
        {"local_steps": 2},
        {"table_bytes": 1},
    ],
)
def test_helpers_of_other_methods(monkeypatch, arguments):
    cluster = {"worker": ["a:1"], "ps": ["b:1"], "helper": ["c:1"]}
    task = {"type": "worker", "index": 0}
    text = json.dumps({"cluster": cluster, "task": task})
    monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(ValueError, match='no job "helper" but with Async'):
        tfdist.ParameterServerStrategy(**arguments)
