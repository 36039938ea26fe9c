"""Canaries: stages of `tf.data` have the names and the state they had.

One for each name of `tfdist.private_pipelines`. Where one fails, TensorFlow
has changed: what tfdist does with the name is in its docstring. What it is
good for: `tests.data_shares`.
"""

import numpy as np
import pytest
import tensorflow as tf

from tests import private_keras_data_test
from tests import private_names
from tfdist import private_pipelines

Dataset = tf.data.Dataset


def test_every_name_has_a_canary():
    assert not private_names.without_a_canary(private_pipelines, __file__)


COUNTING = {
    "assert_cardinality": lambda x: x.apply(
        tf.data.experimental.assert_cardinality(4)
    ),
    "shard": lambda x: x.shard(2, 0),
    "skip": lambda x: x.skip(1),
    "take": lambda x: x.take(1),
    "take_while": lambda x: x.take_while(lambda y: y < 2),
}


COUNTING_OR_PAIRING = {
    **COUNTING,
    "window": lambda x: x.window(2),
    "zip": lambda x: Dataset.zip(x, x),
}


@pytest.mark.parametrize(
    "made, public",
    [
        (COUNTING, private_pipelines.COUNTING),
        (COUNTING_OR_PAIRING, private_pipelines.COUNTING_OR_PAIRING),
    ],
)
def test_stages_that_count_or_pair_have_their_names(made, public):
    found = {
        public[private_pipelines.stage_not_by_file(make(Dataset.range(4)))]
        for make in made.values()
    }
    assert found == made.keys()
    assert found == set(public.values())


PLAIN = {
    "CacheDataset": lambda x: x.cache(),
    "_BatchDataset": lambda x: x.batch(2),
    "_ConcatenateDataset": lambda x: x.concatenate(x),
    "_DenseToRaggedDataset": lambda x: x.ragged_batch(2),
    "_FilterDataset": lambda x: x.filter(lambda y: y > 1),
    "_FlatMapDataset": lambda x: x.flat_map(Dataset.from_tensors),
    "_InterleaveDataset": lambda x: x.interleave(Dataset.from_tensors),
    "_MapDataset": lambda x: x.map(lambda y: y),
    "_OptionsDataset": lambda x: x.with_options(tf.data.Options()),
    "_PaddedBatchDataset": lambda x: x.padded_batch(2),
    "_ParallelBatchDataset": lambda x: x.batch(2, num_parallel_calls=2),
    "_ParallelInterleaveDataset": lambda x: x.interleave(
        Dataset.from_tensors, num_parallel_calls=2
    ),
    "_ParallelMapDataset": lambda x: x.map(lambda y: y, num_parallel_calls=2),
    "_PrefetchDataset": lambda x: x.prefetch(1),
    "_RebatchDataset": lambda x: x.batch(1).rebatch(2),
    "_RepeatDataset": lambda x: x.repeat(2),
    "_RestructuredDataset": lambda x: x.batch(2).unbatch(),
    "_ShuffleDataset": lambda x: x.shuffle(2),
    "_UnbatchDataset": lambda x: x.batch(2).unbatch(),
}


@pytest.mark.parametrize("name", PLAIN)
def test_other_stages_do_the_same_to_each_element(name):
    stage = PLAIN[name](Dataset.range(4))
    # `ragged_batch` is two stages.
    made_of = [stage, *stage._inputs()]
    assert name in {type(one).__name__ for one in made_of}
    assert private_pipelines.stage_not_by_file(stage) is None
    counted = PLAIN[name](Dataset.range(4).take(2)).prefetch(1)
    assert private_pipelines.stage_not_by_file(counted) == "_TakeDataset"


READERS = {
    "FixedLengthRecordDatasetV2": lambda x: tf.data.FixedLengthRecordDataset(
        x, 1
    ),
    "TFRecordDatasetV2": tf.data.TFRecordDataset,
    "TextLineDatasetV2": tf.data.TextLineDataset,
}


