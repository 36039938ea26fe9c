"""Fused kernels compute Keras's rules, and are used where they do."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import nightly
from tests.strategies import optimizer_cases
from tests.strategies.optimizers_test import assert_same
import tfdist
from tfdist import fused_kernels

SGD, RMSprop = keras.optimizers.SGD, keras.optimizers.RMSprop
RULES = {
    "ResourceApplyGradientDescent": [lambda: SGD(0.1)],
    "ResourceApplyKerasMomentum": [
        lambda: SGD(0.1, 0.9),
        lambda: SGD(0.1, 0.9, nesterov=True),
    ],
    "ResourceApplyAdam": [
        lambda: keras.optimizers.Adam(0.1, beta_1=0.8, epsilon=1e-3),
        lambda: keras.optimizers.AdamW(0.1),
    ],
    "ResourceApplyAdamWithAmsgrad": [
        lambda: keras.optimizers.Adam(0.1, amsgrad=True)
    ],
    "ResourceApplyAdagradV2": [lambda: keras.optimizers.Adagrad(0.1)],
    "ResourceApplyRMSProp": [lambda: RMSprop(0.1, rho=0.8, momentum=0.5)],
    "ResourceApplyCenteredRMSProp": [
        lambda: RMSprop(0.1, momentum=0.5, centered=True)
    ],
    "ResourceApplyAdadelta": [lambda: keras.optimizers.Adadelta(0.5)],
    # With 1e-7, which is 0 in float16, Keras's rule divides 0 by 0.
    "ResourceApplyAdaMax": [lambda: keras.optimizers.Adamax(0.1, epsilon=1e-3)],
}
CASES = [(name, make) for name, makers in RULES.items() for make in makers]
# Types that a kernel is not for.
WITHOUT = {
    ("ResourceApplyAdagradV2", "float64"),
    ("ResourceApplyAdaMax", "bfloat16"),
}
HALVES = ("float16", "bfloat16")
# Differences from Keras, of weights of about 1.
TOLERANCES = {
    "float64": 1e-12,
    "float32": 1e-4,
    "float16": 1e-2,
    "bfloat16": 6e-2,
}
SHAPE = (3, 5)


class Halved(keras.optimizers.Adam):
    """A rule of its own, as users write them."""

    def update_step(self, gradient, variable, learning_rate):
        super().update_step(gradient, variable, learning_rate / 2)


class SubtractsTwice(SGD):
    """Assignments of its own."""

    def assign_sub(self, variable, value):
        super().assign_sub(variable, 2.0 * value)


def gradients(dtype, steps=5):
    random = np.random.default_rng(1)
    values = random.normal(size=(steps, *SHAPE))
    values[:, 0, 0] = 0.0
    return [tf.cast(value, dtype) for value in values]


def rule_of(optimizer):
    """What Keras hands to a strategy."""
    self = optimizer

    def apply_grad_to_update_var(var, grad, learning_rate):
        return self.update_step(grad, var, learning_rate)

    return apply_grad_to_update_var


def train(optimizer, update, dtype="float32"):
    """Returns weights and slots after each step, and types of operations."""
    first = np.linspace(-1, 1, 15).reshape(SHAPE)
    variable = keras.Variable(first, dtype=dtype)
    optimizer.build([variable])

    @tf.function
    def step(gradient):
        rate = tf.cast(optimizer.learning_rate, dtype)
        update(variable.value, rule_of(optimizer), (gradient, rate))
        optimizer.iterations.assign_add(1)

    seen = []
    for gradient in gradients(dtype):
        step(gradient)
        slots = [v.numpy() for v in optimizer.variables]
        seen.append([variable.numpy(), *slots])
    graph = step.get_concrete_function(gradient).graph
    return seen, {operation.type for operation in graph.get_operations()}


def by_kernel(variable, fn, args):
    fused_kernels.update(variable, fn, args, {})


@pytest.fixture
def of_all_sizes(monkeypatch):
    monkeypatch.setattr(fused_kernels, "FROM_BYTES", 0)


def by_rule(variable, fn, args):
    fn(variable, *args)


@pytest.mark.parametrize(
    "dtype",
    nightly.also(
        ["float32", "bfloat16"], sorted({*TOLERANCES} - {"float32", "bfloat16"})
    ),
)
@pytest.mark.parametrize(("kernel", "make"), CASES)
def test_a_kernel_is_keras_s_formula(of_all_sizes, kernel, make, dtype):
    found, operations = train(make(), by_kernel, dtype)
    expected, _ = train(make(), by_rule, dtype)
    assert (kernel in operations) == ((kernel, dtype) not in WITHOUT)
    # Of second moments in half precision, 1 - beta_2 is some percent off.
    end = 1 if dtype in HALVES else None
    for one, other in zip(found, expected, strict=True):
        for value, wanted in zip(one[:end], other[:end], strict=True):
            np.testing.assert_allclose(
                value.astype("float64"),
                wanted.astype("float64"),
                rtol=TOLERANCES[dtype],
                atol=TOLERANCES[dtype],
            )


@pytest.mark.parametrize(
    "make",
    [
        lambda: Halved(0.1),
        lambda: SubtractsTwice(0.1),
        lambda: RMSprop(0.1),
        lambda: keras.optimizers.Nadam(0.1),
        # Here the place of epsilon matters.
        lambda: keras.optimizers.Adagrad(0.1, initial_accumulator_value=0.0),
        lambda: keras.optimizers.Adagrad(0.1, epsilon=1e-3),
    ],
)
def test_other_rules_are_keras_s_own(of_all_sizes, make):
    found, operations = train(make(), by_kernel)
    expected, _ = train(make(), by_rule)
    assert not any(name.startswith("ResourceApply") for name in operations)
    for one, other in zip(found, expected, strict=True):
        for value, wanted in zip(one, other, strict=True):
            np.testing.assert_array_equal(value, wanted)


def test_small_variables_are_keras_s_own():
    _, operations = train(SGD(0.1), by_kernel)
    assert not any(name.startswith("ResourceApply") for name in operations)
    # A piece of a large variable is as large as it is.
    variable = tf.Variable(tf.zeros([1 << 19]))
    optimizer = SGD(1.0)
    optimizer.build([keras.Variable(tf.zeros([2]))])
    part = tf.Variable(tf.zeros([2]))

    def fn(var, gradient, rate):
        part.assign_sub(gradient * rate)

    fused_kernels.update(
        variable, fn, (tf.ones([2]), tf.ones([])), {}, shape=[2]
    )
    np.testing.assert_array_equal(part, [-1.0, -1.0])
    np.testing.assert_array_equal(variable[:3], 0.0)


def test_rows_and_other_updates_are_keras_s_own(of_all_sizes):
    """A gradient of a table's rows, and what an optimizer does besides."""
    variable = keras.Variable(np.ones(SHAPE), "float64")
    optimizer = SGD(1.0, weight_decay=0.5)
    optimizer.build([variable])
    rows = tf.IndexedSlices(tf.ones([1, 5], tf.float64), tf.constant([1]))
    rate = tf.ones([], tf.float64)
    by_kernel(variable.value, rule_of(optimizer), (rows, rate))
    expected = np.ones(SHAPE)
    expected[1] = 0.0
    np.testing.assert_array_equal(variable, expected)

    def decay(var, self=optimizer):
        var.assign(var * self.weight_decay)

    by_kernel(variable.value, decay, ())
    np.testing.assert_array_equal(variable, expected / 2)


