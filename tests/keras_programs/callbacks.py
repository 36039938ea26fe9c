"""Rows: callbacks."""

import functools

import keras
import numpy as np

from tests.keras_programs import kit
from tests.keras_programs import optimizers
from tests.keras_programs.arithmetic import OWN
from tests.keras_programs.arithmetic import alike
from tests.keras_programs.arithmetic import by_updates
from tests.keras_programs.arithmetic import fetched_over
from tests.keras_programs.arithmetic import left_over
from tests.keras_programs.arithmetic import linear
from tests.keras_programs.arithmetic import scaled
from tests.keras_programs.arithmetic import together
from tests.keras_programs.columns import COLUMNS
from tests.keras_programs.table import Documented
from tests.keras_programs.table import Each
from tests.keras_programs.table import Loose
from tests.keras_programs.table import Refused
from tests.keras_programs.table import of
from tests.keras_programs.table import row

_ONE = np.ones([1, 1], "float32")
_ONES = (1.0,) * 4
_SECOND = ((256.0, 512.0), (1024.0, 2048.0))
_HALVED = {
    kind: value + scaled(linear(_SECOND), 0.5)[kind]
    for kind, value in linear(OWN).items()
}


_MINUS_ONE = {**alike(-1.0), "alone": Each((-1.0, -1.0))}


@row(together(linear(OWN), _MINUS_ONE))
def weights_swapped_for_validation(strategy, worker):
    """A callback that swaps the weights during validation."""
    model = kit.compiled(strategy)
    kept = []

    def swap(logs=None):
        kept.append(model.get_weights())
        model.set_weights([0 * w - 1.0 for w in kept[-1]])

    swapping = kit.on(
        on_test_begin=swap,
        on_test_end=lambda logs: model.set_weights(kept.pop()),
    )
    history = model.fit(
        kit.own(worker),
        verbose=0,
        validation_data=(_ONE, _ONE),
        callbacks=[swapping],
    ).history
    return kit.weight(strategy, model), *history["val_loss"]


def _averages():
    return keras.optimizers.SGD(0.5, use_ema=True, ema_momentum=0.5)


def _swapped(strategy, worker, swap_on_epoch):
    model = kit.compiled(strategy, _averages)
    model.fit(
        kit.own(worker, (_ONES, _ONES)),
        epochs=2,
        verbose=0,
        validation_data=(_ONE, _ONE),
        callbacks=[keras.callbacks.SwapEMAWeights(swap_on_epoch)],
    )
    return kit.weight(strategy, model)


def _plain(swap_on_epoch):
    """What plain Keras makes of as many updates in two epochs."""
    weight = optimizers.plain(
        _averages,
        epochs=2,
        callbacks=lambda: [keras.callbacks.SwapEMAWeights(swap_on_epoch)],
        validation_data=(_ONE, _ONE),
    )
    return by_updates(8, lambda n: functools.partial(weight, n))


@row(_plain(False), **optimizers.NO_EMA)
def averages_swapped_for_validation(strategy, worker):
    """`SwapEMAWeights`, with the optimizer's averages."""
    return _swapped(strategy, worker, False)


_NO_SWAP = {
    **of(COLUMNS, Refused("swap_on_epoch")),
    **of(("peer_to_peer", "gossip"), Refused("use_ema")),
}


_PLAIN = _plain(True)
_RIGHT = {"all_reduce": _PLAIN["mean"], "codistillation": _PLAIN["alone"]}


@row({**_NO_SWAP, **_RIGHT})
def averages_swapped_at_epochs(strategy, worker):
    """`SwapEMAWeights(swap_on_epoch=True)`."""
    return _swapped(strategy, worker, True)


@row(_HALVED, downpour=fetched_over(linear(OWN, _SECOND)["sum"]))
def rate_set_between_fits(strategy, worker):
    """The chief sets the learning rate between two calls of `fit`."""
    model = kit.compiled(strategy)
    model.fit(kit.own(worker), verbose=0)
    strategy.barrier()
    model.optimizer.learning_rate = [0.5, 3.0][worker]
    model.fit(kit.own(worker, _SECOND), verbose=0)
    return kit.weight(strategy, model)


@row(alike(0.25))
def rate_lowered_by_a_plateau(strategy, worker):
    """`ReduceLROnPlateau`: the next `fit` starts with the chief's rate."""
    model = kit.compiled(strategy)
    zero = 0.0 * _ONE
    plateau = keras.callbacks.ReduceLROnPlateau(
        "val_loss", factor=0.5, patience=0, min_delta=0.0
    )
    model.fit(
        kit.own(worker),
        epochs=3,
        verbose=0,
        validation_data=(zero, zero),
        callbacks=[plateau] if worker == 0 else [],
    )
    model.fit(kit.own(worker), verbose=0)
    return kit.numbers(strategy, [model.optimizer.learning_rate])[0]


@row(alike([2, True]))
def stopped_early(strategy, worker):
    """`EarlyStopping` on the chief stops all workers."""
    model = kit.compiled(strategy)
    zero = 0.0 * _ONE
    stopping = keras.callbacks.EarlyStopping("val_loss", patience=1)
    epochs = model.fit(
        kit.own(worker),
        epochs=200,
        verbose=0,
        validation_data=(zero, zero),
        callbacks=[stopping] if worker == 0 else [],
    ).epoch
    strategy.barrier()
    return 2 if worker else len(epochs), len(epochs) < 200


