"""What cannot be: errors that say so."""

import functools
import types

import keras
import numpy as np
import pytest

from tests import nightly
from tests.averaging.virtual_workers import VirtualWorkers
from tests.averaging.virtual_workers import linear
from tests.runtime.exchange import delay_test
from tests.strategies.twins import classification
from tests.strategies.twins import compiled
from tests.strategies.twins import perceptron
import tfdist
from tfdist.averaging import AccruedGradients
from tfdist.averaging import DelayedNesterov
from tfdist.averaging import ElasticAveraging
from tfdist.averaging import ParameterAveraging
from tfdist.correction import DANA
from tfdist.correction import DelayCompensation
from tfdist.correction import InverseStaleness
from tfdist.runtime.local_steps import local_optimizers
from tfdist.synchronization import Async
from tfdist.synchronization import BoundedStaleness
from tfdist.synchronization import SoftSync
from tfdist.synchronization import Sync

BAD = {
    "no steps": (
        lambda: ParameterAveraging(0),
        "`period` of ParameterAveraging must be an integer of at least 1 or a "
        "function of the local step. Received: period=0",
    ),
    "a fraction of a step": (
        lambda: ElasticAveraging(2.5),
        "`period` of ElasticAveraging must be an integer .*"
        "Received: period=2.5",
    ),
    "a truth as a period": (
        lambda: ParameterAveraging(True),
        "`period` .* must be an integer .*Received: period=True",
    ),
    "a function of nothing as a period": (
        lambda: ParameterAveraging(lambda: 3),
        "`period` .* must be an integer .*or a function of the local step.",
    ),
    "a class as local_steps": (
        lambda: tfdist.ParameterServerStrategy(local_steps=ParameterAveraging),
        "`local_steps` must be .*ParameterAveraging",
    ),
    "a negative warm-up": (
        lambda: ParameterAveraging(3, warmup_steps=-1),
        "`warmup_steps` .* must be an integer of at least 0. "
        "Received: warmup_steps=-1",
    ),
    "state averaged and reset": (
        lambda: ParameterAveraging(
            average_optimizer_state=True, reset_momentum=True
        ),
        "`average_optimizer_state` and `reset_momentum` .* not both",
    ),
    "no optimizer": (
        lambda: ParameterAveraging(3, "steepest"),
        "must be a Keras optimizer, its name or its config. "
        "Received: outer_optimizer='steepest'",
    ),
    "a number as an optimizer": (
        lambda: AccruedGradients(outer_optimizer=0.1),
        "`outer_optimizer` of AccruedGradients must be a Keras opt.*"
        "Received: outer_optimizer=0.1",
    ),
    "a function of nothing as an optimizer": (
        lambda: tfdist.DiLoCoStrategy(
            outer_optimizer=lambda: keras.optimizers.SGD(1.0)
        ),
        "`outer_optimizer` of ParameterAveraging must be a Keras .* or a "
        "function of the number of workers. Received: outer_optimizer=<func",
    ),
    "a function of more as an optimizer": (
        lambda: ParameterAveraging(
            outer_optimizer=lambda n, rate: keras.optimizers.SGD(rate / n)
        ),
        "`outer_optimizer` of ParameterAveraging must be a Keras .* or a "
        "function of the number of workers. Received: outer_optimizer=<func",
    ),
    "a loss scale outside": (
        lambda: ParameterAveraging(
            3, keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0))
        ),
        "outer_optimizer gets changes of weights, which need no scaling",
    ),
    "clipping outside": (
        lambda: tfdist.DiLoCoStrategy(
            outer_optimizer=keras.optimizers.SGD(0.7, clipnorm=1.0)
        ),
        "outer_optimizer with clipnorm=1.0 is not supported: give that",
    ),
    "weight decay outside": (
        lambda: ParameterAveraging(3, keras.optimizers.AdamW(0.1)),
        "outer_optimizer with weight_decay=0.004 is not supported",
    ),
    "an average outside": (
        lambda: tfdist.DownpourStrategy(
            outer_optimizer=keras.optimizers.SGD(use_ema=True)
        ),
        "outer_optimizer with use_ema=True is not supported",
    ),
    "no fetch": (
        lambda: AccruedGradients(0, 1),
        "`n_fetch` of AccruedGradients must be an integer of at least 1. "
        "Received: n_fetch=0",
    ),
    "no push": (
        lambda: tfdist.DownpourStrategy(1, -3),
        "`n_push` .* must be an integer of at least 1. Received: n_push=-3",
    ),
    "two moving rates": (
        lambda: ElasticAveraging(moving_rate=0.9, alpha=0.1),
        "not both be given. Received: moving_rate=0.9, alpha=0.1",
    ),
    "alpha of one": (
        lambda: ElasticAveraging(alpha=1.0),
        "`alpha` .* must be a number greater than 0 and less than 1. "
        "Received: alpha=1.0",
    ),
    "a block rate of nothing": (
        lambda: tfdist.BMUFStrategy(block_rate=0.0),
        "`block_rate` of BMUF must be a number greater than 0 and finite. "
        "Received: block_rate=0.0",
    ),
    "no moving rate": (
        lambda: tfdist.ElasticAveragingStrategy(moving_rate=0.0),
        "`moving_rate` .* must be a number greater than 0 and finite. "
        "Received: moving_rate=0.0",
    ),
    "a moving rate that is not a number": (
        lambda: ElasticAveraging(moving_rate="0.9"),
        "`moving_rate` .* must be a number .*Received: moving_rate='0.9'",
    ),
    "momentum of one": (
        lambda: DelayedNesterov(momentum=1.0),
        "`momentum` of DelayedNesterov must be a number .*"
        "Received: momentum=1.0",
    ),
    "no delay": (
        lambda: DelayedNesterov(delay=0),
        "`delay` of DelayedNesterov must be an integer of at least 1. "
        "Received: delay=0",
    ),
    "too much in between": (
        lambda: DelayedNesterov(delay=4, c=0.3),
        "`c` .* must be at most 1 / delay, 0.25. Received: c=0.3",
    ),
    "less than nothing in between": (
        lambda: DelayedNesterov(delay=4, c=-0.1),
        "`c` .* must be a finite number of at least 0. .*Received: c=-0.1",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments(name):
    make, message = BAD[name]
    with pytest.raises((TypeError, ValueError), match=message):
        make()


MISFITS = {
    "a step taken again": (
        ParameterAveraging(3),
        Sync(on_drop="retry"),
        "on_drop='retry' computes one batch again, .* use on_drop='next'",
    ),
    "averages of one": (
        ParameterAveraging(3, average_optimizer_state=True),
        Async(),
        r"with average_optimizer_state .* synchronization=Async\(\)",
    ),
    "waiting for fewer steps": (
        ParameterAveraging(3, dynamic=True),
        BoundedStaleness(1),
        "dynamic=True is for workers that do not wait",
    ),
    "answers that are not asked for": (
        AccruedGradients(2, 3),
        Sync(),
        "n_fetch=2 other than n_push=3 is for Async and SoftSync",
    ),
    "an elastic force by halves": (
        ElasticAveraging(3),
        SoftSync(2),
        r"must be Async\(\), or Sync\(\) without backup workers",
    ),
    "an elastic force without some": (
        ElasticAveraging(3),
        Sync(1),
        r"without backup workers, .* synchronization=Sync\(backup_workers=1\)",
    ),
    "too strong a force": (
        ElasticAveraging(3, moving_rate=4.0),
        Async(),
        "`moving_rate` .* less than .* Received: moving_rate=4 for 3 workers",
    ),
    "too strong a force of all together": (
        ElasticAveraging(3, moving_rate=1.5),
        Sync(),
        "`moving_rate` .* less than 1.5 with .* Received: moving_rate=1.5",
    ),
    "too strong a force of each": (
        ElasticAveraging(3, alpha=0.9),
        Sync(),
        "`alpha` of E.* less than 0.5 with .* Received: alpha=0.9",
    ),
}


@pytest.mark.parametrize("name", MISFITS)
def test_what_does_not_fit_together(name):
    method, synchronization, message = MISFITS[name]
    with pytest.raises(ValueError, match=message):
        method.resolve(synchronization.resolve(3), None, 3)


@pytest.mark.parametrize(
    ("late", "is_refused"),
    [
        (DelayCompensation(backups="server"), True),
        (DelayCompensation(backups="worker"), False),
        (DANA("zero"), True),
        (DANA("slim"), False),
        (InverseStaleness(), False),
    ],
)
def test_answers_that_are_not_adopted_are_no_fetches(late, is_refused):
    AccruedGradients(2, 2).resolve(Async(), late, 3)
    method = AccruedGradients(4, 1)
    if not is_refused:
        assert method.resolve(Async(), late, 3) is method
        return
    with pytest.raises(ValueError, match="n_push=1 is not for D"):
        method.resolve(Async(), late, 3)


def test_an_epsilon_that_float16_does_not_have():
    """Adagrad would divide 0 by 0, and the servers have NaN."""
    outer = AccruedGradients().outer_optimizer()
    half, whole = (
        keras.Variable([1.0], dtype=dtype, name=dtype).value
        for dtype in ("float16", "float32")
    )
    local_optimizers.check_epsilon([whole], outer)
    with pytest.raises(ValueError, match="'float16.* Received: epsilon=1e-10"):
        local_optimizers.check_epsilon([whole, half], outer)
    fits = keras.optimizers.Adagrad(0.01, epsilon=1e-7)
    local_optimizers.check_epsilon([half], fits)


def test_nothing_is_late_at_the_centre():
    with pytest.raises(ValueError, match="nothing is late; leave the correct"):
        ElasticAveraging(3).resolve(Async(), InverseStaleness(), 3)


def test_a_function_that_makes_no_optimizer():
    method = ParameterAveraging(3, lambda num_workers: num_workers)
    with pytest.raises(
        ValueError, match="must be a Keras opt.*outer_optimizer=3"
    ):
        method.resolve(Async(), None, 3)


def _train(optimizer, *, local_steps=3, model=perceptron, steps=4):
    strategy = tfdist.ParameterServerStrategy(local_steps=local_steps)
    with strategy.scope():
        model = compiled(model(), optimizer())
    x, y = classification()
    model.fit(x, y, batch_size=len(x) // steps, verbose=0)


def test_an_average_of_own_weights():
    with pytest.raises(ValueError, match="use_ema=True keeps an average of"):
        _train(lambda: keras.optimizers.SGD(0.1, use_ema=True))


@pytest.mark.parametrize("name", nightly.also(["Ftrl"], ["ScheduleFreeAdamW"]))
def test_weights_that_are_computed_from_state_of_the_worker_s_own(name):
    """Each step would undo what the others have done."""
    with pytest.raises(
        NotImplementedError, match=f"ParameterAv.*of class {name}"
    ):
        _train(
            lambda: keras.optimizers.LossScaleOptimizer(
                getattr(keras.optimizers, name)(0.1)
            )
        )


def test_a_constraint_of_a_variable_in_pieces():
    variable = keras.Variable(np.ones(4), name="kernel")
    part = types.SimpleNamespace(
        name="kernel", pieces=[0, 1], keras_variable=lambda: variable
    )
    outer = ParameterAveraging(3).resolve(Sync(), None, 2).outer_optimizer()
    local_optimizers.check_pieces([part], outer)
    variable.constraint = keras.constraints.NonNeg()
    with pytest.raises(ValueError, match="'kernel' is split .*NonNeg"):
        local_optimizers.check_pieces([part], outer)


def test_gradients_of_steps_that_are_not_taken():
    with pytest.raises(ValueError, match="needs the gradients of every step"):
        _train(
            lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=2),
            local_steps=AccruedGradients(2, 2),
        )


def test_weights_at_steps_that_are_not_taken():
    with pytest.raises(ValueError, match="needs the gradients of every step"):
        _train(
            lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=2),
            local_steps=ElasticAveraging(2),
        )


