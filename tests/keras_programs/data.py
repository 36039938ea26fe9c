"""Rows: data that `fit` shares out."""

import pathlib

import keras
import numpy as np
import tensorflow as tf

from tests.keras_programs import kit
from tests.keras_programs.arithmetic import OWN
from tests.keras_programs.arithmetic import left_over
from tests.keras_programs.arithmetic import linear
from tests.keras_programs.arithmetic import scaled
from tests.keras_programs.columns import COLUMNS
from tests.keras_programs.table import Refused
from tests.keras_programs.table import of
from tests.keras_programs.table import row
from tests.multi_process import tasks

_VALUES = np.array([2.0**k for k in range(8)], "float32")[:, None]


def _shares(values):
    """Worker 0 takes the first, third, ... batch."""
    return tuple(values[0::2]), tuple(values[1::2])


_ALL = linear(_shares([2.0**k for k in range(8)]))


def _fitted(strategy, data, **settings):
    model = kit.compiled(strategy)
    model.fit(data, verbose=0, **settings)
    return kit.weight(strategy, model)


def _data_set():
    return tf.data.Dataset.from_tensor_slices((_VALUES, _VALUES))


@row(_ALL)
def arrays(strategy, worker):
    """NumPy arrays."""
    return _fitted(strategy, _VALUES, y=_VALUES, batch_size=1, shuffle=False)


@row(linear(_shares([1.0, 2.0, 4.0, 8.0])))
def validation_split(strategy, worker):
    """`validation_split`: the remaining data is split over the workers."""
    return _fitted(
        strategy,
        _VALUES,
        y=_VALUES,
        batch_size=1,
        shuffle=False,
        validation_split=0.5,
    )


@row(_ALL)
def data_set(strategy, worker):
    """A `tf.data.Dataset`."""
    return _fitted(strategy, _data_set().batch(1))


@row({**_ALL, "mean": _ALL["half"], "local": _ALL["half"]})
def shuffled(strategy, worker):
    """A shuffled dataset over which only the chief has iterated."""
    data = _data_set().shuffle(8, seed=3).batch(1)
    if worker == 0:
        next(iter(data))
    return _fitted(strategy, data)


_SEVEN = linear(_shares([2.0**k for k in range(7)]))


@row(_SEVEN, softsync=left_over(_SEVEN))
def odd_number_of_batches(strategy, worker):
    """Seven batches: the chief has one more than the other."""
    return _fitted(strategy, _data_set().take(7).batch(1))


@row(linear(*[_shares([1.0, 2.0, 4.0, 8.0])] * 2))
def repeated(strategy, worker):
    """`repeat` and `steps_per_epoch`, which counts one worker's steps."""
    data = _data_set().take(4).batch(1).repeat()
    return _fitted(strategy, data, steps_per_epoch=2, epochs=2)


class _Batches(keras.utils.PyDataset):
    """A batch of each value."""

    def __len__(self):
        return len(_VALUES)

    def __getitem__(self, index):
        return _VALUES[index : index + 1], _VALUES[index : index + 1]


@row(_ALL)
def py_dataset(strategy, worker):
    """A `keras.utils.PyDataset`."""
    return _fitted(strategy, _Batches(), shuffle=False)


@row(_ALL)
def generator(strategy, worker):
    """A Python generator that yields the same on all workers."""
    batches = ((v[None], v[None]) for v in _VALUES)
    return _fitted(strategy, batches)


@row(scaled(_ALL, 2.0))
def sample_weights(strategy, worker):
    """`sample_weight`."""
    return _fitted(
        strategy,
        _VALUES,
        y=_VALUES,
        batch_size=1,
        shuffle=False,
        sample_weight=np.full([8], 2.0),
    )


@row(_ALL)
def counted_lines(strategy, worker):
    """Lines of files, with `skip` and `take`."""
    names = []
    for number in range(2):
        path = pathlib.Path(f"{number}-{worker}.txt")
        lines = [f"{v}\n" for v in _VALUES[4 * number : 4 * number + 4, 0]]
        path.write_text("".join(["7\n"] * (not number) + lines))
        names.append(str(path))
    lines = tf.data.TextLineDataset(names).skip(1).take(8)
    data = lines.map(lambda x: 2 * (tf.reshape(tf.strings.to_number(x), [1]),))
    return _fitted(strategy, data.batch(1))


_ONE_BATCH = Refused("must have a batch")


@row({}, **of(COLUMNS, _ONE_BATCH))
def fewer_batches_than_workers(strategy, worker):
    """One batch for two workers."""
    return _fitted(strategy, _data_set().take(1).batch(1))


@row(linear((OWN[0], ()), OWN))
def worker_without_data(strategy, worker):
    """A worker without data in one `fit`, but with data in the next."""
    model = kit.compiled(strategy)
    data = kit.own(worker).filter(lambda x, y: worker == 0)
    model.fit(data, verbose=0)
    model.fit(kit.own(worker), verbose=0)
    return kit.weight(strategy, model)


@row(linear(OWN))
def data_of_a_function(strategy, worker):
    """`distribute_datasets_from_function`: the program splits the data."""
    data = strategy.distribute_datasets_from_function(
        lambda context: kit.own(worker)
    )
    return _fitted(strategy, data, steps_per_epoch=4)


@row(linear(OWN))
def named_inputs(strategy, worker):
    """Dicts of inputs and targets."""
    with strategy.scope():
        inputs = {"a": keras.Input([1]), "b": keras.Input([1])}
        outputs = {"sum": kit.zeros(name="sum")(inputs["a"] + inputs["b"])}
        model = keras.Model(inputs, outputs)
        model.compile(keras.optimizers.SGD(1.0), {"sum": kit.Mean()})
    half = np.array(OWN[worker], "float32")[:, None] / 2.0
    data = tf.data.Dataset.from_tensor_slices(
        ({"a": half, "b": half}, {"sum": half})
    )
    data = tasks.unshared(data.batch(1))
    model.fit(data, verbose=0)
    return kit.weight(strategy, model)


@row(linear(_shares([3.0 * 2.0**k for k in range(8)])))
def class_weights(strategy, worker):
    """`class_weight`."""
    return _fitted(
        strategy,
        _VALUES,
        y=np.ones([8], "int32"),
        batch_size=1,
        shuffle=False,
        class_weight={1: 3.0},
    )


@row(_ALL)
def cached(strategy, worker):
    """A dataset that is cached and prefetched."""
    return _fitted(strategy, _data_set().cache().batch(1).prefetch(2))
