"""Stages of `tf.data` pipelines: private names of data sets and graphs.

A data set has no public name for its stages, nor for the state that a stage
keeps from one iterator to the next. Nothing here imports a private module;
`tests/private_pipelines_test.py` has a canary for each function.
"""

import uuid

import tensorflow as tf

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
# The same, and stages that put elements together by where they stand.
COUNTING_OR_PAIRING = {
    **COUNTING,
    "_WindowDataset": "window",
    "_ZipDataset": "zip",
}
# What hands on what other data sets read.
_PLAIN_STAGES = (
    "CacheDataset",
    "_BatchDataset",
    "_ConcatenateDataset",
    "_FilterDataset",
    "_MapDataset",
    "_OptionsDataset",
    "_PaddedBatchDataset",
    "_ParallelBatchDataset",
    "_ParallelMapDataset",
    "_PrefetchDataset",
    "_RepeatDataset",
    "_ShuffleDataset",
    "_SkipDataset",
    "_TakeDataset",
    "_ZipDataset",
)
# Stages that do not tell whether they draw, or keep the order.
_UNKNOWN = ("_ParallelInterleaveDataset", "_RandomDataset", "_VariantDataset")
# Stages that may leave elements to another data set.
_SPLITTING = ("_ShardDataset", "_SkipDataset", "_TakeDataset")
_SHUFFLES = ("_ShuffleAndRepeatDataset", "_ShuffleDataset")
# Of operations that draw: the input that is a generator of seeds, which is
# shared by all iterators, and the two inputs that it began with.
_DRAWING = {
    "RandomDatasetV2": (2, (0, 1)),
    "ShuffleAndRepeatDatasetV2": (5, (2, 3)),
    "ShuffleDatasetV3": (4, (2, 3)),
}
_SEED_BITS = 63
# Operations whose function gets, after the element, what their inputs after the
# first are; and the name of that function.
_WITH_CAPTURED_INPUTS = {
    "FilterDataset": "predicate",
    "FlatMapDataset": "f",
    "InterleaveDataset": "f",
    "MapAndBatchDataset": "f",
    "MapDataset": "f",
    "ParallelFilterDataset": "predicate",
    "ParallelInterleaveDatasetV4": "f",
    "ParallelMapDatasetV2": "f",
    "TakeWhileDataset": "predicate",
}


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


def is_cached(dataset):
    """Whether a `tf.data.Dataset` keeps its elements in a cache.

    All iterators of such a data set share its cache, so that looking into it
    in another way changes what they give. A data set has no public name for
    what it is made of.
    """
    if _name(dataset) == "CacheDataset":
        return True
    return any(is_cached(part) for part in dataset._inputs())


def readers_of(dataset):
    """The parts of a `tf.data.Dataset` that read its files, a list.

    Whether there are enough files is asked of these, and not of what the user
    does to their lines. What a data set is made of has no public name; where
    it is not known, the list has the whole.
    """
    if _name(dataset) not in _PLAIN_STAGES:
        return [dataset]
    parts = dataset._inputs()
    return [reader for part in parts for reader in readers_of(part)]


def is_from_memory(dataset):
    """Whether a `tf.data.Dataset` is known to read tensors or a generator only.

    TensorFlow finds the same out when it is to share out files, and then
    writes the description of the whole data set to standard error. What a data
    set is made of has no public name; where it is not known, it may read files.
    """
    name = _name(dataset)
    if name == "_TensorSliceDataset":
        # A list of names of files looks like any other tensor.
        specs = tf.nest.flatten(dataset.element_spec)
        return not any(spec.dtype == tf.string for spec in specs)
    if name in ("_RangeDataset", "_TensorDataset"):
        return True
    if name == "_FlatMapDataset":  # What `from_generator` makes.
        return any(
            operation.type == "GeneratorDataset"
            for wrapped in dataset._functions()
            for operation in wrapped.function.graph.get_operations()
        )
    if name not in (*_PLAIN_STAGES, "_ShardDataset"):
        return False
    return all(is_from_memory(part) for part in dataset._inputs())


def without_prefetch(dataset):
    """The `tf.data.Dataset` before it was told to `prefetch`, if it was.

    Keras prefetches what a Python generator gives. What is read and not used
    is lost, and nothing public takes a stage of a pipeline away.
    """
    if _name(dataset) == "_PrefetchDataset":
        (dataset,) = dataset._inputs()
    return dataset


