"""Steps compiled by XLA, and steps that run eagerly, train as plain Keras."""

import contextlib
import functools
import itertools
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import nightly
from tests.multi_process import scripts
from tests.strategies import compiled_and_eager_task
from tests.strategies import model_cases
from tests.strategies.twins import assert_same
from tests.strategies.twins import classification
from tests.strategies.twins import compiled
from tests.strategies.twins import perceptron
import tfdist
from tfdist.runtime.keras_hooks import eager_step
from tfdist.runtime.keras_hooks import evaluations

X, Y = classification()
MODES = {"jit": {"jit_compile": True}, "eager": {"run_eagerly": True}}
STRATEGIES = {
    "async": tfdist.AsyncStrategy,
    "sync": lambda: tfdist.ParameterServerStrategy(
        synchronization=tfdist.synchronization.Sync()
    ),
    "local": lambda: tfdist.ParameterAveragingStrategy(period=2),
}


@functools.cache
def _plain(name):
    return model_cases.train(name, contextlib.nullcontext())


# Statistics of batches, dropout; tables, several outputs; two optimizers.
@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "strategy", "mode"),
    [
        ("convolutional net", "async", "jit"),
        ("gan", "sync", "jit"),
        ("wide and deep", "local", "jit"),
        ("gan", "local", "eager"),
        ("wide and deep", "sync", "eager"),
    ],
)
def test_a_model_trains_as_without(name, strategy, mode):
    scope = STRATEGIES[strategy]().scope()
    found = model_cases.train(name, scope, **MODES[mode])
    assert_same(found, _plain(name))


@pytest.mark.nightly
def test_loops_are_left_to_tensorflow(caplog):
    found = model_cases.train(
        "bidirectional lstm",
        tfdist.AsyncStrategy().scope(),
        jit_compile=True,
    )
    # Squares of gradients are around 1e-9.
    assert_same(found, _plain("bidirectional lstm"), tolerance=1e-5)
    assert "loops and branches of this step" in caplog.text


OPTIMIZERS = {
    "accumulation": lambda: keras.optimizers.Adam(
        0.1, gradient_accumulation_steps=2
    ),
    "scaled loss": lambda: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(0.1, momentum=0.9), initial_scale=16.0
    ),
    "decay and averages": lambda: keras.optimizers.AdamW(
        keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.9),
        weight_decay=0.1,
        clipnorm=0.5,
        use_ema=True,
        ema_overwrite_frequency=3,
    ),
    "nadam": lambda: keras.optimizers.Nadam(0.05),
}


def _train(scope, optimizer, **settings):
    """Two epochs of four steps: the weights and what the optimizer counts."""
    keras.utils.set_random_seed(7)
    with scope:
        model = perceptron(kernel_constraint="non_neg")
        compiled(model, OPTIMIZERS[optimizer](), **settings)
    history = model.fit(X, Y, batch_size=6, epochs=2, shuffle=False, verbose=0)
    return {
        "history": history.history,
        "weights": model.get_weights(),
        "iterations": int(model.optimizer.iterations),
    }


@functools.cache
def _plainly(optimizer):
    return _train(contextlib.nullcontext(), optimizer)


# Compiled by XLA, with a loss that is scaled: the next test.
SOME = [("local", "accumulation", "eager")]
OTHERS = [
    *(("async", *case) for case in itertools.product(OPTIMIZERS, MODES)),
    *(("local", name, "jit") for name in ("accumulation", "scaled loss")),
    ("local", "scaled loss", "eager"),
]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("strategy", "optimizer", "mode"),
    nightly.also(SOME, [case for case in OTHERS if case not in SOME]),
)
def test_an_optimizer_does_as_without(strategy, optimizer, mode):
    found = _train(STRATEGIES[strategy]().scope(), optimizer, **MODES[mode])
    assert_same(found, _plainly(optimizer))


@pytest.mark.nightly
def test_eager_steps_that_accumulate_are_no_updates():
    """Synchronous workers refuse what comes beside updates."""

    def train(scope, **settings):
        with scope:
            model = perceptron()
            compiled(model, OPTIMIZERS["accumulation"](), **settings)
        # The first epoch leaves a gradient for the second.
        model.fit(X, Y, batch_size=8, epochs=2, shuffle=False, verbose=0)
        return model.get_weights(), int(model.optimizer.iterations)

    keras.utils.set_random_seed(7)
    plain = train(contextlib.nullcontext())
    keras.utils.set_random_seed(7)
    found = train(STRATEGIES["sync"]().scope(), run_eagerly=True)
    assert_same(found, plain)


@pytest.mark.nightly
@pytest.mark.parametrize("mode", ["jit", "eager"])
def test_steps_per_execution(mode):
    scope = tfdist.AsyncStrategy().scope()
    settings = {"steps_per_execution": 2, **MODES[mode]}
    found = _train(scope, "scaled loss", **settings)
    # The logs of an epoch are those of its last steps.
    del found["history"]
    plain = _plainly("scaled loss")
    assert_same(found, {name: plain[name] for name in found})


