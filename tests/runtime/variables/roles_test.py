"""The role of a variable is decided by its maker, not by its name."""

import keras
import pytest
import tensorflow as tf

import tfdist
from tfdist.runtime.variables.variables import Role

# Names that Keras gives to an optimizer's own variables.
NAMES = [
    "learning_rate",
    "dynamic_scale",
    "step_counter",
    "kernel_gradient_accumulator",
]
STRATEGIES = {
    "async": tfdist.AsyncStrategy,
    "sync": lambda: tfdist.ParameterServerStrategy(
        synchronization=tfdist.synchronization.Sync()
    ),
    "averaging": lambda: tfdist.ParameterAveragingStrategy(period=2),
}


class Scaled(keras.layers.Layer):
    """Multiplies by a weight with a name that is asked for."""

    def __init__(self, weight, trainable=True):
        super().__init__()
        self.scale = self.add_weight(
            shape=(), initializer="ones", name=weight, trainable=trainable
        )

    def call(self, x):
        """Returns the product."""
        return self.scale * x


@pytest.mark.parametrize("name", NAMES)
def test_weights_of_any_name_are_parameters_or_shared_state(name):
    """They train as such: `tests.keras_programs.layers`."""
    with tfdist.AsyncStrategy().scope():
        trained, state = Scaled(name), Scaled(name, trainable=False)
    assert trained.scale.value.role is Role.PARAMETER
    assert state.scale.value.role is Role.STATE


def test_an_optimizer_s_own_stay_with_the_worker():
    with tfdist.AsyncStrategy().scope():
        weight = keras.Variable([1.0])
        optimizer = keras.optimizers.LossScaleOptimizer(
            keras.optimizers.SGD(gradient_accumulation_steps=2)
        )
        optimizer.build([weight])
    roles = {v.name: v.value.role for v in optimizer.variables}
    own = {name for name, role in roles.items() if role is Role.LOCAL}
    assert {"learning_rate", "dynamic_scale", "step_counter"} <= own
    assert any(name.endswith("gradient_accumulator") for name in own)


class Summed(keras.metrics.Metric):
    """A metric that keeps its sum in a variable made by hand."""

    def __init__(self):
        super().__init__(name="summed")
        self.total = keras.Variable(0.0, trainable=False, name="total")

    def update_state(self, y, p, sample_weight=None):
        """Adds a batch's targets."""
        self.total.assign_add(keras.ops.sum(y))

    def result(self):
        """Returns the sum."""
        return self.total.value

    def reset_state(self):
        """Begins anew."""
        self.total.assign(0.0)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_state_of_a_worker_s_batches_stays_with_it(strategy):
    """Its values in training: `tests.keras_programs.layers`."""
    with STRATEGIES[strategy]().scope():
        layer = keras.layers.SimpleRNN(1, stateful=True)
        keras.Sequential([keras.Input([1, 1], batch_size=1), layer])
        metric = Summed()
    (state,) = layer.states
    assert state.value.role is metric.total.value.role is Role.LOCAL


@pytest.mark.parametrize(
    ("aggregation", "role"), [("none", Role.LOCAL), ("mean", Role.STATE)]
)
def test_aggregation_makes_a_variable_made_by_hand_shared(aggregation, role):
    with tfdist.AsyncStrategy().scope():
        made = keras.Variable(0.0, trainable=False, aggregation=aggregation)
    assert made.value.role is role


def test_a_step_counter_of_the_user_s_own_stays_with_the_worker():
    """Marked as TensorFlow marks its global step, and Keras `iterations`."""
    first = tf.VariableAggregation.ONLY_FIRST_REPLICA
    with tfdist.AsyncStrategy().scope():
        optimizer = keras.optimizers.SGD()
        made = tf.Variable(
            tf.zeros([], tf.int64), trainable=False, aggregation=first
        )
        in_layer = keras.layers.Layer().add_weight(
            dtype="int32",
            initializer="zeros",
            trainable=False,
            aggregation="only_first_replica",
        )
    assert optimizer.iterations.value.role is Role.ITERATIONS
    assert made.role is in_layer.value.role is Role.LOCAL