def sources(dataset):
    """The variants of a data set and of all that it is made of, a list."""
    return [tf.data.experimental.to_variant(one) for one in _stages(dataset)]


def may_read_files(dataset):
    """Whether TensorFlow may find files to share out in a data set."""
    return any(
        _name(stage) in _READERS
        or _name(stage) in _UNKNOWN
        or any(node.op in _READING for node in _nodes(stage))
        for stage in _stages(dataset)
    )


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


def depends_on_iterators(dataset):
    """Whether what a data set gives may depend on its iterators of before.

    Or on time: a shuffle, a `Dataset.random`, whatever may give its elements
    in the order in which they are ready, and what this cannot look into.
    """
    options = dataset.options()
    return options.deterministic is False or any(
        "Shuffle" in _name(stage)
        or _name(stage) in _UNKNOWN
        or getattr(stage, "_deterministic", None) == "false"
        or any(_is_hasty(node) for node in _nodes(stage))
        or any(tensor.dtype == tf.variant for tensor in _captured_by(stage))
        for stage in _stages(dataset)
    )


def whole_arrays(dataset):
    """Returns the stage of Keras's pipeline that holds all arrays.

    Made again, it would hold a copy of them.

    Args:
      dataset: A `tf.data.Dataset` that Keras has made of arrays.
    """
    (stage,) = (s for s in _stages(dataset) if _name(s) == "_TensorDataset")
    return stage


def repeats_a_shuffle(dataset):
    """Whether a data set shuffles anew within one iteration over it."""
    return any(
        _name(stage) == "_ShuffleAndRepeatDataset"
        or _name(stage) == "_RepeatDataset"
        and any(_name(part) in _SHUFFLES for part in _stages(stage))
        for stage in _stages(dataset)
    )


def _is_drawn_anew(shuffle):
    return getattr(shuffle, "_reshuffle_each_iteration", True)


def caches_a_shuffle(dataset):
    """Whether a data set keeps the order of a shuffle in a cache.

    It keeps none before it was read to its end: then the next iterator gives
    another order.
    """
    return any(
        _name(stage) == "CacheDataset"
        and any(
            _name(part) in _SHUFFLES and _is_drawn_anew(part)
            for part in _stages(stage)
        )
        for stage in _stages(dataset)
    )


def shuffles_beyond_caches(dataset):
    """Whether each iterator draws an order of its own, which no cache keeps."""
    if _name(dataset) == "CacheDataset":
        return False
    if _name(dataset) in _SHUFFLES and _is_drawn_anew(dataset):
        return True
    return any(map(shuffles_beyond_caches, _parts(dataset)))


def counts_a_cached_shuffle(dataset):
    """Whether a stage counts elements in an order that a cache keeps.

    As `skip` does in a data set without the elements that others `take`.
    """
    return any(
        _name(stage) in _SPLITTING and caches_a_shuffle(stage)
        for stage in _stages(dataset)
    )


def bytes_in_memory(dataset):
    """Bytes of the tensors that a `tf.data.Dataset` reads, as far as is known.

    Its description as a graph has them all. Functions read those that they
    capture.
    """
    read = [
        tensor
        for stage in _stages(dataset)
        for tensor in (*getattr(stage, "_tensors", ()), *_captured_by(stage))
    ]
    return sum(map(_bytes_of, read))


def _captured_by(stage):
    """Yields the tensors that the functions of one stage capture."""
    for wrapped in stage._functions():
        yield from wrapped.function.captured_inputs


def _bytes_of(tensor):
    """Bytes that a copy of a tensor would take."""
    if tensor.dtype in (tf.resource, tf.variant):
        return 0
    if tensor.dtype == tf.string:
        lengths = tf.cast(tf.strings.length(tensor), tf.int64)
        return int(tf.reduce_sum(lengths))
    return tensor.dtype.size * (tensor.shape.num_elements() or 0)


def _is_hasty(node):
    """Whether a `NodeDef` gives elements in the order in which they come."""
    return "deterministic" in node.attr and (
        node.attr["deterministic"].s == b"false"
    )


