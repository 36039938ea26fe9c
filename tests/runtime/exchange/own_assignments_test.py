"""Steps that assign trained weights themselves, beside optimizers."""

import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.averaging import virtual_workers
from tests.runtime.keras_hooks import evaluations_test
import tfdist
from tfdist.runtime.keras_hooks import evaluations
from tfdist.runtime.keras_hooks import weight_changes
from tfdist.synchronization import BoundedStaleness
from tfdist.synchronization import Sync

X = np.ones([1, 1], "float32")


class Critic(keras.Model):
    """Three steps of one weight, which it sets before each of them.

    Args:
        between: called between the first two steps.
    """

    def __init__(self, between=lambda model: None):
        super().__init__()
        self.w = self.add_weight(shape=(), initializer="zeros")
        self._between = between

    def call(self, x):
        return x * self.w

    def train_step(self, data):
        del data
        self.w.assign(5.0)
        for number in range(3):
            if number == 1:
                others = tf.py_function(lambda: self._between(self), [], [])
                with tf.control_dependencies([others]):
                    old = tf.identity(self.w)
                    self.w.assign(tf.minimum(old, 3.0))
            elif number:
                self.w.assign(tf.minimum(self.w, 3.0))
            with tf.GradientTape() as tape:
                loss = -tf.convert_to_tensor(self.w)
            gradients = tape.gradient(loss, [self.w])
            self.optimizer.apply(gradients, [self.w])
        return {"w": self.w.value}


def trained(strategy, weight_decay=None, **arguments):
    with strategy.scope():
        model = Critic(**arguments)
        model.compile(keras.optimizers.SGD(1.0, weight_decay=weight_decay))
    model.fit(X, verbose=0)
    return float(model.w)


@pytest.mark.nightly
def test_updates_are_of_the_weights_that_a_step_has_set():
    """Where a log says when servers update; and nothing has come late."""
    # 5 becomes 2.5 + 1, which is clipped to 3; then 1.5 + 1 and 1.25 + 1.
    assert trained(tfdist.DCASGDStrategy(), weight_decay=0.5) == 2.25


class Reset(keras.Model):
    """Sets its weight, and then trains it."""

    def __init__(self):
        super().__init__()
        self.w = self.add_weight(shape=(), initializer="zeros")

    def call(self, x):
        return x * self.w

    def train_step(self, data):
        del data
        self.w.assign(5.0)
        with tf.GradientTape() as tape:
            loss = self.optimizer.scale_loss(tf.convert_to_tensor(self.w))
        self.optimizer.apply(tape.gradient(loss, [self.w]), [self.w])
        return {"w": self.w.value}


def trained_in_a_branch(kind):
    """A model of a class after a step whose update is in a branch."""
    with tfdist.AsyncStrategy().scope():
        model = kind()
        model.compile(
            keras.optimizers.LossScaleOptimizer(
                keras.optimizers.SGD(1.0), initial_scale=1.0
            )
        )
    model.fit(X, verbose=0)
    return model


@pytest.mark.nightly
def test_updates_in_a_branch_are_of_the_weights_that_a_step_has_set():
    assert float(trained_in_a_branch(Reset).w) == 4.0


class SlowWeights(keras.Model):
    """Goes halfway back after its optimizer's step, and keeps the loss."""

    def __init__(self):
        super().__init__()
        self.w = self.add_weight(shape=(), initializer="zeros")
        self.loss_before = self.add_weight(
            shape=(), initializer="zeros", trainable=False
        )

    def call(self, x):
        return x * self.w

    def train_step(self, data):
        del data
        slow = tf.identity(self.w)
        with tf.GradientTape() as tape:
            loss = self.w + 1.0
            scaled = self.optimizer.scale_loss(loss)
        self.optimizer.apply(tape.gradient(scaled, [self.w]), [self.w])
        self.loss_before.assign(loss)
        self.w.assign((slow + self.w) / 2)
        return {"loss": loss}


@pytest.mark.nightly
def test_what_was_read_before_an_update_in_a_branch_stays_as_it_was():
    model = trained_in_a_branch(SlowWeights)
    assert [float(w) for w in model.weights] == [-0.5, 1.0]


@pytest.mark.nightly
def test_a_counter_of_a_wrapper_is_raised_in_a_branch():
    with tfdist.AsyncStrategy().scope():
        model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
        wrapper = keras.optimizers.MultiOptimizer(
            keras.optimizers.OptimizerMap(keras.optimizers.SGD(1.0))
        )
        model.compile(
            keras.optimizers.LossScaleOptimizer(wrapper, initial_scale=1.0),
            "mse",
        )
    for _ in range(2):
        model.fit(X, X, verbose=0)
    assert int(wrapper.iterations) == 2


