"""What is known of a data set before it is shared out over workers."""

import functools
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist import private_pipelines
from tfdist import private_tensorflow
from tfdist.data_shares import shares


def numbers():
    yield from range(4)


def lines(path):
    path.write_text("a\nb\n")
    return str(path)


KINDS = {
    "tensors": lambda path: tf.data.Dataset.from_tensors(np.ones([4])),
    "slices": lambda path: tf.data.Dataset.from_tensor_slices(np.ones([4, 2])),
    "range": lambda path: tf.data.Dataset.range(4),
    "generator": lambda path: tf.data.Dataset.from_generator(
        numbers, output_signature=tf.TensorSpec([], tf.int64)
    ),
    "text": lambda path: tf.data.TextLineDataset(lines(path)),
    "listed": lambda path: tf.data.Dataset.list_files(lines(path)),
    "interleaved": lambda path: tf.data.Dataset.from_tensor_slices(
        [lines(path)]
    ).interleave(tf.data.TextLineDataset),
}

FROM_MEMORY = ("tensors", "slices", "range", "generator")


@pytest.mark.parametrize("kind", KINDS)
def test_data_that_is_shared_out_by_file_is_not_taken_for_tensors(
    tmp_path, kind
):
    dataset = KINDS[kind](tmp_path / "lines.txt")
    worked_on = (
        dataset.shard(2, 0).map(lambda x: x).shuffle(4).batch(2).prefetch(1)
    )
    for one in (dataset, worked_on):
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = (
            tf.data.experimental.AutoShardPolicy.FILE
        )
        try:
            private_tensorflow.auto_shard_dataset(
                one.with_options(options), 2, 0
            )
            shared_by_file = True
        except tf.errors.NotFoundError:
            shared_by_file = False
        is_from_memory = private_pipelines.is_from_memory(one)
        assert is_from_memory == (kind in FROM_MEMORY)
        assert not (is_from_memory and shared_by_file)


# Lines of each file: sums tell which of them are in a share.
FILES = ((1, 2, 4), (8, 16, 32, 64, 128))
POLICY = tf.data.experimental.AutoShardPolicy


@pytest.fixture
def names(tmp_path):
    """Names of files with the numbers of `FILES`."""
    for number, lines in enumerate(FILES):
        text = "".join(f"{line}\n" for line in lines)
        (tmp_path / f"{number}").write_text(text)
    return [str(tmp_path / f"{k}") for k in range(len(FILES))]


def read(names):
    return tf.data.TextLineDataset(names)


def from_names(names):
    return tf.data.Dataset.from_tensor_slices(names)


def interleaved(names):
    return names.interleave(tf.data.TextLineDataset, cycle_length=2)


# What is made of the files, and the public name of what is in the way of
# sharing it out by file.
COUNTED = {
    "take": lambda names: read(names).take(6),
    "skip": lambda names: read(names).skip(2),
    "take of batches": lambda names: read(names).batch(2).take(3).unbatch(),
    "skip before": lambda names: (
        read(names).skip(1).map(lambda x: x).shuffle(9, seed=1)
    ),
    "take of lines": lambda names: interleaved(from_names(names)).take(5),
    "split lines": lambda names: (
        read(names).take(5).flat_map(tf.data.Dataset.from_tensors)
    ),
    "shuffled names": lambda names: interleaved(
        from_names([*names, *names]).shuffle(4, seed=2).take(3)
    ),
    "take_while": lambda names: read(names).take_while(
        lambda x: tf.strings.length(x) < 2
    ),
    "shard": lambda names: read(names).shard(2, 1),
    "assert_cardinality": lambda names: read(names).apply(
        tf.data.experimental.assert_cardinality(8)
    ),
}
BY_FILE = {
    "lines": read,
    "names": lambda names: interleaved(from_names(names)),
    "names that are counted": lambda names: interleaved(
        from_names([*names, *names]).take(2)
    ),
    "names that are shuffled": lambda names: interleaved(
        from_names(names).shuffle(4, seed=2)
    ),
    "listed": lambda names: read(tf.data.Dataset.list_files(names, seed=1)),
    "counted in each file": lambda names: from_names(names).interleave(
        lambda name: read(name).take(2)
    ),
    "worked on": lambda names: (
        read(names)
        .map(lambda x: x)
        .filter(lambda x: x != "16")
        .shuffle(5, seed=1)
        .batch(2)
        .prefetch(1)
        .unbatch()
    ),
}


