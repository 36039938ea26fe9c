"""The role of a variable is decided by its maker, not by its name."""

import keras
import numpy as np
import pytest

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


# Under all methods: `weight_named_...` of `tests.keras_programs`.
@pytest.mark.parametrize(
    ("name", "strategy"),
    [("learning_rate", "sync"), ("kernel_gradient_accumulator", "averaging")],
)
def test_a_weight_of_any_name_is_a_parameter(name, strategy):
    with STRATEGIES[strategy]().scope():
        model = keras.Sequential([keras.Input([1]), Scaled(name)])
        model.compile(keras.optimizers.SGD(1.0), lambda y, p: -y * p)
    model.fit(
        np.ones([4, 1], "float32"), np.ones([4, 1]), batch_size=1, verbose=0
    )
    (weight,) = model.trainable_variables
    assert weight.value.role is Role.PARAMETER
    assert float(weight.numpy()) == 1.0 + 4.0


@pytest.mark.parametrize("name", NAMES)
def test_state_of_any_name_is_shared(name):
    with tfdist.AsyncStrategy().scope():
        layer = Scaled(name, trainable=False)
    assert layer.scale.value.role is Role.STATE


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
    with STRATEGIES[strategy]().scope():
        model = keras.Sequential(
            [
                keras.Input([1, 1], batch_size=1),
                keras.layers.SimpleRNN(
                    1,
                    stateful=True,
                    activation=None,
                    kernel_initializer="ones",
                    recurrent_initializer="ones",
                ),
            ]
        )
        metric = Summed()
        model.compile(keras.optimizers.SGD(0.0), "mse", metrics=[metric])
    (state,) = model.layers[0].states
    assert state.value.role is metric.total.value.role is Role.LOCAL
    x = np.array([1.0, 2.0, 4.0]).reshape([3, 1, 1])
    model.fit(x, x[:, 0], batch_size=1, shuffle=False, verbose=0)
    # h <- h + x for each batch, here alone.
    assert float(state.numpy()[0, 0]) == 7.0
    assert model.history.history["summed"] == [7.0]


@pytest.mark.parametrize(
    ("aggregation", "role"), [("none", Role.LOCAL), ("mean", Role.STATE)]
)
def test_aggregation_makes_a_variable_made_by_hand_shared(aggregation, role):
    with tfdist.AsyncStrategy().scope():
        made = keras.Variable(0.0, trainable=False, aggregation=aggregation)
    assert made.value.role is role