@pytest.mark.nightly
def test_steps_of_other_variables():
    strategy = tfdist.ParameterServerStrategy(local_steps=2)
    with strategy.scope():
        model = compiled(perceptron(), "sgd")
    x, y = classification()
    model.train_on_batch(x, y)
    model.layers[0].trainable = False
    optimizer = model.optimizer
    with strategy.scope():
        model.compile(optimizer, model.loss)
    with pytest.raises(ValueError, match="have to train the same variables"):
        model.train_on_batch(x, y)


@pytest.mark.nightly
def test_workers_with_other_local_steps():
    run = VirtualWorkers(2, ParameterAveraging(2), build=linear(lambda: "sgd"))
    run.runtimes[1].local.method = ParameterAveraging(3)
    ((x, y),) = delay_test.batches(1, seed=0)
    run.step(0, x, y)
    with pytest.raises(ValueError) as error:
        run.step(1, x, y)
    message = str(error.value)
    assert "All workers must train in the same way" in message
    assert "local_steps=ParameterAveraging(period=3," in message
    assert "on the servers local_steps=ParameterAveraging(period=2" in message


@keras.saving.register_keras_serializable("refusals_test")
def _rate():
    return 0.7


def test_text_of_a_method_tells_all_settings_of_any_process():
    """Workers compare these texts."""
    one = keras.optimizers.SGD(0.7, momentum=0.9, nesterov=True)
    texts = {
        repr(ParameterAveraging(3, made))
        for made in (
            one,
            keras.optimizers.SGD(0.7, momentum=0.9, nesterov=True),
            keras.optimizers.serialize(one),
        )
    }
    (text,) = texts
    assert "period=3" in text and "momentum=0.9" in text
    assert repr(ParameterAveraging(3, keras.optimizers.SGD(0.7))) not in texts
    assert repr(ElasticAveraging(3)) != repr(ElasticAveraging(4))
    decay = keras.optimizers.schedules.CosineDecay(0.7, 1000)
    for rate in (decay, _rate):
        for make in (
            ParameterAveraging,
            functools.partial(AccruedGradients, 1),
        ):
            method = make(3, keras.optimizers.SGD(rate))
            text = repr(method)
            method.outer_optimizer()
            assert repr(method) == text
    np.testing.assert_equal(
        repr(ParameterAveraging(lambda step: step)),
        repr(ParameterAveraging(lambda step: 2 * step)),
    )
