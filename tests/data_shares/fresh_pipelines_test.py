"""Shares are of one order of the data, whatever a worker has looked at.

Two workers in one process: each makes the same pipeline and takes its share.
The data are powers of two, so that a sum tells which elements were in a share.
"""

import itertools
import random
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import nightly
from tests.multi_process import data_tasks
import tfdist
from tfdist import running_fit
from tfdist.data_shares import fresh_pipelines
from tfdist.data_shares import shares

WORKERS = 2
ELEMENTS = 16
ALL = sorted(2.0**k for k in range(ELEMENTS))


def powers():
    return tf.data.Dataset.from_tensor_slices(2.0 ** np.arange(ELEMENTS))


def share_of(dataset, worker, call=1):
    """Returns a worker's share of a data set in that call of `fit`."""
    return shares.distribute(
        dataset, config_of(worker), lambda request, number: call
    )


def config_of(worker, workers=WORKERS):
    addresses = [f"{name}:1" for name in "ab"[:workers]]
    return tfdist.cluster.ClusterConfig({"worker": addresses}, "worker", worker)


def drawn(generator):
    """An order that a slow thread would change: elements wait for a while."""

    def wait(x):
        time.sleep(generator.random() / 200)
        return x

    def map_function(x):
        y = tf.numpy_function(wait, [x], x.dtype)
        return tf.ensure_shape(y, x.shape)

    return map_function


def hasty(dataset, **kwargs):
    wait = drawn(random.Random())
    return dataset.map(wait, num_parallel_calls=4, **kwargs)


def with_hasty_options(dataset):
    options = tf.data.Options()
    options.deterministic = False
    return dataset.with_options(options)


def within(dataset):
    return tf.data.Dataset.range(1).flat_map(lambda _: dataset)


def mixed():
    halves = [powers().shard(2, k).repeat() for k in range(2)]
    return tf.data.Dataset.sample_from_datasets(
        halves, [0.5, 0.5], seed=3, rerandomize_each_iteration=True
    ).take(ELEMENTS)


KINDS = {
    "shuffle": lambda: powers().shuffle(ELEMENTS, seed=1),
    "small buffer": lambda: powers().shuffle(3, seed=1),
    "batches": lambda: powers().shuffle(ELEMENTS, seed=1).batch(2).unbatch(),
    "shuffled batches": lambda: (
        powers().batch(2).shuffle(ELEMENTS, seed=1).unbatch()
    ),
    "twice": lambda: powers().shuffle(4, seed=1).shuffle(5, seed=2),
    "mapped and filtered": lambda: (
        powers().shuffle(9, seed=1).map(lambda x: 2 * x).filter(lambda x: x > 2)
    ).map(lambda x: x / 2),
    "zipped": lambda: tf.data.Dataset.zip(
        powers(), powers().shuffle(9, seed=1)
    ).map(lambda x, y: y),
    "cached": lambda: powers().shuffle(ELEMENTS, seed=1).cache(),
    "inner": lambda: within(powers().shuffle(9, seed=1)),
    "hasty map": lambda: hasty(powers(), deterministic=False),
    "hasty options": lambda: with_hasty_options(hasty(powers())),
    "hasty batches": lambda: powers().interleave(
        lambda x: hasty(tf.data.Dataset.from_tensors(x)),
        cycle_length=4,
        num_parallel_calls=4,
        deterministic=False,
    ),
    "generator": lambda: tf.data.Dataset.from_generator(
        lambda: iter(ALL), output_signature=tf.TensorSpec([], tf.float64)
    ).shuffle(9, seed=1),
}


# What others among them have as well.
_MORE = ["small buffer", "batches", "twice", "hasty options"]


@pytest.mark.parametrize(
    "kind", nightly.also([kind for kind in KINDS if kind not in _MORE], _MORE)
)
def test_shares_are_disjoint_whatever_the_chief_has_looked_at(kind):
    datasets = [KINDS[kind]() for _ in range(WORKERS)]
    list(datasets[0])
    next(iter(datasets[0]))
    for call in (1, 2):
        parts = [share_of(d, k, call) for k, d in enumerate(datasets)]
        # Each iterates over its own for two epochs.
        for _ in range(2):
            seen = [float(x) for part in parts for x in part]
            expected = ALL[1:] if kind == "mapped and filtered" else ALL
            assert sorted(seen) == expected
        # Validation, between two calls.
        next(iter(datasets[0]))


