"""What a `tf.data` pipeline is made of: private names of data sets and graphs.

A data set has no public name for its stages. Nothing here imports a
private module; `tests/private_pipelines_test.py` has a canary for each function.
"""

# Stages that do the same to each element, wherever its file is read. A batch
# is of whatever elements come together; what `drop_remainder` drops, it drops
# of each share.
_OF_EACH_ELEMENT = (
    "CacheDataset",
    "ParallelInterleaveDataset",
    "_BatchDataset",
    "_ConcatenateDataset",
    "_CopyToDeviceDataset",
    "_DenseToRaggedDataset",
    "_DenseToSparseBatchDataset",
    "_FilterDataset",
    "_FlatMapDataset",
    "_IgnoreErrorsDataset",
    "_InterleaveDataset",
    "_MapAndBatchDataset",
    "_MapDataset",
    "_OptionsDataset",
    "_PaddedBatchDataset",
    "_ParallelBatchDataset",
    "_ParallelInterleaveDataset",
    "_ParallelMapDataset",
    "_ParseExampleDataset",
    "_PrefetchDataset",
    "_RebatchDataset",
    "_RepeatDataset",
    "_RestructuredDataset",
    "_ShuffleAndRepeatDataset",
    "_ShuffleDataset",
    "_UnbatchDataset",
)
# Stages that read the files that their input names.
_READERS = (
    "FixedLengthRecordDatasetV2",
    "TFRecordDatasetV2",
    "TextLineDatasetV2",
)
# The same, as operations of a function that is given a name.
_READING = (
    "ArrayRecordDataset",
    "FixedLengthRecordDataset",
    "FixedLengthRecordDatasetV2",
    "TFRecordDataset",
    "TFRecordDatasetV2",
    "TextLineDataset",
)
# Stages that count elements, and what they are in public.
COUNTING = {
    "_AssertCardinalityDataset": "assert_cardinality",
    "_ShardDataset": "shard",
    "_SkipDataset": "skip",
    "_TakeDataset": "take",
    "_TakeWhileDataset": "take_while",
}
_SHUFFLES = ("_ShuffleAndRepeatDataset", "_ShuffleDataset")


def _parts(dataset):
    """The data sets that one is made of; of a reader, that of the names."""
    return getattr(dataset, "_impl", dataset)._inputs()


def _stages(dataset):
    """Yields a data set and all that it is made of."""
    yield dataset
    for part in _parts(dataset):
        yield from _stages(part)


def _name(dataset):
    return type(dataset).__name__


def _nodes(dataset):
    """Yields the `NodeDef`s of the functions of one stage."""
    for wrapped in dataset._functions():
        yield from _nodes_of(wrapped.function.graph.as_graph_def())


def _nodes_of(graph):
    """Yields the `NodeDef`s of a `GraphDef` and of its functions."""
    yield from graph.node
    for function in graph.library.function:
        yield from function.node_def


def stage_not_by_file(dataset):
    """The first stage that differs where each worker has files of its own.

    `take` and `skip` then count the elements of each worker, and `zip` pairs
    others. Only stages are passed that are known to do the same to each
    element; names of files may be counted before they are read.

    Args:
      dataset: A `tf.data.Dataset`.

    Returns:
      The private name of its class, such as "_TakeDataset"; None if there is
      none.
    """
    name, parts = _name(dataset), _parts(dataset)
    if name in _READERS or any(node.op in _READING for node in _nodes(dataset)):
        below = {_name(s): None for part in parts for s in _stages(part)}
        # TensorFlow shares out the names before it shuffles them.
        counting = [stage for stage in below if stage in COUNTING]
        is_shuffled = any(stage in _SHUFFLES for stage in below)
        return counting[0] if counting and is_shuffled else None
    if not parts:
        return None
    if name not in _OF_EACH_ELEMENT:
        return name
    found = map(stage_not_by_file, parts)
    return next((stage for stage in found if stage is not None), None)
