"""Keras loses nothing of the data when it begins to train."""

import itertools
import random
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import nightly
from tests.multi_process import data_tasks
import tfdist
from tfdist import private_keras
from tfdist.data_shares import epoch_data
from tfdist.data_shares import shares

BATCHES = 5


class Source:
    """Batches that are noted when they are made, and trained on."""

    def __init__(self):
        self.begun = 0
        self.made = []
        self.seen = []

    def batch(self, number):
        self.made.append(number)
        x = np.full([1, 2], number, np.float32)
        return x, x[:, :1]

    def generate(self):
        self.begun += 1
        for number in range(BATCHES):
            yield self.batch(number)

    def generate_without_end(self):
        for number in itertools.count():
            assert number < 10 * BATCHES  # Nobody needs as many.
            yield self.batch(number)

    def dataset(self, *shapes, generate=None):
        return tf.data.Dataset.from_generator(
            generate or self.generate,
            output_signature=tuple(
                tf.TensorSpec(shape, tf.float32) for shape in shapes
            ),
        )

    def model(self):
        """Makes a model that is not built before `fit`."""
        with tfdist.AsyncStrategy().scope():
            model = keras.Sequential(
                [
                    data_tasks.Recorder(
                        lambda x: self.seen.append(int(x.flat[0]))
                    ),
                    keras.layers.Dense(1),
                ]
            )
            model.compile("sgd", "mse")
        return model


@pytest.mark.nightly
@pytest.mark.parametrize(
    "shapes",
    [([None, None], [None, 1]), ([None, 2], [None, 1])],
)
def test_a_model_is_built_without_an_iterator_of_its_own(shapes):
    source = Source()
    model = source.model()
    model.fit(source.dataset(*shapes), verbose=0, epochs=2)
    assert source.begun == 2
    assert source.seen == 2 * [*range(BATCHES)]
    assert model.layers[-1].kernel.shape == (2, 1)
    model.evaluate(source.dataset(*shapes), verbose=0)
    assert source.begun == 3


class _Threads(keras.utils.PyDataset):
    def __init__(self, source, lengths=1):
        super().__init__(workers=2)
        self._source = source
        self._lengths = lengths

    def __len__(self):
        return BATCHES

    def __getitem__(self, index):
        return _of_lengths(self._source.batch(index), index, self._lengths)


def _of_lengths(batch, index, number):
    """A batch with rows of one of several lengths."""
    rows = 1 + index % number
    return tuple(np.repeat(part[:, None], rows, 1) for part in batch)


@pytest.mark.nightly
@pytest.mark.parametrize("lengths", [2, 1])
def test_threads_of_a_data_set_read_each_batch_once(lengths):
    source = Source()
    model = source.model()
    data = _Threads(source, lengths)
    model.fit(data, shuffle=False, verbose=0, epochs=2)
    assert source.seen == 2 * [*range(BATCHES)]
    # Keras looks at the first two, and one more says how long rows are.
    looked_at = [0, 1] if lengths == 1 else [0, 0, 1]
    assert sorted(source.made) == sorted([*looked_at, *source.seen])
    source.made.clear()
    model.evaluate(_Threads(source), verbose=0)
    assert sorted(source.made) == [0, 0, 1, 1, *range(2, BATCHES)]


@pytest.mark.nightly
def test_no_data_at_all_is_an_epoch_without_steps():
    source = Source()
    model = source.model()
    nothing = source.dataset([None, 2], [None, 1]).take(0).repeat(1)
    history = model.fit(nothing, verbose=0, epochs=2)
    assert history.epoch == [0, 1]
    assert model.built
    with pytest.raises(ValueError, match="must have an element, or an"):
        unknown = source.dataset([None, None], [None, 1])
        source.model().fit(unknown.take(0), verbose=0)