@pytest.mark.nightly
def test_weights_set_between_two_steps_keep_what_others_did():
    def others(model):
        evaluations_test.Server(model, model.w).push()

    found = trained(tfdist.AsyncStrategy(), between=others)
    assert found == 5 + 3 - evaluations_test.OTHERS


class Assigned(keras.Model):
    """Assigns its weights in three ways, after another worker's update."""

    def __init__(self):
        super().__init__()
        self.masked, self.put_back, self.of_data = (
            self.add_weight(shape=(), initializer=tf.constant_initializer(4.0))
            for _ in range(3)
        )

    def call(self, x):
        return x

    def _others(self):
        for weight in self.trainable_weights:
            evaluations_test.Server(self, weight).push()

    def train_step(self, data):
        x = tf.reduce_mean(data[0])
        others = tf.py_function(self._others, [], [])
        with tf.control_dependencies([others]):
            before = tf.identity(self.put_back)
            self.masked.assign(self.masked * 0.5)
            self.put_back.assign(self.put_back * 0.5)
            self.put_back.assign(before)
            self.of_data.assign(self.of_data * x * 0.5)
        weights = self.trainable_weights
        with tf.GradientTape() as tape:
            loss = -sum(tf.square(w) / 2 for w in weights)
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        return {"loss": loss}


@pytest.mark.nightly
def test_weights_that_each_worker_projects_before_its_step_do_not_add_up():
    """Changes of what others have changed, too, would grow without end."""
    with tfdist.AsyncStrategy().scope():
        model = Assigned()
        model.compile(keras.optimizers.SGD(1.0))
    model.fit(X, verbose=0)
    others = 4 - evaluations_test.OTHERS
    assert float(model.masked) == others / 2 + 2
    # The sum of its changes, and that of what the data makes, is as ever.
    assert float(model.put_back) == others + 4
    assert float(model.of_data) == others - 2 + 2


@pytest.mark.nightly
def test_values_from_before_a_former_step_of_one_function_are_old():
    """As of a Lookahead: the server would compute with the newest, twice."""
    strategy = tfdist.AsyncStrategy()
    with strategy.scope():
        w = tf.Variable(4.0)

    @tf.function
    def steps():
        slow = tf.identity(w)
        strategy.run(lambda: w.assign_sub(2.0))
        strategy.run(lambda: w.assign(0.5 * (w + slow)))

    steps()
    strategy.pull()
    assert float(w) == 3.0


def test_values_made_outside_a_branch_are_assigned_in_it():
    strategy = tfdist.AsyncStrategy()
    with strategy.scope():
        w = keras.Variable(5.0)
        optimizer = keras.optimizers.SGD(1.0)
        optimizer.build([w])

    def step(flag):
        clipped = tf.minimum(w.value, 3.0)

        def train():
            w.assign(clipped)
            optimizer.apply([tf.ones([])], [w])
            return 0.0

        return tf.cond(flag, train, lambda: 1.0)

    tf.function(lambda: strategy.run(step, [tf.constant(True)]))()
    assert float(w) == 2.0


class Clipped(keras.Model):
    """Clips its weight before a step, after another worker's update."""

    def __init__(self, trains):
        super().__init__()
        self.w, self.teacher = (
            self.add_weight(shape=(), initializer=tf.constant_initializer(4.0))
            for _ in range(2)
        )
        self.teacher.trainable = False
        self._clipped = self.w if trains else self.teacher
        self.compile(keras.optimizers.SGD(1.0))

    def call(self, x):
        return x

    def _others(self):
        evaluations_test.Server(self, self._clipped).push()

    def train_step(self, data):
        others = tf.py_function(self._others, [], [])
        with tf.control_dependencies([others]):
            self._clipped.assign(tf.minimum(self._clipped, 3.0))
        self.optimizer.apply([tf.fill([], 0.5)], [self.w])
        return {"loss": 0.0}


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("copies", "trains", "exchanges"),
    [
        (None, True, 2),
        ("server", True, 1),
        ("worker", True, 1),
        ("server", False, 1),
        (None, False, 1),
    ],
)
def test_corrections_compare_with_the_weights_before_they_were_clipped(
    copies, trains, exchanges
):
    """A second exchange would give them the newest, so nothing would be late.

    Without a correction that compares, it has the server clip the newest.
    """
    correction = copies and tfdist.correction.DelayCompensation(
        1.0, None, backups=copies
    )
    strategy = tfdist.ParameterServerStrategy(
        synchronization=BoundedStaleness(4), correction=correction
    )
    with strategy.scope():
        model = Clipped(trains)
    model.train_on_batch(X, X)
    assert strategy._runtime.journal.exchanges == exchanges
    newest = 4.0 - evaluations_test.OTHERS
    if not trains:
        assert (float(model.w), float(model.teacher)) == (3.5, newest)
        return
    change = -1.0 if copies else 0.0
    gradient = 0.5
    if copies:
        # g + g g (w now - w before).
        gradient += 0.25 * (newest - 4.0)
    assert float(model.w) == newest + change - gradient