def begin_again(graph, number):
    """Makes the stages of a graph begin as if none had been iterated over.

    Each drawing stage gets a generator of seeds of its own, and each cache of
    what such a stage has given a memory of its own.

    Args:
      graph: The `GraphDef` of a data set, which is changed.
      number: With 1 a stage draws what it draws first of all; with each other
        int something else. Shuffles that stay as they are do so.
    """
    nodes = {node.name: node for node in graph.node}
    drawing = set()
    for node in graph.node:
        # In the order in which they were built: inputs come first.
        inputs = [name.split(":")[0].lstrip("^") for name in node.input]
        if node.op in _DRAWING:
            generator, seeds = _DRAWING[node.op]
            _renew(nodes[inputs[generator]])
            if _draws_anew(node):
                _change_seeds([nodes[inputs[k]] for k in seeds], number)
        if node.op == "CacheDatasetV2" and drawing.intersection(inputs):
            _renew(nodes[inputs[2]])
        if node.op in _DRAWING or drawing.intersection(inputs):
            drawing.add(node.name)


def shared_inputs(dataset, graph):
    """Finds what functions of a data set read: variables, tables.

    Its graph has copies of them, with the values of now.

    Args:
      dataset: The `tf.data.Dataset`.
      graph: Its `GraphDef`.

    Returns:
      A dict of the name of a copy in the graph to the resource, a tensor; and
      whether the graph has copies of other variables: those on a GPU, and of
      functions that get more than elements.
    """
    captured = {
        tf.compat.as_str(wrapped.function.name): wrapped.function
        for stage in _stages(dataset)
        for wrapped in stage._functions()
    }
    found = {}
    for node in graph.node:
        if node.op in _WITH_CAPTURED_INPUTS:
            name = node.attr[_WITH_CAPTURED_INPUTS[node.op]].func.name
            function = captured.get(name)
            resources = function.captured_inputs if function else ()
            for copy, resource in zip(node.input[1:], resources, strict=False):
                # Stages are on the CPU: what is on a GPU stays a copy.
                is_near = "GPU" not in resource.device
                if resource.dtype == tf.resource and is_near:
                    found[copy] = resource
    handles = {node.name for node in graph.node if node.op == "VarHandleOp"}
    for node in graph.node:
        if node.name in found:
            handles -= {node.name, *node.input}
    return found, bool(handles)


def taken_out(graph, max_bytes):
    """Takes large constants out of a graph.

    Args:
      graph: The `GraphDef` of a data set, which is changed.
      max_bytes: Of those that stay.

    Returns:
      By name of what was a constant, its value, a tensor.
    """
    found = {}
    for node in list(graph.node):
        if node.op == "Const" and node.ByteSize() > max_bytes:
            found[node.name] = tf.io.parse_tensor(
                node.attr["value"].tensor.SerializeToString(),
                tf.as_dtype(node.attr["dtype"].type),
            )
            graph.node.remove(node)
    return found


def rename_functions(graph):
    """Gives the functions of a graph new names, as others may have theirs.

    Args:
      graph: A `GraphDef`, which is changed.
    """
    suffix = f"_{uuid.uuid4().hex}"
    for node in _nodes_of(graph):
        for value in node.attr.values():
            if value.func.name:
                value.func.name += suffix
            for function in value.list.func:
                function.name += suffix
    for function in graph.library.function:
        function.signature.name += suffix


def put_in_order(graph):
    """Makes no stage of a graph give elements in the order of their arrival.

    Args:
      graph: The `GraphDef` of a data set, which is changed.
    """
    for node in _nodes_of(graph):
        if _is_hasty(node):
            node.attr["deterministic"].s = b"true"
        if "sloppy" in node.attr:
            node.attr["sloppy"].b = False


def _draws_anew(node):
    """Whether a drawing `NodeDef` draws something else for each iterator."""
    for name in ("reshuffle_each_iteration", "rerandomize_each_iteration"):
        if name in node.attr:
            return node.attr[name].b
    return True


def _renew(node):
    """Gives a `NodeDef` of a handle a name that no resource has.

    A stage whose resource is not found makes one.
    """
    for handle in node.attr["value"].tensor.resource_handle_val:
        handle.name = f"tfdist/{uuid.uuid4().hex}"


def _change_seeds(nodes, number):
    """Replaces seeds by what comes of them and of a number.

    Args:
      nodes: The `NodeDef`s of the two seeds.
      number: See `begin_again`.
    """
    first, second = (
        int(tf.make_ndarray(node.attr["value"].tensor)) for node in nodes
    )
    if number == 1 and (first or second):
        return
    # Odd multipliers: other numbers come to other seeds. Zeros would mean
    # another draw on each worker.
    mixed = (second ^ (number * 0x9E3779B97F4A7C15)) % 2**_SEED_BITS
    tensor = tf.make_tensor_proto(mixed or 1, tf.int64)
    nodes[1].attr["value"].tensor.CopyFrom(tensor)