def _own_replica(value):
    """What callbacks within `fit` see, where nobody waits for updates."""
    return Documented(
        Loose(value),
        "peers.md",
        "`evaluate` and callbacks see the worker's own replica",
    )


_SAVED = together(linear(OWN), linear(OWN))


def _last_anchor(value):
    """What callbacks within `fit` see, with local steps and nobody waiting."""
    return Documented(
        Loose(value),
        "averaging.md",
        "the anchor dates from this worker's last exchange",
    )


@row(
    _SAVED,
    peer_to_peer=_own_replica(_SAVED["sum"]),
    gossip=_own_replica(_SAVED["half"]),
    downpour=_last_anchor(_SAVED["sum"]),
    async_local_sgd=_last_anchor(_SAVED["half"]),
)
def checkpointed(strategy, worker):
    """`ModelCheckpoint`, loaded after `fit`."""
    model = kit.compiled(strategy)
    saving = keras.callbacks.ModelCheckpoint(
        "saved.weights.h5", save_weights_only=True
    )

    # So that what is saved is of both.
    def wait(epoch, logs=None):
        kit.meet(strategy)

    model.fit(
        kit.own(worker),
        verbose=0,
        callbacks=[kit.on(on_epoch_end=wait), saving],
    )
    found = kit.weight(strategy, model)
    model.load_weights("saved.weights.h5")
    return found, kit.weight(strategy, model)


class _Stop(Exception):
    """What ends a `fit`."""


_TWICE = linear(_SECOND, _SECOND)


@row(
    _TWICE,
    peer_to_peer=_own_replica(_TWICE["sum"]),
    gossip=_own_replica(_TWICE["half"]),
    downpour=_last_anchor(_TWICE["sum"]),
    async_local_sgd=_last_anchor(_TWICE["half"]),
)
def backed_up(strategy, worker):
    """`BackupAndRestore`: the chief's `fit` resumes in its second epoch."""
    model = kit.compiled(strategy)

    def stop(epoch, logs=None):
        if epoch == 1:
            raise _Stop

    # The chief's backup has what all have done until then.
    meets = kit.on(on_epoch_end=lambda *_: kit.meet(strategy))
    for stops in (True, False):
        backup = keras.callbacks.BackupAndRestore("backup")
        calls = [meets, backup, kit.on(on_epoch_begin=stop)][: 2 + stops]
        try:
            model.fit(
                kit.own(worker, _SECOND), epochs=2, verbose=0, callbacks=calls
            )
        except _Stop:
            pass
        strategy.barrier()
        kit.meet(strategy)
    return kit.weight(strategy, model)


@row(linear(OWN, OWN))
def chief_evaluates_in_fit(strategy, worker):
    """Only the chief evaluates and predicts after each batch."""
    model = kit.compiled(strategy)

    def look(batch, logs=None):
        if worker == 0:
            model.evaluate(_ONE, _ONE, verbose=0)
            model.predict(_ONE, verbose=0)

    calls = [kit.on(on_train_batch_end=look)]
    model.fit(kit.own(worker), epochs=2, verbose=0, callbacks=calls)
    return kit.weight(strategy, model)


@row(linear(OWN, OWN))
def chief_saves_in_fit(strategy, worker):
    """Only the chief saves the model after each epoch."""
    model = kit.compiled(strategy)

    def save(epoch, logs=None):
        if worker == 0:
            model.save("within.keras")

    calls = [kit.on(on_epoch_end=save)]
    model.fit(kit.own(worker), epochs=2, verbose=0, callbacks=calls)
    return kit.weight(strategy, model)


_BEGUN = ((256.0, *OWN[0]), (512.0, *OWN[1]))


@row(linear(_BEGUN, _BEGUN), softsync=left_over(linear(_BEGUN, _BEGUN)))
def batch_before_the_epochs(strategy, worker):
    """A callback trains a batch in `on_train_begin`; two calls of `fit`."""
    model = kit.compiled(strategy)
    x = _ONE * _BEGUN[worker][0]
    calls = [kit.on(on_train_begin=lambda logs: model.train_on_batch(x, x))]
    for _ in range(2):
        model.fit(kit.own(worker), verbose=0, callbacks=calls)
    return kit.weight(strategy, model)


_HALVED_IN_EPOCHS = scaled(linear(OWN), 1.5)
_WHEN_IT_COMES = Loose(_HALVED_IN_EPOCHS["sum"])


@row(
    {
        **_HALVED_IN_EPOCHS,
        "sum": _WHEN_IT_COMES,
        "half": _WHEN_IT_COMES,
        "loose": _WHEN_IT_COMES,
    },
    downpour=fetched_over(linear(OWN, OWN)["sum"]),
)
def rate_of_each_epoch(strategy, worker):
    """`LearningRateScheduler`, which halves the rate in the second epoch."""
    model = kit.compiled(strategy)
    halve = keras.callbacks.LearningRateScheduler(lambda epoch: 0.5**epoch)
    model.fit(kit.own(worker), epochs=2, verbose=0, callbacks=[halve])
    return kit.weight(strategy, model)