def test_what_is_asked_of_files_is_not_asked_of_what_is_made_of_them(tmp_path):
    made = []

    def note(line):
        made.append(line)
        return np.float32(0.0)

    names = [str(tmp_path / f"{k}") for k in range(2)]
    for name in names:
        with open(name, "w", encoding="utf-8") as file:
            file.write("0\n")
    lines = tf.data.Dataset.from_tensor_slices(names).interleave(
        tf.data.TextLineDataset
    )
    numbers = lines.map(lambda x: tf.numpy_function(note, [x], tf.float32))
    for dataset in (numbers.batch(1).prefetch(1), numbers.shuffle(2).repeat()):
        assert shares._has_enough_files(dataset, 2)
        assert not shares._has_enough_files(dataset, 3)
    assert not made
    assert not shares._has_enough_files(Source().dataset(None, None), 2)


@pytest.mark.nightly
@pytest.mark.parametrize("as_dataset", [True, False])
def test_a_model_is_built_for_inputs_that_are_not_there(as_dataset):
    with tfdist.AsyncStrategy().scope():
        x = keras.Input((2,), name="x")
        missing = keras.Input((2,), name="missing", optional=True)
        out = keras.layers.Dense(1)(Either()([x, missing]))
        model = keras.Model({"x": x, "missing": missing}, out)
        model.compile("sgd", "mse")
    ones = np.ones([4, 2], np.float32)
    x, y = {"x": ones, "missing": None}, ones[:, :1]
    if as_dataset:
        data = tf.data.Dataset.from_tensors((x, y)).repeat(2)
        history = model.fit(data, verbose=0)
    else:
        history = model.fit(x, y, batch_size=2, verbose=0)
    assert np.isfinite(history.history["loss"][0])
    assert int(model.optimizer.iterations) == 2


class Either(keras.layers.Layer):
    """The first input, and the second if it is there."""

    def call(self, inputs):
        x, missing = inputs
        return x if missing is None else x + missing

    def compute_output_shape(self, input_shape):
        return input_shape[0]


@pytest.mark.nightly
@pytest.mark.parametrize("left_out", [(2, 1), (0, 2), (2, 0)])
@pytest.mark.parametrize(
    "kind",
    ["PyDataset", "array", "cache", "lengths", "shuffle", "threads"],
)
def test_what_is_left_out_is_what_would_have_come_first(kind, left_out):
    """The epochs from there on are those of a worker that was there."""
    keras.utils.set_random_seed(1)
    whole = _epochs(kind, (0, 0), 4)
    epochs, batches = left_out
    rest = _epochs(kind, left_out, 4 - epochs)
    assert rest == [whole[epochs][batches:], *whole[epochs + 1 :]]
    # A callback that reads a checkpoint sets the epoch when `fit` begins.
    rest = _epochs(kind, (0, 0), 4, [_Resumes(epochs)])
    assert rest == whole[epochs:]


@pytest.mark.parametrize(
    ("kind", "share", "lasts"),
    nightly.also(
        [(2, (2, 0), 2)],
        [
            ("PyDataset with steps", (2, 0), 2),
            (1, (2, 0), 3),
            (2, (2, 1), 1),
            (4, (2, 0), 1),
            (5, (2, 1), 1),
        ],
    ),
)
def test_an_order_lasts_for_several_epochs_where_steps_are_counted(
    kind, share, lasts
):
    """Of three batches of one share, and two of the other.

    Keras begins the data again after the epoch in which it has come to its
    end. Who resumes begins the order that the others are in.
    """
    whole = _epochs(kind, (0, 0), 6, share=share)
    begin = 4 // lasts * lasts
    rest = _epochs(kind, (0, 0), 6, [_Resumes(4)], share=share)
    assert rest[0] == whole[begin]
    assert _epochs(kind, (4, 0), 2, share=share)[0] == whole[begin]


@pytest.mark.nightly
def test_a_worker_with_a_backup_goes_on_with_the_order_of_its_epoch(tmp_path):
    keras.utils.set_random_seed(1)
    whole = _epochs("array", (0, 0), 4)
    for kept, epochs, expected in ((True, 2, whole[:2]), (False, 4, whole[2:])):
        backup = keras.callbacks.BackupAndRestore(
            tmp_path, delete_checkpoint=not kept
        )
        assert _epochs("array", (0, 0), epochs, [backup]) == expected