class Taught(keras.Model):
    """Moves its teacher before the optimizer's step."""

    def __init__(self):
        super().__init__()
        self.student, self.teacher = (
            keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
            for _ in range(2)
        )
        self.teacher.trainable = False
        for layer in (self.student, self.teacher):
            layer.build([None, 1])
        self.compile(keras.optimizers.SGD(1.0), lambda y, out: y * out)

    def call(self, x):
        return self.student(x)

    def train_step(self, data):
        mine, other = self.teacher.kernel, self.student.kernel
        mine.assign(0.5 * mine + 0.5 * other)
        return super().train_step(data)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "strategy", [tfdist.AsyncStrategy, tfdist.AsyncLocalSGDStrategy]
)
def test_a_call_that_moves_a_teacher_has_changed_it(strategy):
    with strategy().scope():
        model = Taught()
        model.idle = keras.layers.Dense(1, trainable=False)
        probe, other = (
            keras.Sequential([keras.Input([1]), layer])
            for layer in (model.teacher, model.idle)
        )
    changes = weight_changes.WeightChanges()
    changes.begin(model, 1)
    model.train_on_batch(X, X)
    changes.end(model, 1)
    assert changes.last_of_kept(probe) == 1
    assert changes.last_of_kept(other) == 0
    assert changes.last_of_kept(model) == 0
    # Its steps were traced before the calls that this one has noted.
    changes = weight_changes.WeightChanges()
    changes.begin(model, 1)
    changes.end(model, 1)
    assert changes.last_of_kept(probe) == 1
    assert changes.last_of_kept(other) == 0


@pytest.mark.nightly
def test_teachers_that_synchronous_workers_move_first_move_once_per_update():
    workers = virtual_workers.VirtualWorkers(2, None, Sync(), Taught)
    w, teacher = 0.0, 0.0
    for step in range(3):
        # The gradients are 1 and 3, 2 and 4, 3 and 5.
        workers.round([[(X, X * (step + 1))], [(X, X * (step + 3))]])
        teacher = (teacher + w) / 2
        w -= step + 2
    for model in workers.models:
        found = [float(v[0, 0]) for v in model.weights]
        assert sorted(found) == sorted([w, teacher])
        assert float(model.teacher.kernel[0, 0]) == teacher


def normalized():
    model = keras.Sequential(
        [
            keras.Input([3]),
            keras.layers.SpectralNormalization(
                keras.layers.Dense(4, use_bias=False)
            ),
            keras.layers.Dense(1),
        ]
    )
    model.compile(keras.optimizers.SGD(0.0), "mse")
    return model


def of_float8():
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(1)])
    model.quantize("float8")
    model.compile(keras.optimizers.SGD(0.0), "mse")
    return model


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("build", "run_eagerly", "message"),
    [
        (normalized, False, "SpectralNormalization: each forward"),
        (normalized, True, "SpectralNormalization: each forward"),
        (of_float8, False, "overwrite_with_gradient=True, as float8"),
    ],
)
def test_weights_that_each_asynchronous_worker_would_replace_are_refused(
    build, run_eagerly, message
):
    strategy = tfdist.AsyncStrategy()
    with strategy.scope():
        model = build()
    model.run_eagerly = run_eagerly
    x, y = np.ones([1, 3]), np.ones([1, 1])
    model.train_on_batch(x, y)
    runtime = strategy._runtime
    runtime.evaluations = evaluations.OwnEvaluations(runtime.local.show_anchor)
    model.train_function = None
    with pytest.raises(ValueError, match=message):
        model.train_on_batch(x, y)


@pytest.mark.nightly
def test_spectral_normalization_by_synchronous_workers():
    workers = virtual_workers.VirtualWorkers(2, None, Sync(), normalized)
    for runtime in workers.runtimes:
        runtime.evaluations = evaluations.OwnEvaluations(
            runtime.local.show_anchor
        )
    random = np.random.default_rng(0)
    for _ in range(20):
        batches = [
            [(random.normal(size=[2, 3]), np.ones([2, 1]))] for _ in range(2)
        ]
        workers.round(batches)
    for model in workers.models:
        kernel = model.layers[0].layer.kernel
        assert abs(np.linalg.norm(kernel, 2) - 1) < 1e-3


def test_sums_of_batch_statistics_over_workers_are_refused(monkeypatch):
    strategy = tfdist.AsyncStrategy()
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input([1]),
                keras.layers.BatchNormalization(synchronized=True),
                keras.layers.Dense(1),
            ]
        )
        model.compile("sgd", "mse")
    monkeypatch.setattr(
        strategy.extended,
        "_config",
        types.SimpleNamespace(num_workers=2, worker_id=0, is_worker=True),
    )
    with pytest.raises(NotImplementedError, match="synchronized=True"):
        model.train_on_batch(X, X)