@pytest.mark.parametrize("step_of_evaluation", nightly.also([True], [False]))
def test_a_variable_of_the_user_s_that_each_eager_step_makes_is_refused(
    monkeypatch, step_of_evaluation
):
    """Workers would wait for the chief to make as many."""
    strategy, kept = tfdist.AsyncStrategy(), []
    if step_of_evaluation:
        monkeypatch.setattr(
            strategy.extended,
            "_step_of_evaluation",
            lambda evaluates, is_eager: evaluations.EvaluationStep(is_eager),
        )

    def step(makes, keeps=False):
        tf.Variable(1.0, trainable=False)
        kept.append(kept[0] if kept else tf.Variable(2.0))
        if keeps:
            kept.append(tf.Variable(4.0))
        if makes:
            for _ in range(3):
                made = tf.Variable(3.0)
            # What servers do to it does not keep it.
            made.assign_add(1.0)

    for _ in range(3):
        strategy.run(step, [True])
    # With one worker, nobody waits.
    monkeypatch.setattr(
        strategy.extended,
        "_config",
        tfdist.cluster.ClusterConfig({"worker": ["a:1", "b:1"]}, "worker", 0),
    )
    for _ in range(9):
        strategy.run(step, [False, True])

    def lazily(held):
        if not held:
            held.append(tf.Variable(5.0))

    # One for each of several short trainings.
    for _ in range(4):
        held = []
        for _ in range(2):
            strategy.run(lazily, [held])
    # As one of several functions that are steps by turns.
    for makes in (True, False, True, False):
        strategy.run(step, [makes])
    with pytest.raises(RuntimeError, match=r"_test.py:\d+ makes a new tf.Var"):
        strategy.run(step, [True])


class Looking(keras.Model):
    """Looks at values in its step, as in a debugger."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(3)
        self.seen = []

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        before = self.dense.bias.numpy()
        self.optimizer.apply(gradients, self.trainable_variables)
        change = self.dense.bias.numpy() - before
        np.testing.assert_allclose(change, -0.1 * gradients[1], atol=1e-6)
        self.seen.append(int(self.optimizer.iterations))
        return {"loss": loss}


@pytest.mark.parametrize("strategy", nightly.also(["sync"], ["async", "local"]))
def test_an_eager_step_sees_what_it_does(strategy):
    strategy = STRATEGIES[strategy]()
    with strategy.scope():
        model = compiled(
            Looking(),
            keras.optimizers.SGD(0.1),
            metrics=None,
            run_eagerly=True,
        )
    model.fit(X, Y, batch_size=6, epochs=2, verbose=0)
    assert model.seen == list(range(1, 9))
    strategy.barrier()
    exchanged = 8 if strategy.local_steps is None else 4
    assert strategy.updates_applied() == [exchanged]
    assert strategy.journal.count == exchanged


@pytest.mark.nightly
def test_an_optimizer_at_the_address_of_one_that_is_gone_is_another(
    monkeypatch,
):
    of_optimizers = (keras.optimizers.Optimizer, keras.Variable)

    def address(thing):
        return 0 if isinstance(thing, of_optimizers) else id(thing)

    monkeypatch.setattr(eager_step, "id", address, raising=False)
    strategy = tfdist.AsyncStrategy()
    with strategy.scope():
        model = perceptron()
    for _ in range(2):
        with strategy.scope():
            compiled(model, keras.optimizers.SGD(0.1), run_eagerly=True)
        model.fit(X, Y, batch_size=len(X) // 2, epochs=1, verbose=0)
        assert int(model.optimizer.iterations) == 2


def test_a_traced_part_of_an_eager_step_leaves_variables_alone():
    strategy = tfdist.AsyncStrategy()
    with strategy.scope():
        optimizer = keras.optimizers.SGD()
        variable = keras.Variable(1.0)
        optimizer.build([variable])

    @tf.function
    def traced():
        optimizer.apply([tf.ones([])])

    with pytest.raises(RuntimeError, match="inside a tf.function"):
        strategy.run(lambda: traced())


@pytest.mark.nightly
def test_a_step_of_ones_own_is_compiled():
    strategy = tfdist.AsyncStrategy()
    with strategy.scope():
        model = perceptron()
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build(model.trainable_variables)

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients)
        return loss

    compiled_step = tf.function(
        lambda x: strategy.run(step, args=(x,)), jit_compile=True
    )
    losses = [float(compiled_step(X)) for _ in range(3)]
    assert losses[0] > losses[1] > losses[2]
    assert strategy.updates_applied() == [3]


@pytest.fixture(scope="module")
def on_servers(tmp_path_factory):
    """What two workers and two servers have printed, and where XLA writes."""
    directory = tmp_path_factory.mktemp("on_servers")
    dump = directory / "xla"
    outputs = scripts.run(
        directory,
        compiled_and_eager_task.__file__,
        [],
        {"ps": 2, "worker": 2},
        environ={"XLA_FLAGS": f"--xla_dump_to={dump} --xla_dump_hlo_as_text"},
    )
    return outputs, dump


@pytest.mark.nightly
@pytest.mark.parametrize("mode", MODES)
def test_nothing_is_lost_or_counted_twice(mode, on_servers):
    outputs, _ = on_servers
    for worker in ("worker-0", "worker-1"):
        # The batches' means are 0 to 15, and each has two examples.
        line = (
            f"{mode}: weights [[-60.0, -60.0]] biases [-8.0, -8.0] "
            "applied [16, 16] iterations 16 seen 32.0"
        )
        assert line in outputs[worker].splitlines(), outputs[worker]


@pytest.mark.nightly
def test_forward_and_backward_pass_are_compiled(on_servers):
    """The product of the forward pass, and that of the gradient."""
    _, dump = on_servers
    products = set()
    for module in dump.glob("*before_optimizations.txt"):
        found = re.findall(r' dot\(.* op_name="([^"]*)"', module.read_text())
        products.update(name.partition("/")[0] for name in found)
    assert "gradient_tape" in products and len(products) > 1, products
