"""Pipelines that begin each `fit` alike on all workers.

A `Dataset.shuffle` goes on from one iterator to the next. Where the chief
alone has looked at the data, its shuffle is ahead: shares by element then
overlap, and other elements are in none. So each `fit` trains on a pipeline of
its own, made again of the data set's description, that nobody has looked at.
"""

from absl import logging
import tensorflow as tf

from tfdist import private_pipelines
from tfdist import quiet

# The largest data in memory that is copied; a description is held in one
# message of at most 2 GB.
MAX_BYTES = 2**30
# The largest constant of a function, which a cluster's servers get as well.
_MAX_CONSTANT = 2**16
# Of `DatasetToGraphV2`: what cannot be copied, such as a random number
# generator of the user's, is shared with the original.
_IGNORE = 1


def begun_again(dataset, number, in_order):
    """A pipeline like a data set's that nobody has iterated over.

    Its order is the same on all workers where they made the same pipeline
    with the same seeds, however often each has iterated over theirs.

    Args:
      dataset: A `tf.data.Dataset`.
      number: Order number of the data, from 1, see `shares.distribute`.
      in_order: Whether elements must come in that order even where the data
        set says `deterministic=False`.

    Returns:
      A `tf.data.Dataset`; `dataset` itself where it is alike in any case, and
      where it is too large in memory, with a warning.
    """
    if not tf.executing_eagerly():
        return dataset  # In a function of the user's.
    if not private_pipelines.depends_on_iterators(dataset):
        return dataset
    size = private_pipelines.bytes_in_memory(dataset)
    if size > MAX_BYTES:
        logging.warning(
            "The data set has %d bytes in memory, more than the %d of which "
            "tfdist makes a copy for each fit. Iterate over it equally often "
            "on all workers (`evaluate`, `adapt` and `next(iter(...))` do), "
            "or their shares overlap.",
            size,
            MAX_BYTES,
        )
        return dataset
    if private_pipelines.counts_a_cached_shuffle(dataset):
        # Also right: who takes some, and holds out nothing.
        logging.warning(
            "The data set takes, skips or shards elements in a shuffled order "
            "that a `cache` keeps. With several workers, `fit` trains on a "
            "copy of the pipeline, with an order and a cache of its own: it "
            "may train on elements that you have held out. Pass "
            "reshuffle_each_iteration=False to `shuffle`, so that all orders "
            "are the same."
        )
    variant = tf.data.experimental.to_variant(dataset)
    with tf.device(variant.device):
        text = tf.raw_ops.DatasetToGraphV2(
            input_dataset=variant,
            external_state_policy=_IGNORE,
            strip_device_assignment=True,
        )
        graph = tf.compat.v1.GraphDef.FromString(text.numpy())
        private_pipelines.begin_again(graph, number)
        if in_order:
            private_pipelines.put_in_order(graph)
        shared, has_copies = private_pipelines.shared_inputs(dataset, graph)
        if has_copies:
            logging.warning(
                "The data set reads a tf.Variable that is on a GPU, or reads "
                "one in a stage other than map, filter, flat_map, interleave "
                "and take_while. `fit` trains on a copy of the pipeline, which "
                "has the values of now: what a callback assigns does not reach "
                "it. A variable that is made within "
                "`tf.device('CPU:0')` is on no GPU."
            )
        copy, functions = _variant_of(graph, shared)
    fresh = tf.data.experimental.from_variant(
        copy, structure=dataset.element_spec
    )
    # Functions of the pipeline live as long as what they were made for.
    fresh.made_of = dataset, functions
    fresh = fresh.with_options(dataset.options())
    if not in_order:
        return fresh
    options = tf.data.Options()
    options.deterministic = True
    # TensorFlow warns of each change of an option.
    with quiet.quietly():
        return fresh.with_options(options)


def _variant_of(graph, shared):
    """Makes the data set of a graph.

    Args:
      graph: The `GraphDef`, which is changed.
      shared: By name of a copy in the graph, the resource that it copies.

    Returns:
      A tensor, and what has to live as long as it.
    """
    if not shared:
        text = graph.SerializeToString()
        return tf.raw_ops.DatasetFromGraph(graph_def=text), None
    private_pipelines.rename_functions(graph)
    inputs = {**shared, **private_pipelines.taken_out(graph, _MAX_CONSTANT)}
    (result,) = [node for node in graph.node if node.op == "_Retval"]
    graph.node.remove(result)

    def load():
        (variant,) = tf.graph_util.import_graph_def(
            graph,
            input_map={name: tf.identity(one) for name, one in inputs.items()},
            return_elements=[f"{result.input[0]}:0"],
        )
        return variant

    function = tf.compat.v1.wrap_function(load, [])
    return function(), function
