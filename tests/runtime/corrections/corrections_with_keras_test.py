"""Corrections of late gradients with what Keras can do, and what is refused.

One worker has no late gradients: whatever it trains, it trains as without a
correction.
"""

import gc

import keras
import pytest
import tensorflow as tf

from tests.strategies import twins
import tfdist
from tfdist import correction
from tfdist.runtime.coordination import no_coordination
from tfdist.synchronization import Sync


@pytest.mark.parametrize(
    ("optimizer", "made", "message"),
    [
        ("adam", correction.DANA(), "without momentum with DANA.*=Adam"),
        ("adam", correction.FASGD(), "SGD with FASGD.* optimizer=Adam"),
    ],
)
def test_optimizers_that_do_not_fit_are_refused(optimizer, made, message):
    strategy = tfdist.ParameterServerStrategy(correction=made)
    with strategy.scope():
        model = twins.compiled(twins.perceptron(), optimizer)
    x, y = twins.classification()
    with pytest.raises(ValueError, match=message):
        model.fit(x, y, verbose=0)
    assert strategy.updates_applied() in ([], [0])


def test_presets():
    made = tfdist.DCASGDStrategy(0.1, 0.9, backups="worker")
    wanted = correction.DelayCompensation(0.1, 0.9, backups="worker")
    assert repr(made._runtime.corrector.correction) == repr(wanted)
    made = tfdist.DANAStrategy("dc", 0.8, lambda_0=1.0, backups="worker")
    wanted = correction.DANA("dc", 0.8, lambda_0=1.0, backups="worker")
    assert repr(made._runtime.corrector.correction) == repr(wanted)
    # Workers do it alone.
    assert not tfdist.DANAStrategy()._runtime.corrector.is_on_servers
    alone = tfdist.DANAStrategy()._runtime.coordination
    assert isinstance(alone, no_coordination.NoCoordination)
    with pytest.raises(ValueError, match="DANA is for gradients that are late"):
        tfdist.DANAStrategy(synchronization=Sync())


@pytest.mark.parametrize(
    "make", [correction.DelayCompensation, correction.GapAware]
)
def test_methods_without_late_gradients_are_refused(make):
    with pytest.raises(ValueError) as error:
        tfdist.ParameterServerStrategy(
            synchronization=Sync(), correction=make()
        )
    assert str(error.value) == (
        f"{make.__name__} is for gradients that are late, and with "
        "Sync(backup_workers=0) none is: leave the correction "
        "out."
    )


@pytest.mark.nightly
def test_steps_with_gradients_of_other_variables_are_refused():
    """Others would take the gradients for those of their own variables."""
    strategy = tfdist.DCASGDStrategy()
    with strategy.scope():
        heads = [keras.Variable([1.0], name=f"head_{k}") for k in range(2)]
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build(heads)

    def step_of(number):
        def step():
            optimizer.apply([tf.ones([1])], [heads[number]])

        return tf.function(lambda: strategy.run(step))

    step_of(0)()
    step_of(0)()
    with pytest.raises(ValueError, match="head_1.*others those of .*head_0"):
        step_of(1)()


def test_a_correction_of_ones_own():
    class Half(correction.Correction):
        def __init__(self, factor):
            self.factor = factor

        def correct(self, late, slots):
            return late.values * self.factor

    # The same on all workers, which compare it.
    assert repr(Half(0.5)) == "Half(factor=0.5)"
    strategy = tfdist.ParameterServerStrategy(correction=Half(0.5))
    with strategy.scope():
        variable = keras.Variable([1.0])
        optimizer = keras.optimizers.SGD(1.0)
        optimizer.build([variable])

    @tf.function
    def step():
        strategy.run(lambda: optimizer.apply([tf.ones([1])], [variable]))

    step()
    assert variable.numpy() == [0.5]


def test_variables_that_are_not_trainable_are_refused():
    strategy = tfdist.DCASGDStrategy()
    with strategy.scope():
        variable = keras.Variable(
            [1.0], trainable=False, name="statistic", aggregation="mean"
        )
        optimizer = keras.optimizers.SGD(1.0)
        optimizer.build([variable])

    @tf.function
    def step():
        strategy.run(lambda: optimizer.apply([tf.ones([1])], [variable]))

    with pytest.raises(
        ValueError, match="for trainable variables .*statistic.* is a state"
    ):
        step()


@pytest.mark.nightly
def test_validation_is_of_the_parameters_not_of_a_look_ahead():
    strategy = tfdist.DANAStrategy("zero")
    with strategy.scope():
        model = twins.compiled(twins.perceptron(), keras.optimizers.SGD(0.1))
    x, y = twins.classification()
    history = model.fit(
        x,
        y,
        validation_data=(x, y),
        callbacks=[tfdist.callbacks.ClusterMonitor()],
        verbose=0,
    ).history
    expected = model.evaluate(x, y, verbose=0, return_dict=True)
    assert history["val_loss"] == pytest.approx([expected["loss"]], rel=1e-5)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "made",
    [
        correction.DANA("zero"),
        correction.DANA("dc"),
        correction.DelayCompensation(2.0, None),
        correction.FASGD(),
        correction.GapAware(),
    ],
    ids=repr,
)
def test_a_correction_lets_go_of_an_optimizer_that_is_gone(made, tmp_path):
    """After `compile` servers hold nothing of the one before."""
    strategy = tfdist.ParameterServerStrategy(correction=made)
    runtime = strategy._runtime

    def compiled(model=None):
        with strategy.scope():
            model = model or twins.perceptron()
            model.compile(
                keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy"
            )
        return model

    model = compiled()
    x, y = twins.classification()
    model.fit(x, y, verbose=0)
    compiled(model)
    gc.collect()
    strategy.barrier()
    # As each call of `fit` does, and who finds that a server has come back.
    runtime.corrector.show_ahead()
    runtime.corrector.prepare_again()
    checkpoint = tf.train.Checkpoint(model=model, state=strategy.state)
    checkpoint.write(str(tmp_path / "checkpoint"))
    model.fit(x, y, verbose=0)
    counters = {ledger.ordinal for ledger in runtime.corrector.ledgers.values()}
    assert counters <= {model.optimizer.variables[0].value.ordinal}