def sums(make, names, policy=None):
    """Returns the sum over the data, and the sums over two workers' shares."""
    found = []
    for worker in range(2):
        dataset = make(names)
        if policy is not None:
            options = tf.data.Options()
            options.experimental_distribute.auto_shard_policy = policy
            dataset = dataset.with_options(options)
        if worker == 0:
            whole = sum(int(x) for x in dataset.as_numpy_iterator())
        config = types.SimpleNamespace(
            num_workers=2, data_share=(2, worker), is_local=False
        )
        part = shares.distribute(dataset, config, lambda *_: 1)
        found.append(sum(int(x) for x in part.as_numpy_iterator()))
    return whole, found


@pytest.mark.parametrize("kind", COUNTED)
def test_sharing_does_not_change_which_elements_are_counted(names, kind):
    whole, found = sums(COUNTED[kind], names)
    assert sum(found) == whole
    assert all(found)


@pytest.mark.parametrize("kind", COUNTED)
def test_counted_elements_are_refused_by_file(names, kind):
    name = kind.split(" ")[0]
    stage = private_pipelines.stage_not_by_file(COUNTED[kind](names))
    public = private_pipelines.COUNTING[stage]
    assert public == (name if name in ("skip", "shard") else public)
    with pytest.raises(ValueError, match=f"with `{public}`"):
        sums(COUNTED[kind], names, POLICY.FILE)


@pytest.mark.parametrize("policy", [None, POLICY.FILE])
@pytest.mark.parametrize("kind", BY_FILE)
def test_other_elements_are_shared_out_by_file(names, kind, policy):
    assert private_pipelines.stage_not_by_file(BY_FILE[kind](names)) is None
    whole, found = sums(BY_FILE[kind], names, policy)
    assert sum(found) == whole
    # Of each file, its own.
    assert {x & sum(FILES[0]) for x in found} == {0, whole & sum(FILES[0])}


def pairs(names):
    """Lines of two data sets, which have as many in another order."""
    return tf.data.Dataset.zip(read(names), read(names[::-1])).map(
        lambda x, y: x + y
    )


def test_pairs_of_files_are_those_of_the_whole(names):
    whole, found = sums(pairs, names)
    assert sum(found) == whole


PAIRED = {
    "zip": pairs,
    "window": lambda names: read(names).window(2).flat_map(lambda lines: lines),
}


@pytest.mark.parametrize("kind", PAIRED)
def test_pairs_of_lines_are_refused_by_file(names, kind):
    with pytest.raises(ValueError, match=f"count or pair .* with `{kind}`"):
        sums(PAIRED[kind], names, POLICY.FILE)


@pytest.mark.parametrize("steps, most", [(2, None), (None, 2), (3, 2)])
def test_a_share_begins_again_where_steps_per_epoch_are_all_of_it(
    steps, most, request
):
    """A worker has two of four batches, and trains in each epoch on both."""
    keras.config.set_max_steps_per_epoch(most)
    request.addfinalizer(lambda: keras.config.set_max_steps_per_epoch(None))
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    config = types.SimpleNamespace(
        num_workers=2, data_share=(2, 1), is_local=False
    )
    # Keras's own call, without a frame between it and tfdist.
    strategy.experimental_distribute_dataset = functools.partial(
        shares.distribute, config=config, before=lambda *request: 1
    )
    with strategy.scope():
        model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    x = np.arange(4.0, dtype=np.float32)[:, None]
    history = model.fit(
        x, x + 9, batch_size=1, steps_per_epoch=steps, epochs=3, verbose=0
    )
    assert int(model.optimizer.iterations) == 2 * 3
    assert all(history.history["loss"])