@pytest.mark.nightly
@pytest.mark.parametrize(
    "kind",
    nightly.also(
        ["array"],
        ["PyDataset in order", "cache", "shuffle", "threads in order"],
    ),
)
def test_an_epoch_has_one_order_wherever_a_worker_begins(kind):
    whole = _epochs(kind, (0, 0), 5)
    assert whole[2:] == _epochs(kind, (0, 0), 5, initial_epoch=2)
    # A callback says it when the model is built.
    assert whole[2:] == _epochs(kind, (0, 0), 5, [_Resumes(2)])
    # The others are in an epoch after its first one, or before that.
    for there in (3, 1):
        left_out, callback = (there - 2, 1), _Resumes(there)
        rest = _epochs(kind, left_out, 5, [callback], initial_epoch=2)
        assert rest == [whole[there][1:], *whole[there + 1 :]]


@pytest.mark.nightly
def test_rows_of_several_lengths_do_not_change_the_order_of_batches():
    expected = _epochs("PyDataset", (0, 0), 2)
    assert _epochs("lengths", (0, 0), 2) == expected
    assert _epochs("threads of lengths", (0, 0), 2) == _epochs(
        "threads", (0, 0), 2
    )


@pytest.mark.nightly
@pytest.mark.parametrize("workers", [2, 1])
@pytest.mark.parametrize("by_callback", [False, True])
def test_a_data_set_may_become_shorter_with_each_epoch(workers, by_callback):
    """No worker reads beyond its end, and none leaves a batch to nobody."""
    parts = []
    for worker in range(2):
        data = _Shorter(not by_callback, workers=workers)
        shortens = keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs, data=data: data.shorten()
        )
        callbacks = [shortens] if by_callback else []
        parts.append(_epochs(data, (0, 0), 3, callbacks, share=(2, worker)))
    whole = [sorted(a + b) for a, b in zip(*parts, strict=True)]
    sizes = [len(epoch) for epoch in whole]
    assert whole == [list(range(size)) for size in sizes]
    assert sizes == sorted(set(sizes), reverse=True)


@pytest.mark.nightly
@pytest.mark.parametrize("share", [(2, 0), (1, 0)])
def test_a_callback_may_leave_out_more_than_was_known(share):
    """A worker that may join later makes the others' shares no smaller."""
    whole = _epochs("PyDataset", (0, 0), 3, share=share)
    rest = _epochs("PyDataset", (1, 0), 3, [_Resumes(2)], share=share)
    assert rest == whole[2:]


@pytest.mark.nightly
@pytest.mark.parametrize("outer", [False, True])
def test_a_worker_that_resumes_reads_an_endless_cache_to_no_end(outer):
    """It reads as much as a worker that was there from the start at most."""
    kind = "endless shuffle" if outer else "endless"
    (epoch,) = _epochs(kind, (0, 0), 3, [_Resumes(2)])
    assert len(epoch) == 2


@pytest.mark.parametrize("outer", [False, True])
def test_a_cache_of_unknown_size_is_filled_where_steps_are_counted(outer):
    def orders(passed):
        source = Source().dataset([1, 2], [1, 1])
        source = source.shuffle(BATCHES, seed=3).cache()
        if outer:
            source = source.shuffle(BATCHES, seed=3)
        data = epoch_data.EpochData(
            source,
            source,
            types.SimpleNamespace(built=True),
            types.SimpleNamespace(begin=lambda: None),
            (0, 0),
            None,
            lambda: passed,
            num_steps=3 * BATCHES,
        )
        return [[int(x[0, 0]) for x, _ in data] for _ in range(3 - passed)]

    whole = orders(passed=0)
    assert (whole[1] == whole[2]) != outer
    assert orders(passed=2) == whole[2:]


class _Resumes(tfdist.callbacks.ClusterCheckpoint):
    """Resumes at an epoch without files, and writes none."""

    def __init__(self, epoch):
        super().__init__("unused")
        self._resumes_at = epoch

    def on_train_begin(self, logs=None):
        private_keras.set_initial_epoch(self.model, self._resumes_at)

    def on_epoch_end(self, epoch, logs=None):
        pass

    def on_train_end(self, logs=None):
        pass