@pytest.mark.parametrize("name", READERS)
def test_readers_are_known_and_show_what_names_their_files(name):
    names, read = Dataset.from_tensor_slices(["a", "b"]), READERS[name]
    assert type(read(names)).__name__ == name
    for reader in (read(names.take(1)), names.take(1).interleave(read)):
        assert private_pipelines.stage_not_by_file(reader) is None
    mixed = names.shuffle(2, seed=1).take(1)
    for reader in (read(mixed), mixed.interleave(read)):
        found = private_pipelines.stage_not_by_file(reader)
        assert found == "_TakeDataset"


def hasty_options():
    options = tf.data.Options()
    options.deterministic = False
    return Dataset.range(2).with_options(options)


@pytest.mark.parametrize(
    "expected, make",
    [
        (False, lambda: Dataset.range(4).batch(2).map(lambda x: x)),
        (True, lambda: Dataset.range(4).shuffle(2, seed=1).batch(2)),
        (True, lambda: Dataset.random(seed=1, rerandomize_each_iteration=True)),
        (True, hasty_options),
        (
            True,
            lambda: Dataset.range(2).map(
                lambda x: x, num_parallel_calls=2, deterministic=False
            ),
        ),
        (
            True,
            lambda: Dataset.range(2).flat_map(
                lambda x: Dataset.range(x).map(
                    lambda y: y, num_parallel_calls=2, deterministic=False
                )
            ),
        ),
    ],
)
def test_what_depends_on_iterators_of_before_is_known(expected, make):
    assert private_pipelines.depends_on_iterators(make()) == expected


def test_tensors_in_memory_are_counted():
    slices = Dataset.from_tensor_slices((np.ones([4, 2]), np.ones([4], "int8")))
    whole = Dataset.from_tensors(np.ones([3], np.float32))
    data = Dataset.zip(slices.batch(2), whole.repeat())
    assert private_pipelines.bytes_in_memory(data) == 4 * 2 * 8 + 4 + 3 * 4


def test_tensors_that_functions_capture_and_texts_are_counted():
    table, state = tf.ones([5, 3]), tf.Variable(tf.ones([7]))
    rows = Dataset.range(5).map(lambda k: tf.gather(table, k) + state[0])
    assert private_pipelines.bytes_in_memory(rows) == 5 * 3 * 4
    texts = Dataset.from_tensor_slices(["a", "bcd", ""]).batch(2)
    assert private_pipelines.bytes_in_memory(texts) == 4


def graph_of(dataset):
    text = tf.raw_ops.DatasetToGraphV2(
        input_dataset=tf.data.experimental.to_variant(dataset),
        external_state_policy=1,
    )
    return tf.compat.v1.GraphDef.FromString(text.numpy())


def made_of(graph, dataset):
    variant = tf.raw_ops.DatasetFromGraph(graph_def=graph.SerializeToString())
    return tf.data.experimental.from_variant(variant, dataset.element_spec)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Dataset.range(9).shuffle(9, seed=1),
        lambda: Dataset.random(seed=1, rerandomize_each_iteration=True).take(3),
        lambda: Dataset.range(9).shuffle(9, seed=1).cache(),
    ],
)
def test_a_graph_begins_again_with_seeds_of_its_own(make):
    first = [int(x) for x in make()]
    dataset = make()
    list(dataset)
    graph = graph_of(dataset)
    private_pipelines.begin_again(graph, 1)
    assert [int(x) for x in made_of(graph, dataset)] == first
    private_pipelines.begin_again(graph, 2)
    second = [int(x) for x in made_of(graph, dataset)]
    assert second != first
    assert [int(x) for x in made_of(graph, dataset)] == second