def test_what_is_sampled_is_sampled_alike():
    datasets = [mixed() for _ in range(WORKERS)]
    next(iter(datasets[0]))
    # One worker's share of both pipelines.
    first, second = (list(map(float, share_of(d, 0))) for d in datasets)
    assert first == second
    again = list(map(float, share_of(datasets[0], 0, call=2)))
    assert again != first


def test_epochs_and_calls_have_orders_of_their_own():
    dataset = powers().shuffle(ELEMENTS, seed=1)
    orders = [
        tuple(map(float, part))
        for call in (1, 2)
        for part in [share_of(dataset, 0, call)] * 2
    ]
    assert len(set(orders)) == len(orders)
    # The first is TensorFlow's own.
    own = [float(x) for x in powers().shuffle(ELEMENTS, seed=1)]
    assert list(orders[0]) == own[::WORKERS]
    fixed = powers().shuffle(ELEMENTS, seed=1, reshuffle_each_iteration=False)
    own = [float(x) for x in fixed][::WORKERS]
    for call in (1, 2):
        assert list(map(float, share_of(fixed, 0, call))) == own


def test_a_cache_of_what_is_in_order_is_kept():
    computed = []

    def note(x):
        computed.append(float(x))
        return x

    dataset = powers().map(
        lambda x: tf.ensure_shape(tf.numpy_function(note, [x], x.dtype), [])
    )
    dataset = dataset.cache().shuffle(ELEMENTS, seed=1)
    for call in (1, 2):
        list(share_of(dataset, 0, call))
    assert sorted(computed) == ALL


def test_a_pipeline_outlives_the_name_of_its_data_set():
    part = share_of(hasty(powers(), deterministic=False), 1)
    assert [float(x) for x in part] == ALL[1::2]


def test_data_that_is_too_large_is_said_to_be(monkeypatch, caplog):
    monkeypatch.setattr(fresh_pipelines, "MAX_BYTES", 8 * ELEMENTS - 1)
    dataset = powers().shuffle(ELEMENTS, seed=1)
    share_of(dataset, 0)
    assert "bytes in memory" in caplog.text
    caplog.clear()
    monkeypatch.setattr(fresh_pipelines, "MAX_BYTES", 8 * ELEMENTS)
    share_of(dataset, 0)
    share_of(powers().repeat(100), 0)
    assert not caplog.text


class Batches(keras.utils.PyDataset):
    """Batch k is two to the k."""

    def __len__(self):
        return ELEMENTS

    def __getitem__(self, index):
        batch = np.full([1, 1], 2.0**index, np.float32)
        return batch, batch


def _array():
    x = np.array(ALL, np.float32)[:, None]
    return {"x": x, "y": x, "batch_size": 1}


@pytest.mark.parametrize(
    "data",
    nightly.also(
        [_array], [lambda: {"x": Batches()}, lambda: {"x": Batches(workers=2)}]
    ),
)
def test_batches_that_keras_shuffles_come_in_one_order(data):
    seen = []
    with tfdist.AsyncStrategy(seed=7).scope():
        model = keras.Sequential(
            [
                data_tasks.Recorder(lambda x: seen.extend(map(float, x))),
                keras.layers.Dense(1),
            ]
        )
        model.compile(keras.optimizers.SGD(0.0), "mse")
    epochs = []
    for worker in range(WORKERS):
        # As if it had drawn others.
        random.seed(worker)
        extended = model.distribute_strategy.extended
        extended._config = config_of(worker)
        # Its calls of `fit` begin to count.
        extended._runtime.call_numbers = running_fit.CallNumbers()
        for _ in range(2):
            model.fit(**data(), verbose=0, epochs=2)
        epochs.append(split(seen, 4))
        seen.clear()
    for first, second in zip(*epochs, strict=True):
        assert sorted(first + second) == ALL
    assert len(set(map(tuple, itertools.chain(*epochs)))) == 4 * WORKERS


def split(sequence, number):
    """Returns `number` parts of a sequence, one after the other."""
    size = len(sequence) // number
    return [sequence[k * size : (k + 1) * size] for k in range(number)]


