"""All workers have one order of the data, in each call and each epoch."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import nightly
import tfdist
from tfdist import running_fit
from tfdist.all_reduce import extended as reduced
from tfdist.data_shares import epoch_orders
from tfdist.runtime.keras_hooks import extended as served


class Busy(keras.callbacks.Callback):
    """Raises in the first call of `fit`, before its first step."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def on_train_begin(self, logs=None):
        self.calls += 1
        if self.calls == 1:
            raise OSError("a file is busy")


def numbers_of(monkeypatch):
    """A list to which each call of `fit` adds the number of its order."""
    numbers = []

    def spy(before):
        def before_data(self, request, data_shares):
            numbers.append(before(self, request, data_shares))
            return numbers[-1]

        return before_data

    for one in (reduced.AllReduceExtended, served.ParameterServerExtended):
        monkeypatch.setattr(one, "_before_data", spy(one._before_data))
    return numbers


def each():
    return tfdist.AsyncStrategy(decisions="each")


@pytest.mark.parametrize(
    "make",
    nightly.also([tfdist.PeerToPeerStrategy], [tfdist.AllReduceStrategy]),
)
def test_a_call_that_raises_before_its_first_step_is_not_counted(
    make, monkeypatch
):
    numbers = numbers_of(monkeypatch)
    with make().scope():
        model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    x, callbacks = np.ones([4, 1], "float32"), [Busy()]
    with pytest.raises(OSError, match="busy"):
        model.fit(x, x, callbacks=callbacks, verbose=0)
    for _ in range(2):
        model.fit(x, x, callbacks=callbacks, verbose=0)
    assert numbers == [1, 1, 2]


class Call:
    """A `RunningFit`."""

    def __init__(self):
        self.raises = self.has_ended = False

    def is_over(self):
        return self.raises


def test_calls_within_one_that_has_not_begun_have_numbers_of_their_own():
    numbers, outer, inner = running_fit.CallNumbers(), Call(), Call()
    assert [numbers.next(outer), numbers.next(inner)] == [1, 2]
    # The inner one's first step, and its second; it returns.
    numbers.begin()
    inner.raises = True
    numbers.begin()
    failed = Call()
    assert numbers.next(failed) == 3
    failed.raises = True
    assert numbers.next(Call()) == 3


def test_a_call_that_raises_within_one_that_has_not_begun_is_none():
    numbers, outer, failed = running_fit.CallNumbers(), Call(), Call()
    assert [numbers.next(outer), numbers.next(failed)] == [1, 2]
    failed.raises = True
    numbers.begin()
    assert numbers.next(Call()) == 2


@pytest.mark.parametrize("make", [tfdist.AllReduceStrategy, each])
@pytest.mark.parametrize(
    "callback", nightly.also(["checkpoint", None], ["backup"])
)
def test_a_call_without_a_step_has_been_one(
    make, callback, tmp_path, monkeypatch
):
    """It was resumed at its end: the other workers have made it."""
    numbers = numbers_of(monkeypatch)
    with make().scope():
        model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    x = np.ones([4, 1], "float32")
    made = {
        "backup": lambda: keras.callbacks.BackupAndRestore(
            tmp_path, delete_checkpoint=False
        ),
        "checkpoint": lambda: tfdist.callbacks.ClusterCheckpoint(tmp_path),
    }
    for _ in range(3):
        callbacks = [made[callback]()] if callback else []
        start = 0 if callback or not numbers else 1
        found = model.fit(
            x, x, initial_epoch=start, callbacks=callbacks, verbose=0
        )
        assert len(found.epoch) == (len(numbers) == 1)
    assert numbers == [1, 2, 3]


@pytest.mark.parametrize(
    "make", [tfdist.AllReduceStrategy, each, tfdist.AsyncStrategy]
)
def test_calls_of_a_fit_of_ones_own_have_other_orders(make, monkeypatch):
    numbers, strategy = numbers_of(monkeypatch), make()

    class Model(keras.Sequential):
        def fit(self, data, epochs=None):
            step = tf.function(lambda batch: strategy.run(lambda: batch))
            for batch in strategy.experimental_distribute_dataset(data):
                step(batch)

    with strategy.scope():
        model = Model([keras.Input([1]), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    for _ in range(3):
        model.fit(tf.data.Dataset.range(4).shuffle(4).batch(2))
    assert numbers == [1, 2, 3]


def test_a_longer_epoch_draws_no_order_more(monkeypatch):
    """Of unknown size: Keras then asks for an iterator that nobody reads."""
    sizes, seen, drawn = [4.0, 5.0, 4.0, 5.0], [], []
    size = tf.Variable(0.0)

    class Notes(keras.Model):
        def train_step(self, data):
            tf.py_function(lambda x: seen[-1].append(float(x[0])), [data], [])
            return {"mean": tf.reduce_mean(data)}

    def begin(epoch, logs):
        size.assign(sizes[epoch])
        seen.append([])

    draw = epoch_orders.EpochIterators.next
    monkeypatch.setattr(
        epoch_orders.EpochIterators,
        "next",
        lambda *args: drawn.append(args) or draw(*args),
    )
    data = tf.data.Dataset.from_tensor_slices(np.arange(6, dtype=np.float32))
    data = data.shuffle(6).filter(lambda x: x < size).batch(1)
    with tfdist.AllReduceStrategy().scope():
        model = Notes()
        model.compile("sgd")
    callback = keras.callbacks.LambdaCallback(on_epoch_begin=begin)
    model.fit(data, epochs=4, callbacks=[callback], verbose=0)
    assert [sorted(one) for one in seen] == [
        list(range(int(size))) for size in sizes
    ]
    assert len(drawn) == len(sizes)
