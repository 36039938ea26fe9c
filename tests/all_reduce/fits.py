"""Programs about calls of `fit`: their epochs, ends, and decisions."""

import contextlib
import json
from unittest import mock

import keras
import numpy as np

from tests.all_reduce.programs import batches
from tests.all_reduce.programs import linear
from tests.all_reduce.programs import on
from tests.all_reduce.programs import weight_of
import tfdist
from tfdist.data_shares import data_number


def _counts(model):
    return weight_of(model), int(model.optimizer.iterations.numpy())


def _stop_at(model, epoch=None, batch=None):
    def stop(number, logs=None):
        if number in (epoch, batch):
            model.stop_training = True

    when = "on_epoch_end" if batch is None else "on_train_batch_end"
    return on(**{when: stop})


def the_chief_stops_within_an_epoch(strategy, worker):
    """The others make one more step."""
    with strategy.scope():
        model = linear()
    calls = [_stop_at(model, batch=1)] if worker == 0 else []
    model.fit(batches(np.ones(9)), epochs=2, verbose=0, callbacks=calls)
    return _counts(model)


def another_worker_stops(strategy, worker):
    """It goes on, as long as the chief trains."""
    with strategy.scope():
        model = linear()
    calls = [_stop_at(model, epoch=0), _stop_at(model, batch=0)]
    model.fit(
        batches(np.ones(2)),
        epochs=3,
        verbose=0,
        callbacks=calls if worker else [],
    )
    return _counts(model)


def best_weights_are_restored(strategy, worker):
    """`EarlyStopping` of the chief decides, and restores its weights."""
    with strategy.scope():
        model = linear()
    stopping = keras.callbacks.EarlyStopping(
        "val_loss", patience=1, restore_best_weights=True
    )
    # The weights fall: so does the other worker's loss, not the chief's.
    validation = batches([[-1.0, 1.0][worker]])
    model.fit(
        batches(np.ones(2)),
        epochs=9,
        verbose=0,
        validation_data=validation,
        callbacks=[stopping],
    )
    return _counts(model)


def failed_beside_a_monitor(strategy, worker):
    """The chief's monitor does not wait for who will not come there."""
    with strategy.scope():
        model = linear()

    def fail(batch, logs=None):
        if worker == 1 and batch == 1:
            raise ZeroDivisionError

    monitor = tfdist.callbacks.ClusterMonitor(verbose=0)
    with contextlib.suppress(ZeroDivisionError):
        model.fit(
            batches(np.ones(4)),
            verbose=0,
            callbacks=[monitor, on(on_train_batch_end=fail)],
        )
    model.fit(batches(np.ones(1)), verbose=0)
    return _counts(model)


def fit_before_the_first_step(strategy, worker):
    """In a callback of another `fit`, for which one worker has no data."""
    with strategy.scope():
        outer, inner = linear(), linear()

    def fit_inner(epoch, logs=None):
        inner.fit(batches(np.full(2, 10.0)), verbose=0)

    data = batches(np.ones(2)).filter(lambda x, y: worker == 0)
    outer.fit(data, verbose=0, callbacks=[on(on_epoch_begin=fit_inner)])
    inner.fit(batches(np.full(2, 10.0)), verbose=0)
    return weight_of(outer), weight_of(inner)


def averaged_weights_over_fits(strategy, worker):
    """`use_ema` with another number of batches in each `fit`."""
    with strategy.scope():
        model = linear(
            keras.optimizers.SGD(1.0, use_ema=True, ema_momentum=0.5)
        )
    seen = []
    for number in ([2, 1][worker], [1, 2][worker]):
        model.fit(batches(np.ones(number)), verbose=0)
        seen.append(weight_of(model))
    return seen


def _averaged_over_epochs(strategy, epochs, fail=None):
    with strategy.scope():
        model = linear(
            keras.optimizers.SGD(1.0, use_ema=True, ema_momentum=0.5)
        )
    with contextlib.suppress(ZeroDivisionError):
        model.fit(
            batches(np.ones(1)),
            epochs=epochs,
            verbose=0,
            callbacks=[on(on_train_batch_end=fail)],
        )
    strategy.barrier()
    return weight_of(model)


def averaged_weights_with_fewer_epochs(strategy, worker):
    """One worker has one, and follows another two."""
    return _averaged_over_epochs(strategy, [3, 1][worker])


def averaged_weights_beside_an_exception(strategy, worker):
    """It ends the `fit` of one worker."""

    def fail(batch, logs=None):
        if worker == 1:
            raise ZeroDivisionError

    return _averaged_over_epochs(strategy, 3, fail)


class Examples(keras.utils.PyDataset):
    """Two batches of equal examples."""

    def __init__(self, value):
        super().__init__()
        self._batch = np.full([1, 1], value)

    def __len__(self):
        return 2

    def __getitem__(self, index):
        return self._batch, self._batch


def other_data(strategy, worker):
    """First the same data on all workers, then other data on each."""
    with strategy.scope():
        model = linear()
    seen = []
    for values in ([1.0, 1.0], [1.0, 2.0]):
        with mock.patch.object(data_number.logging, "warning") as warning:
            model.fit(Examples(values[worker]), verbose=0)
        seen.append([call.args[0][:15] for call in warning.call_args_list])
    return seen