class _OwnOrder(keras.utils.PyDataset):
    """Draws an order for each epoch, beside that which Keras draws."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self._random = random.Random(5)
        self._order = list(range(BATCHES))

    def __len__(self):
        return BATCHES

    def __getitem__(self, index):
        x = np.full([1, 2], self._order[index], np.float32)
        return x, x[:, :1]

    def on_epoch_end(self):
        self._random.shuffle(self._order)


class _Lengths(_OwnOrder):
    """Has rows of two lengths: the model is built for a batch of them."""

    def __getitem__(self, index):
        return _of_lengths(super().__getitem__(index), index, 2)


class _SameOrder(_OwnOrder):
    def on_epoch_end(self):
        pass


class _Shorter(_SameOrder):
    """Has a batch fewer after each epoch, if it is not told by a callback."""

    def __init__(self, shortens_itself, **kwargs):
        super().__init__(**kwargs)
        self._shortens_itself = shortens_itself
        self._size = BATCHES

    def __len__(self):
        return self._size

    def __getitem__(self, index):
        assert index < self._size
        return super().__getitem__(index)

    def on_epoch_end(self):
        if self._shortens_itself:
            self.shorten()

    def shorten(self):
        self._size -= 1


def _epochs(
    kind, left_out, number, callbacks=(), share=(2, 0), initial_epoch=0
):
    """The batches of each epoch that a model is trained on.

    Args:
        kind: of data; or a `PyDataset`.
        left_out: numbers of epochs and batches.
        number: of epochs.
        callbacks: of `fit`.
        share: number of shares, and the worker's.
        initial_epoch: of `fit`.
    """
    keras.utils.set_random_seed(1)
    source = Source()
    model = source.model()
    x = np.repeat(np.arange(BATCHES, dtype=np.float32)[:, None], 2, 1)
    data = {"x": x, "y": x[:, :1], "batch_size": 1}
    if kind == "shuffle":
        pairs = tf.data.Dataset.from_tensor_slices((x, x[:, :1]))
        data = {"x": pairs.shuffle(BATCHES, seed=3).batch(1)}
    elif kind == "cache":
        # One order for all epochs.
        pairs = tf.data.Dataset.from_tensor_slices((x, x[:, :1]))
        data = {"x": pairs.shuffle(BATCHES, seed=3).batch(1).cache()}
    elif kind in ("endless", "endless shuffle"):
        endless = source.dataset(
            [1, 2], [1, 1], generate=source.generate_without_end
        )
        cached = endless.shuffle(2).cache()
        data = cached if kind == "endless" else cached.shuffle(2)
        data = {"x": data, "steps_per_epoch": 2}
    elif isinstance(kind, int):
        data["steps_per_epoch"] = kind
    elif kind == "PyDataset with steps":
        data = {"x": _SameOrder(), "steps_per_epoch": 2}
    elif kind == "PyDataset":
        data = {"x": _OwnOrder()}
    elif kind == "PyDataset in order":
        data = {"x": _SameOrder()}
    elif kind == "threads in order":
        data = {"x": _SameOrder(workers=2)}
    elif kind == "lengths":
        data = {"x": _Lengths()}
    elif kind == "threads":
        data = {"x": _OwnOrder(workers=2)}
    elif kind == "threads of lengths":
        data = {"x": _Lengths(workers=2)}
    elif isinstance(kind, keras.utils.PyDataset):
        data = {"x": kind}
    epochs = []
    strategy = model.distribute_strategy
    initial_workers, worker = share
    strategy.extended._config = tfdist.cluster.ClusterConfig(
        {"worker": ["a:1", "b:1"], "ps": ["c:1"]},
        "worker",
        worker,
        initial_workers,
    )
    decisions = strategy._runtime.chief_decisions
    decisions.begin_data = lambda size, skips: left_out
    seen = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: epochs.append(
            source.seen[sum(map(len, epochs)) :]
        )
    )
    model.fit(
        **data,
        epochs=number,
        initial_epoch=initial_epoch,
        verbose=0,
        callbacks=[*callbacks, seen],
    )
    return epochs
