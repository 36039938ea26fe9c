"""Rows: errors within `fit`, and what comes after them."""

import contextlib
import os
import signal

import keras
import tensorflow as tf

from tests.keras_programs import kit
from tests.keras_programs.arithmetic import OWN
from tests.keras_programs.arithmetic import left_over
from tests.keras_programs.arithmetic import linear
from tests.keras_programs.columns import COLUMNS
from tests.keras_programs.table import Documented
from tests.keras_programs.table import Loose
from tests.keras_programs.table import Refused
from tests.keras_programs.table import of
from tests.keras_programs.table import row

_SECOND = ((256.0, 512.0), (1024.0, 2048.0))
_TWO_EACH = ((1.0, 2.0), (16.0, 32.0))


class _Raised(Exception):
    """What a callback or a loss raises."""


def _refuse(y, output):
    raise _Raised


def _raise_after(batches):
    def check(batch, logs=None):
        if batch == batches - 1:
            raise _Raised

    return kit.on(on_train_batch_end=check)


@row(linear(OWN))
def first_step_refused(strategy, worker):
    """An error in the very first step, caught; then `fit` with a new loss."""
    model = kit.compiled(strategy)
    good = model.loss
    with strategy.scope():
        model.compile(model.optimizer, _refuse)
    with contextlib.suppress(_Raised):
        model.fit(kit.own(worker), verbose=0)
    with strategy.scope():
        model.compile(model.optimizer, good)
    model.fit(kit.own(worker), verbose=0)
    return kit.weight(strategy, model)


@row(linear(OWN))
def another_rate_refused(strategy, worker):
    """The same, then `fit` of a new model that the chief has evaluated."""
    refused = kit.compiled(strategy, lambda: keras.optimizers.SGD(0.25))
    with strategy.scope():
        refused.compile(refused.optimizer, _refuse)
    with contextlib.suppress(_Raised):
        refused.fit(kit.own(worker), verbose=0)
    model = kit.compiled(strategy)
    if worker == 0:
        model.evaluate(kit.own(worker), verbose=0)
    model.fit(kit.own(worker), verbose=0)
    return kit.weight(strategy, model)


@row(linear(_TWO_EACH, _SECOND))
def interrupted(strategy, worker):
    """An exception in `fit` on all workers, caught; then another `fit`."""
    model = kit.compiled(strategy)
    with contextlib.suppress(_Raised):
        model.fit(kit.own(worker), verbose=0, callbacks=[_raise_after(2)])
    model.fit(kit.own(worker, _SECOND), verbose=0)
    return kit.weight(strategy, model)


@row(linear((OWN[0], OWN[1][:2]), _SECOND))
def interrupted_on_one_worker(strategy, worker):
    """The same exception only on the second worker."""
    model = kit.compiled(strategy)
    calls = [_raise_after(2)] if worker == 1 else []
    with contextlib.suppress(_Raised):
        model.fit(kit.own(worker), verbose=0, callbacks=calls)
    model.fit(kit.own(worker, _SECOND), verbose=0)
    return kit.weight(strategy, model)


@row(linear((OWN[0][:2], OWN[1]), _SECOND))
def interrupted_on_the_chief(strategy, worker):
    """The same exception only on the chief."""
    model = kit.compiled(strategy)
    calls = [_raise_after(2)] if worker == 0 else []
    with contextlib.suppress(_Raised):
        model.fit(kit.own(worker), verbose=0, callbacks=calls)
    model.fit(kit.own(worker, _SECOND), verbose=0)
    return kit.weight(strategy, model)


class Conditional(keras.Model):
    """An optimizer's step in `tf.cond`."""

    def train_step(self, data):
        """Steps if the data is more than 1."""
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self(data[0], training=True))
        grads = tape.gradient(loss, self.trainable_variables)

        def step():
            self.optimizer.apply(grads, self.trainable_variables)
            return 1.0

        done = tf.cond(tf.reduce_all(data[0] > 1.0), step, lambda: 0.0)
        return {"loss": loss, "done": done}


_ALL_BUT_ONE = linear((OWN[0][1:], OWN[1]))


@row(
    _ALL_BUT_ONE,
    **of(("all_reduce", "peer_to_peer", "gossip"), Refused("tf.cond")),
    softsync=left_over(_ALL_BUT_ONE),
)
def step_within_cond(strategy, worker):
    """An optimizer's step inside `tf.cond`, skipped for one batch."""
    with strategy.scope():
        inputs = keras.Input([1])
        model = Conditional(inputs, kit.zeros()(inputs))
        model.compile(keras.optimizers.SGD(1.0))
    model.fit(kit.own(worker), verbose=0)
    return kit.weight(strategy, model)


@row({}, **of(COLUMNS, Refused("scope")))
def made_outside_the_scope(strategy, worker):
    """A model that was made outside `strategy.scope()`."""
    model = keras.Sequential([keras.Input([1]), kit.zeros()])
    with strategy.scope():
        model.compile(keras.optimizers.SGD(1.0), kit.Mean())
    model.fit(kit.own(worker), verbose=0)


# Updates of the finite ones, and means of them; with local steps the whole
# period is left out (docs/nonfinite.md).
_FINITE = {
    "sum": -159.0,
    "mean": -(17 / 2 + 2 + 4 + 136 / 2),
    "half": -159.0 / 2,
    "local": -15.0,
}


@row(_FINITE, async_local_sgd=-7.5)
def batch_that_is_not_finite(strategy, worker):
    """NaN in some batches of one worker: those updates are dropped."""
    model = kit.compiled(strategy)
    nan = float("nan")
    pairs = (OWN[0], (16.0, nan, nan, 128.0))
    model.fit(kit.own(worker, pairs), verbose=0)
    return kit.weight(strategy, model)


_DEAD = Refused("task:1")


_SURVIVED = linear((OWN[0], OWN[1][:2]), (_SECOND[0], ()))


@row(
    _SURVIVED,
    dies=True,
    **{
        **of([name for name in COLUMNS if COLUMNS[name].num_ps == 0], _DEAD),
        "peer_to_peer": Documented(
            Loose(_SURVIVED["sum"]),
            "peers.md",
            "survivors may have applied different last updates of a worker",
        ),
        "gossip": Documented(
            Loose(_SURVIVED["half"]),
            "peers.md",
            "A finished exchange keeps its effect on the others' parameters",
        ),
    },
)
def fit_after_a_death(strategy, worker):
    """A worker is killed in `fit`; the other one ends `fit`, fits again."""
    model = kit.compiled(strategy)

    def die(batch, logs=None):
        if worker == 1 and batch == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    calls = [kit.on(on_train_batch_end=die)]
    model.fit(kit.own(worker), verbose=0, callbacks=calls)
    model.fit(kit.own(worker, _SECOND), verbose=0)
    strategy.barrier()
    return float(model.trainable_weights[0].numpy()[0, 0])
