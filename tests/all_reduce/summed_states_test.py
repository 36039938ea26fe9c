"""State that a step assigns: its mean, or the sum of what workers add."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import nightly
from tests.all_reduce import programs
import tfdist
from tfdist.all_reduce import engine as engine_lib
from tfdist.all_reduce import tail
from tfdist.all_reduce import variables

OVER = tail.Tail(over=1.0)


class Counts(keras.layers.Layer):
    """Passes its input on, and adds 1 to each of its weights."""

    def build(self, shape):
        """Makes the weights, which begin with 5."""
        self.counts = [
            self.add_weight(
                shape=(),
                initializer=keras.initializers.Constant(5),
                dtype=dtype,
                trainable=False,
                aggregation=aggregation,
            )
            for aggregation in ("mean", "sum")
            for dtype in ("float32", "int64")
        ]

    def call(self, x):
        """Returns `x`."""
        for count in self.counts:
            count.assign_add(1)
        return x


@pytest.mark.parametrize(
    "eagerly", nightly.also([True], [False]), ids=["eagerly", "traced"]
)
def test_a_counter_of_all_workers_is_their_sum(monkeypatch, eagerly):
    strategy = tfdist.AllReduceStrategy()
    # Another worker does the same.
    monkeypatch.setattr(
        strategy._engine.collectives, "sum", lambda vector, *_: 2 * vector
    )
    with strategy.scope():
        counts = Counts()
        layer = keras.layers.Dense(1)
        model = keras.Sequential([keras.Input([1]), counts, layer])
        model.compile("sgd", programs.Mean(), run_eagerly=eagerly)
    x = np.ones([1, 1])
    for step in range(1, 3):
        model.train_on_batch(x, x)
        found = [float(count.numpy()) for count in counts.counts]
        assert found == [5 + step, 5 + step, 5 + 2 * step, 5 + 2 * step]


def test_state_in_a_function_of_an_eager_step_is_refused():
    strategy = tfdist.AllReduceStrategy()
    with strategy.scope():
        counts = Counts()
        counts.build([1])
    traced = tf.function(counts.call)
    with pytest.raises(RuntimeError, match="inside a tf.function that a step"):
        strategy.run(lambda: traced(tf.ones([1])))
    strategy.run(traced, (tf.ones([1]),))
    assert [float(count.numpy()) for count in counts.counts] == [6.0] * 4


def test_a_trained_weight_that_a_step_assigns_is_the_mean(monkeypatch):
    strategy = tfdist.AllReduceStrategy()
    # Another worker does the same.
    monkeypatch.setattr(
        strategy._engine.collectives, "sum", lambda vector, *_: 2 * vector
    )
    with strategy.scope():
        weight = keras.Variable(0.0)
        # Not a number, which comes from the chief alone.
        rate = keras.optimizers.schedules.PiecewiseConstantDecay(
            [9], [1.0, 1.0]
        )
        optimizer = keras.optimizers.SGD(rate)

    def step():
        weight.assign_add(4.0)
        optimizer.apply([tf.ones([])], [weight])
        weight.assign(0.5 * weight)

    strategy.run(step)
    assert float(weight) == (4 - 1) / 2


@pytest.mark.parametrize("is_traced", nightly.also([False], [True]))
def test_a_step_without_an_optimizer_shares_the_weights_that_it_trains(
    monkeypatch, is_traced
):
    strategy = tfdist.AllReduceStrategy()
    # Another worker's weight, which comes first, is more by 2.
    monkeypatch.setattr(
        strategy._engine.collectives,
        "sum",
        lambda vector, *_: 2 * vector + 2 * tf.one_hot(0, tf.size(vector)),
    )
    with strategy.scope():
        weight, count = tf.Variable(5.0), tf.Variable(0)
    assert count.kind is variables.Kind.OWN
    compared = []
    monkeypatch.setattr(
        strategy._engine.consistency,
        "compare_trained",
        lambda variables, has_trained: compared.append(
            (*variables, has_trained)
        ),
    )
    square = tf.function(lambda: 0.1 * weight * weight)
    square()

    def train():
        with tf.GradientTape() as tape:
            loss = square()
        weight.assign_sub(tape.gradient(loss, weight))

    def step():
        strategy.run(train)

    if is_traced:
        step = tf.function(step)
    step()
    assert float(weight) == 4 + 1
    monkeypatch.setattr(strategy._engine, "follow", lambda *_, **__: OVER)
    strategy.barrier()
    ((found, has_trained),) = compared
    assert found is weight and has_trained


def test_a_step_counts_once_if_another_assigns_the_same_by_hand():
    strategy = tfdist.AllReduceStrategy()
    with strategy.scope():
        weight, other = tf.Variable(5.0), keras.Variable(0.0)
        optimizer = keras.optimizers.SGD()

    def by_hand():
        with tf.GradientTape() as tape:
            loss = weight * weight
        weight.assign_sub(0.25 * tape.gradient(loss, weight))

    def by_an_optimizer():
        optimizer.apply([tf.ones([])], [other])
        by_hand()

    for step in (by_hand, by_an_optimizer):
        strategy.run(step)
    assert float(weight) == 5.0 / 4
    assert strategy.journal.count == 2


@pytest.mark.parametrize("is_traced_before", [False, True])
def test_nobody_waits_for_a_gradient_within_a_function(is_traced_before):
    strategy = tfdist.AllReduceStrategy()
    with strategy.scope():
        weight = tf.Variable(5.0)

    @tf.function
    def gradient():
        with tf.GradientTape() as tape:
            loss = weight * weight
        return tape.gradient(loss, weight)

    if is_traced_before:
        gradient()
    tf.function(strategy.run)(lambda: weight.assign_sub(0.25 * gradient()))
    assert float(weight) == 2.5
    assert strategy.journal.count == 0


def test_state_of_a_step_that_trains_nothing_stays_a_workers_own(monkeypatch):
    strategy, warnings = tfdist.AllReduceStrategy(), []
    monkeypatch.setattr(
        engine_lib.logging,
        "warning",
        lambda text, *a: warnings.append(text % a),
    )
    with strategy.scope():
        counts = Counts(name="counts")
        masked = keras.layers.Dense(1, name="masked")
        counts.build([1])
        masked.build([None, 1])
        total = tf.Variable(0.0)
    strategy._engine.num_workers = 2

    def add():
        total.assign_add(1.0)

    def sample():
        masked.kernel.assign(0.0 * masked.kernel)

    steps = (lambda: counts(tf.ones([1]))), add, sample
    for step in steps * 2:
        strategy.run(step)
    assert float(total) == 2.0
    assert len(warnings) == len(steps)
    names = "counts/variable", "Variable:0 ()", "masked/kernel:0 (1, 1)"
    for warning, name in zip(warnings, names, strict=True):
        assert name in warning
        assert "in which no optimizer takes a step" in warning
    assert strategy.journal.count == 0


@pytest.mark.nightly
@pytest.mark.parametrize("eagerly", [True, False], ids=["eagerly", "traced"])
@pytest.mark.parametrize(
    ("dtype", "change"), [("int64", 2**60 + 1), ("complex64", 1 + 2j)]
)
def test_states_that_no_float_holds_are_as_one_worker_has_them(
    monkeypatch, dtype, change, eagerly
):
    class Moved(keras.layers.Layer):
        def build(self, shape):
            self.moved = [
                self.add_weight(
                    shape=(),
                    initializer="zeros",
                    dtype=dtype,
                    trainable=False,
                    aggregation=aggregation,
                )
                for aggregation in ("mean", "sum")
            ]

        def call(self, x):
            for one in self.moved:
                one.assign(one + tf.constant(change, dtype))
            return x

    strategy = tfdist.AllReduceStrategy()
    # Another worker does the same.
    monkeypatch.setattr(
        strategy._engine.collectives, "sum", lambda vector, *_: 2 * vector
    )
    with strategy.scope():
        layer = Moved()
        model = keras.Sequential(
            [keras.Input([1]), layer, keras.layers.Dense(1)]
        )
        model.compile("sgd", programs.Mean(), run_eagerly=eagerly)
    x = np.ones([1, 1])
    for step in range(1, 3):
        model.train_on_batch(x, x)
        found = [one.numpy().item() for one in layer.moved]
        assert found == [step * change, 2 * step * change]


class CountsInFunction(keras.layers.Layer):
    """Counts its calls in a `tf.function` of its own."""

    def build(self, shape):
        """Makes two counts, which are assigned in the reverse order."""
        del shape
        self.counts = [
            self.add_weight(initializer="zeros", trainable=False)
            for _ in range(2)
        ]

    @tf.function
    def count(self):
        """Moves both."""
        for count in reversed(self.counts):
            count.assign_add(1.0)

    def call(self, x):
        """Returns its inputs."""
        self.count()
        return x


@pytest.mark.parametrize(
    "traced_by", nightly.also(["evaluation"], ["call", "training"])
)
def test_state_that_a_function_assigns_is_shared_by_each_step_that_calls_it(
    traced_by,
):
    """TensorFlow does not trace it anew for the second one."""
    strategy = tfdist.AllReduceStrategy()
    with strategy.scope():
        layer = CountsInFunction()
        model = keras.Sequential(
            [keras.Input([1]), layer, keras.layers.Dense(1)]
        )
    engine, x = strategy._engine, np.ones([2, 1], "float32")
    if traced_by == "call":
        model(x)
    if traced_by == "evaluation":
        model.compile("sgd", "mse")
        model.evaluate(x, x, verbose=0)
    for number in range(2):
        with strategy.scope():
            model.compile(keras.optimizers.SGD(0.1), "mse")
        before = [float(count) for count in layer.counts]
        model.fit(x, x, verbose=0)
        (lane,) = engine.lanes_of(model)
        assert [one.path for one in layer.counts] == [
            state.name.split(":")[0] for state in lane.states
        ], number
        assert [float(count) for count in layer.counts] == [
            value + 1.0 for value in before
        ]
    # A step of another model has no part in it.
    with strategy.scope():
        other = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
        other.compile("sgd", "mse")
    other.fit(x, x, verbose=0)
    (lane,) = engine.lanes_of(other)
    assert not lane.states