STRATEGIES = {
    "all-reduce": tfdist.AllReduceStrategy,
    "async": tfdist.AsyncStrategy,
    "local": lambda: tfdist.ParameterServerStrategy(local_steps=1),
}
# Of `optimizer_cases`: clipping, decay, averages and accumulation, too. Rules
# without a kernel are those of `tests.strategies.optimizers_test` and
# `tests.all_reduce.optimizer_table`, and formulas those of the tests above.
TRAINED = [
    ("async", "accumulation and all"),
    ("local", "SGD nesterov"),
    ("async", "Adam amsgrad"),
    ("async", "RMSprop centered"),
    ("async", "MultiOptimizer"),
    ("async", "all at once"),
    ("async", "loss scale and all"),
    ("all-reduce", "AdamW"),
    ("all-reduce", "Adagrad"),
    ("all-reduce", "accumulation and all"),
    ("all-reduce", "all at once"),
    ("all-reduce", "loss scale overflows"),
]


@pytest.mark.nightly
@pytest.mark.parametrize(("strategy", "name"), TRAINED)
def test_strategies_train_by_kernels_as_without(of_all_sizes, strategy, name):
    # Without servers gradients of rows are made dense; Keras squares each row
    # of a batch by itself, also where two are of one word.
    dense = strategy == "all-reduce"
    found = optimizer_cases.train(name, STRATEGIES[strategy]().scope(), dense)
    # 1 - beta_2 is rounded to float32; weights that differ by so much may have
    # other neighbours in float16, and these other gradients.
    tolerance = 5e-3 if name in optimizer_cases.MIXED else 1e-4
    assert_same(found, optimizer_cases.plain(name, dense), tolerance)