def test_resources_of_functions_are_found_in_a_graph():
    first, other = tf.Variable(1), tf.Variable(2)
    dataset = (
        Dataset.range(2)
        .map(lambda x: x + tf.cast(first, tf.int64))
        .filter(lambda x: x > tf.cast(other, tf.int64))
    )
    graph = graph_of(dataset)
    shared, has_copies = private_pipelines.shared_inputs(dataset, graph)
    assert not has_copies
    for variable in (first, other):
        assert any(one is variable.handle for one in shared.values())
    names = {node.name for node in graph.node}
    assert len(shared) == 2 and shared.keys() <= names
    # A state comes before what a function reads.
    scanned = dataset.scan(other, lambda state, x: (state, x))
    scanned = scanned.scan(0, lambda state, x: (state + first, x))
    assert private_pipelines.shared_inputs(scanned, graph_of(scanned))[1]


def test_large_constants_are_taken_out_of_a_graph():
    numbers, texts = np.arange(1000.0), np.array([str(x) for x in range(1000)])
    dataset = Dataset.from_tensor_slices((numbers, texts)).batch(7)
    graph = graph_of(dataset)
    found = private_pipelines.taken_out(graph, 2**10)
    assert graph.ByteSize() < 2**12
    both = {value.dtype: value.numpy() for value in found.values()}
    np.testing.assert_array_equal(both[tf.float64], numbers)
    assert [x.decode() for x in both[tf.string]] == texts.tolist()
    # What is small stays.
    assert any(node.op == "Const" for node in graph.node)


def test_functions_of_a_graph_get_other_names_throughout():
    dataset = Dataset.range(2).flat_map(
        lambda x: Dataset.range(x).map(lambda y: y + 1)
    )
    graph = graph_of(dataset)
    before = {function.signature.name for function in graph.library.function}
    private_pipelines.rename_functions(graph)
    after = {function.signature.name for function in graph.library.function}
    assert not before & after
    assert [int(x) for x in made_of(graph, dataset)] == [1]


def test_nothing_of_a_graph_is_hasty_that_is_put_in_order():
    dataset = Dataset.range(2).map(
        lambda x: x, num_parallel_calls=2, deterministic=False
    )
    graph = graph_of(dataset)
    private_pipelines.put_in_order(graph)
    made = [node for node in graph.node if "deterministic" in node.attr]
    assert [node.attr["deterministic"].s for node in made] == [b"true"]
    assert [int(x) for x in made_of(graph, dataset)] == [0, 1]


def test_sources_are_those_of_all_stages():
    first = Dataset.range(2)
    last = first.map(lambda x: x).batch(1)
    found = private_pipelines.sources(last)
    assert len(found) == 3
    assert any(one is tf.data.experimental.to_variant(first) for one in found)


def test_files_are_known_where_they_are_read(tmp_path):
    names = Dataset.from_tensor_slices([str(tmp_path / "a")])
    read = private_pipelines.may_read_files
    assert read(tf.data.TextLineDataset(names))
    assert read(names.interleave(tf.data.TextLineDataset).batch(2))
    assert not read(names)
    assert not read(Dataset.from_generator(lambda: [1], tf.int64).batch(2))


def test_a_cached_shuffle_is_known():
    caches = private_pipelines.caches_a_shuffle
    data = Dataset.range(4)
    assert caches(data.shuffle(4).batch(2).cache().prefetch(1))
    assert not caches(data.cache().shuffle(4))
    # It gives the same to every iterator.
    assert not caches(data.shuffle(4, 1, False).cache())


def test_a_shuffle_that_no_cache_keeps_is_known():
    shuffles = private_pipelines.shuffles_beyond_caches
    data = Dataset.range(4)
    assert shuffles(data.shuffle(4).cache().batch(2).shuffle(2).prefetch(1))
    assert not shuffles(data.shuffle(4).batch(2).cache().prefetch(1))
    assert not shuffles(data.shuffle(4, 1, False))