def monitored(strategy, worker):
    """The records of a `ClusterMonitor`, of three steps and of two.

    At the end, the chief alone sets the weight before the monitor's barrier.
    """
    with strategy.scope():
        model = linear()
    before = strategy.updates_applied()[0]
    monitor = tfdist.callbacks.ClusterMonitor("monitored", verbose=0)

    def set_weight(logs=None):
        if worker == 0:
            model.set_weights([np.array([[9.0]])])

    model.fit(
        batches(np.ones(3 - worker)),
        verbose=0,
        callbacks=[on(on_train_end=set_weight), monitor],
    )
    rows = [json.loads(line) for line in monitor.jsonl_path.open()]
    summary = monitor.summary or {"workers": [{"steps": None}]}
    return {
        "versions": [row["version"] - before for row in rows],
        "bytes": [row["bytes_sent"] for row in rows],
        "steps": summary["workers"][0]["steps"],
        "weight": weight_of(model),
    }


def fewer_epochs_on_one_worker(strategy, worker):
    """It takes part in the others' epochs until they have ended."""
    with strategy.scope():
        model = linear()
    model.fit(batches(np.ones(2)), epochs=[3, 1][worker], verbose=0)
    return _counts(model)


def fit_within_an_epoch(strategy, worker):
    """In a callback between the batches of another `fit`."""
    with strategy.scope():
        outer, inner = linear(), linear()

    def fit_inner(batch, logs=None):
        if batch == 0:
            inner.fit(batches(np.full(2, 10.0)), verbose=0)

    outer.fit(
        batches(np.ones(3)),
        verbose=0,
        callbacks=[on(on_train_batch_end=fit_inner)],
    )
    return weight_of(outer), weight_of(inner)


def a_fit_within_an_epoch_raises(strategy, worker):
    """On one worker, in a callback that catches it."""
    with strategy.scope():
        outer, inner = linear(), linear()

    def fail(batch, logs=None):
        if worker == 1:
            raise ZeroDivisionError

    def fit_inner(batch, logs=None):
        if batch == 0:
            with contextlib.suppress(ZeroDivisionError):
                inner.fit(
                    batches(np.full(2, 10.0)),
                    verbose=0,
                    callbacks=[on(on_train_batch_end=fail)],
                )

    outer.fit(
        batches(np.ones(3)),
        verbose=0,
        callbacks=[on(on_train_batch_end=fit_inner)],
    )
    return weight_of(outer), weight_of(inner)


def _fit_until_worker_1_fails(model, worker):
    """Trains on four ones; worker 1 catches an exception of its second step."""

    def fail(batch, logs=None):
        if worker == 1 and batch == 1:
            raise ZeroDivisionError

    with contextlib.suppress(ZeroDivisionError):
        model.fit(
            batches(np.ones(4)),
            verbose=0,
            callbacks=[on(on_train_batch_end=fail)],
        )


def a_loop_after_an_exception(strategy, worker):
    """Its steps come after those that the other makes in `fit`."""
    with strategy.scope():
        model = linear()
    _fit_until_worker_1_fails(model, worker)
    x = np.full([1, 1], 10.0 * (1 + worker))
    for _ in range(2):
        model.train_on_batch(x, x)
    strategy.barrier()
    return weight_of(model)


def another_optimizer_after_an_exception(strategy, worker):
    """A model is compiled again, while the other worker ends its `fit`."""
    with strategy.scope():
        model = linear()
    _fit_until_worker_1_fails(model, worker)
    with strategy.scope():
        model.compile(keras.optimizers.SGD(0.5), model.loss)
    model.fit(batches(np.ones(2)), verbose=0)
    return _counts(model)


def the_chief_alone_adapts(strategy, worker):
    """Layers of all workers normalize by its mean 5 and variance 4."""
    with strategy.scope():
        norm = keras.layers.Normalization(axis=None)
        model = linear(before=[norm])
    if worker == 0:
        norm.adapt(np.array([[3.0], [7.0]]))
    model.fit(batches(np.full(2, [9.0, 13.0][worker])), verbose=0)
    out = model.predict(np.array([[7.0]]), verbose=0)
    return model.get_weights()[-1].item(), out.item()


class Counts(keras.layers.Layer):
    """Counts its calls, whether it trains or not."""

    def build(self, shape):
        """Makes the count."""
        del shape
        self.count = self.add_weight(initializer="zeros", trainable=False)

    def call(self, x):
        """Returns its inputs."""
        self.count.assign_add(1.0)
        return x


def the_chief_alone_predicts(strategy, worker):
    """At the end of each epoch, with a layer that assigns state then, too."""
    with strategy.scope():
        counts = Counts()
        model = keras.Sequential(
            [keras.Input([1]), counts, keras.layers.Dense(1)]
        )
        model.compile("sgd", "mse")
    x = np.ones([3, 1], "float32")
    calls = on(
        on_epoch_end=lambda epoch, logs: model.predict(
            x, batch_size=1, verbose=0
        )
    )
    model.fit(
        batches(np.ones(2)),
        epochs=2,
        verbose=0,
        callbacks=[] if worker else [calls],
    )
    return [float(counts.count)]


def weights_that_keras_does_not_list(strategy, worker):
    """Trained ones, which the chief then sets alone, and others."""
    with strategy.scope():
        trained = keras.Variable([1.0])
        frozen = keras.Variable([float(worker)])
        optimizer = keras.optimizers.SGD(1.0)
        model = linear()

    def train_step(data):
        optimizer.apply([data[0][0]], [trained])
        return {"loss": frozen[0]}

    model.train_step = train_step
    model.fit(batches([1.0]), verbose=0)
    if worker == 0:
        trained.assign([5.0])
    model.fit(batches([1.0]), verbose=0)
    return [float(trained[0]), float(frozen[0])]
