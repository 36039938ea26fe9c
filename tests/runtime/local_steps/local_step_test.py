"""The states of an optimizer's step, as it is traced."""

from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.runtime.local_steps import local_step
from tfdist.runtime.replicas import replica_sync
from tfdist.runtime.variables.variables import Role


def variable(ordinal, role):
    return mock.Mock(
        ordinal=ordinal,
        role=role,
        keras_variable=None,
        num_assignments=0,
        assigned_by_workers=False,
    )


def test_state_that_is_assigned_before_and_after_a_step_is_exchanged_once():
    # With Async(), an exchange adds a share of a worker's statistics.
    local = mock.Mock(assigned_within={})
    both, before, after = (variable(k, Role.STATE) for k in range(3))
    with tf.Graph().as_default():
        step = local_step.LocalStep(local, [])
        # As `update` notes a parameter.
        step._touched[3] = variable(3, Role.PARAMETER)
        step.assigned(both)
        step.assigned(before)
        step.assigned(variable(4, Role.CLOCK))
        step.assigned(both)
        step.assigned(after)
        step.finish()
    (call,) = local.after_step.call_args_list
    assert call.kwargs["states"] == [both, before, after]


def assigned_state(evaluates, trains):
    """State that a step has assigned.

    Args:
        evaluates: whether the step is one of an evaluation.
        trains: whether an optimizer takes a step in it.
    """
    state = variable(0, Role.STATE)
    with tf.Graph().as_default():
        step = local_step.LocalStep(
            mock.Mock(assigned_within={}), [], evaluates
        )
        step.before_mutation(state)
        step.assigned(state)
        if trains:
            step._touched[1] = variable(1, Role.PARAMETER)
            step.assigned(variable(2, Role.CLOCK))
        step.finish()
    return state


@pytest.mark.parametrize("trains", [False, True])
def test_state_that_is_exchanged_is_not_refreshed_without_parameters(trains):
    # What a test step assigns is put back, and comes with no exchange.
    state = assigned_state(evaluates=not trains, trains=trains)
    assert replica_sync._is_lazy(state) != trains


def test_all_steps_of_an_optimizer_have_the_same_state():
    # It may be assigned before one of them alone, as where a generator is run
    # once for several steps of its critic.
    local, clock = mock.Mock(assigned_within={}), variable(3, Role.CLOCK)
    first, last = (variable(k, Role.STATE) for k in range(2))
    with tf.Graph().as_default():
        step = local_step.LocalStep(local, [])
        for state in (first, None, last):
            if state is not None:
                step.assigned(state)
            step._touched[2] = variable(2, Role.PARAMETER)
            step.assigned(clock)
        step.finish()
    found = [c.kwargs["states"] for c in local.after_step.call_args_list]
    assert found == [[first, last]] * 3


def parameter(ordinal, trainable, *, overwritten=False):
    """A weight whose Keras variable is trainable or not."""
    keras_variable = mock.Mock(
        trainable=trainable, overwrite_with_gradient=overwritten
    )
    return mock.Mock(
        num_assignments=0,
        ordinal=ordinal,
        role=Role.PARAMETER,
        keras_variable=lambda: keras_variable,
    )


@pytest.mark.parametrize("is_branch", [False, True])
def test_weights_that_nothing_trains_are_exchanged_as_state(is_branch):
    local = mock.Mock(assigned_within={})
    student, teacher = parameter(0, True), parameter(1, False)
    with tf.Graph().as_default() as graph:
        step = local_step.LocalStep(local, [])
        step.assigned(student)
        step.assigned(teacher)
        step._touched[0] = student
        with (tf.Graph() if is_branch else graph).as_default():
            step.assigned(variable(2, Role.CLOCK))
        step.finish()
        (call,) = local.after_step.call_args_list
        assert call.kwargs["states"] == [teacher]
        for made, advice in (
            (parameter(3, True), "set trainable=False on its layer"),
            (variable(4, Role.PARAMETER), r"make it as tf.Variable\(..., tra"),
        ):
            step.assigned(made)
            with pytest.raises(ValueError, match=advice):
                step.finish()
            step._assigned.clear()


def test_weights_that_gradients_overwrite_are_exchanged_as_state(monkeypatch):
    # Of float8 layers, which an optimizer assigns and does not update.
    monkeypatch.setattr(
        local_step.private_keras_variables,
        "optimizer_under_way",
        mock.Mock(),
    )
    local = mock.Mock(assigned_within={})
    scale, constrained = (
        parameter(0, True, overwritten=True),
        parameter(1, True),
    )
    with tf.Graph().as_default():
        step = local_step.LocalStep(local, [])
        step.assigned(scale)
        step._touched[1] = constrained
        step.assigned(constrained)
        step.assigned(variable(2, Role.CLOCK))
        step.finish()
    (call,) = local.after_step.call_args_list
    assert call.kwargs["states"] == [scale]


@pytest.mark.parametrize("trains", [False, True])
def test_assignments_of_an_evaluation_count_if_they_last(trains):
    state = assigned_state(evaluates=True, trains=trains)
    assert state.num_assignments == trains


class CountsInFunction(keras.layers.Layer):
    """Counts its calls in a `tf.function` of its own."""

    def build(self, shape):
        """Makes the count."""
        del shape
        self.steps = self.add_weight(initializer="zeros", trainable=False)

    @tf.function
    def count(self):
        """Moves it."""
        self.steps.assign_add(1.0)

    def call(self, x):
        """Returns its inputs."""
        self.count()
        return x


def sgd():
    return keras.optimizers.SGD(0.1)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "make", [sgd, lambda: keras.optimizers.LossScaleOptimizer(sgd())]
)
def test_state_that_a_function_assigns_is_exchanged_with_each_optimizer(make):
    """TensorFlow does not trace the function anew for the second one.

    A scale of losses has the optimizer's step in a branch.
    """
    strategy = tfdist.ParameterAveragingStrategy(2)
    with strategy.scope():
        layer = CountsInFunction()
        model = keras.Sequential(
            [keras.Input([1]), layer, keras.layers.Dense(1)]
        )
    x = np.ones([2, 1], "float32")
    for _ in range(2):
        with strategy.scope():
            model.compile(make(), "mse")
        model.fit(x, x, verbose=0)
        last = strategy._runtime.local._optimizers.all[-1]
        assert any(one is layer.steps.value for one in last.states)


@pytest.mark.nightly
def test_a_step_may_read_in_a_function_what_others_assign_there():
    strategy = tfdist.ParameterAveragingStrategy(2)
    with strategy.scope():
        norm = keras.layers.BatchNormalization()
        model = keras.Sequential(
            [keras.Input([1]), norm, keras.layers.Dense(1)]
        )
        optimizer = sgd()
        optimizer.build(model.trainable_variables)

    @tf.function
    def forward(x, training):
        return model(x, training=training)

    def step(x):
        variables = model.trainable_variables
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(forward(x, True))
        optimizer.apply(tape.gradient(loss, variables), variables)

    x = tf.ones([2, 1])
    tf.function(lambda: strategy.run(step, (x,)))()
    look = tf.function(lambda: strategy.run(lambda: forward(x, False)))
    before = norm.get_weights()
    assert look().shape == (2, 1)
    for one, other in zip(before, norm.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