def test_a_split_of_a_cached_shuffle_is_known():
    splits = private_pipelines.counts_a_cached_shuffle
    cached = Dataset.range(4).shuffle(4).cache()
    for part in (cached.take(2), cached.skip(2).batch(1), cached.shard(2, 0)):
        assert splits(part)
    assert not splits(cached.batch(2))
    assert not splits(Dataset.range(4).take(3).shuffle(3).cache())
    assert not splits(Dataset.range(4).shuffle(4, 1, False).cache().take(2))


def test_the_stage_of_keras_with_all_arrays_is_found():
    x = np.arange(6.0, dtype=np.float32)
    dataset = private_keras_data_test.adapter_of_arrays(
        x, x, 2, shuffle=True
    ).get_tf_dataset()
    ((found, _),) = private_pipelines.whole_arrays(dataset)
    np.testing.assert_array_equal(found, x)


def test_a_repeated_shuffle_is_known():
    repeats = private_pipelines.repeats_a_shuffle
    data = Dataset.range(4)
    assert repeats(data.shuffle(4).batch(2).repeat(2).prefetch(1))
    assert not repeats(data.repeat(2).shuffle(4))
    assert not repeats(data.repeat(2))


STAGES = {
    "CacheDataset": lambda x: x.cache(),
    "_BatchDataset": lambda x: x.batch(2),
    "_ConcatenateDataset": lambda x: x.concatenate(x),
    "_FilterDataset": lambda x: x.filter(lambda y: y > 1),
    "_MapDataset": lambda x: x.map(lambda y: y),
    "_OptionsDataset": lambda x: x.with_options(tf.data.Options()),
    "_PaddedBatchDataset": lambda x: x.padded_batch(2),
    "_ParallelBatchDataset": lambda x: x.batch(2, num_parallel_calls=2),
    "_ParallelMapDataset": lambda x: x.map(lambda y: y, num_parallel_calls=2),
    "_PrefetchDataset": lambda x: x.prefetch(1),
    "_RepeatDataset": lambda x: x.repeat(2),
    "_ShuffleDataset": lambda x: x.shuffle(2),
    "_SkipDataset": lambda x: x.skip(1),
    "_TakeDataset": lambda x: x.take(1),
    "_ZipDataset": lambda x: Dataset.zip(x, x),
}


def test_all_plain_stages_of_data_sets_are_known():
    assert STAGES.keys() == set(private_pipelines._PLAIN_STAGES)


@pytest.mark.parametrize("name", STAGES)
def test_stages_of_data_sets_have_their_names(name):
    numbers = Dataset.range(4)
    stage = STAGES[name](numbers)
    assert type(stage).__name__ == name
    assert hasattr(Dataset, "_inputs")
    readers = private_pipelines.readers_of(stage)
    assert {type(reader).__name__ for reader in readers} == {"_RangeDataset"}
    assert private_pipelines.is_from_memory(stage)
    assert private_pipelines.is_cached(stage) == (name == "CacheDataset")
    assert private_pipelines.is_cached(stage.batch(2)) == (
        name == "CacheDataset"
    )


@pytest.mark.parametrize(
    "name, make",
    [
        ("_RangeDataset", lambda: Dataset.range(2)),
        ("_TensorDataset", lambda: Dataset.from_tensors(1.0)),
        (
            "_TensorSliceDataset",
            lambda: Dataset.from_tensor_slices([1.0]),
        ),
        ("_ShardDataset", lambda: Dataset.range(2).shard(2, 0)),
        (
            "_FlatMapDataset",
            lambda: Dataset.from_generator(
                lambda: iter([1]), output_signature=tf.TensorSpec([], tf.int64)
            ),
        ),
    ],
)
def test_sources_of_data_sets_have_their_names(name, make):
    assert type(make()).__name__ == name
    assert private_pipelines.is_from_memory(make())


def test_prefetching_can_be_taken_away():
    numbers = Dataset.range(2)
    assert private_pipelines.without_prefetch(numbers.prefetch(1)) is numbers
    assert private_pipelines.without_prefetch(numbers) is numbers