@pytest.mark.parametrize(
    ("part", "workers", "warns"),
    [
        (lambda data: data.cache().skip(2), WORKERS, True),
        (lambda data: data.cache().skip(2), 1, False),
        (lambda data: data.cache(), WORKERS, False),
    ],
)
def test_a_split_that_a_cache_is_to_hold_is_told(
    monkeypatch, part, workers, warns
):
    warnings = []
    monkeypatch.setattr(
        fresh_pipelines.logging, "warning", lambda text: warnings.append(text)
    )
    shares.distribute(
        part(powers().shuffle(4)),
        config_of(0, workers),
        lambda request, number: 1,
    )
    assert len(warnings) == warns


FACTOR_STAGES = {
    "map": lambda data, factor: data.map(lambda x: x * factor),
    "parallel map": lambda data, factor: data.map(
        lambda x: x * factor, num_parallel_calls=2
    ),
    "map and batch": lambda data, factor: (
        data.map(lambda x: x * factor).batch(3).unbatch()
    ),
    "flat_map": lambda data, factor: data.flat_map(
        lambda x: (
            tf.data.Dataset.from_tensors(x)
            .shuffle(2, seed=1)
            .map(lambda y: y * factor)
        )
    ),
    "interleave": lambda data, factor: data.interleave(
        lambda x: tf.data.Dataset.from_tensors(x * factor),
        num_parallel_calls=2,
    ),
    "filter": lambda data, factor: data.filter(lambda x: x * factor > -1.0),
}


@pytest.mark.parametrize("in_order", nightly.also([False], [True]))
@pytest.mark.parametrize("kind", FACTOR_STAGES)
def test_a_shuffled_pipeline_reads_a_variable_as_it_is_now(
    caplog, kind, in_order
):
    """A callback may set it, as for a curriculum."""
    factor = tf.Variable(1.0, dtype=tf.float64)
    data = powers().shuffle(ELEMENTS, seed=1)
    data = FACTOR_STAGES[kind](data, factor).shuffle(3, seed=2)
    fresh = fresh_pipelines.begun_again(data, 1, in_order)
    assert sorted(float(x) for x in fresh) == ALL
    factor.assign(-2.0)
    again = fresh_pipelines.begun_again(data, 2, in_order)
    expected = [] if kind == "filter" else [-2.0 * x for x in reversed(ALL)]
    for made in (fresh, again):
        assert sorted(float(x) for x in made) == expected
    assert "tf.Variable" not in caplog.text


def test_large_data_is_no_part_of_a_function(monkeypatch):
    """Those of a worker are sent to servers, and kept."""
    variant_of, made = fresh_pipelines._variant_of, []

    def spy(*arguments):
        made.append(variant_of(*arguments))
        return made[-1]

    monkeypatch.setattr(fresh_pipelines, "_variant_of", spy)
    factor = tf.Variable(1.0, dtype=tf.float64)
    numbers = np.arange(2.0**16)
    texts = np.array([f"{x:020.0f}" for x in numbers])
    data = tf.data.Dataset.from_tensor_slices((numbers, texts))
    data = data.map(lambda x, text: (x * factor, text)).shuffle(9, seed=1)
    fresh = fresh_pipelines.begun_again(data, 1, False)
    ((_, function),) = made
    assert function.function_def.ByteSize() < 2**14
    factor.assign(2.0)
    seen = [(float(x), bytes(text.numpy())) for x, text in fresh.take(99)]
    assert all(float(text) * 2 == x for x, text in seen)


def test_a_copy_of_a_variable_is_warned_of(caplog):
    start = tf.Variable(1.0, dtype=tf.float64)
    data = powers().shuffle(ELEMENTS, seed=1)
    data = data.scan(tf.zeros([]), lambda state, x: (state, x * start))
    fresh = fresh_pipelines.begun_again(data, 1, False)
    assert "in a stage other than map" in caplog.text
    start.assign(2.0)
    assert sorted(float(x) for x in fresh) == ALL


def test_random_layers_in_a_pipeline_go_on_from_one_fit_to_the_next():
    """Their state is a variable; a copy of it would begin again."""
    layer = keras.layers.RandomBrightness(0.5, seed=1)
    images = tf.data.Dataset.from_tensors(tf.ones([2, 2, 3]))
    data = images.repeat(2).shuffle(2, seed=1)
    data = data.map(lambda x: layer(x, training=True))
    both = [
        [float(tf.reduce_sum(x)) for x in share_of(data, 0, call)]
        for call in (1, 2)
    ]
    assert both[0] != both[1]
