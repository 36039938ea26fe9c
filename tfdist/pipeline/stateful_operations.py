"""TensorFlow's operations that do something else when they are repeated."""

import tensorflow as tf

from tfdist import function_graphs

# TensorFlow's operations that keep the state of their numbers themselves.
RANDOM = frozenset(
    {
        "Multinomial",
        "ParameterizedTruncatedNormal",
        "RandomGamma",
        "RandomPoissonV2",
        "RandomShuffle",
        "RandomStandardNormal",
        "RandomUniform",
        "RandomUniformInt",
        "RngReadAndSkip",
        "StatefulRandomBinomial",
        "TruncatedNormal",
    }
)

# Those that change a variable of TensorFlow's.
ASSIGNMENTS = frozenset(
    name
    for name in dir(tf.raw_ops)
    if name.startswith(function_graphs.ASSIGNING)
)


def built():
    """Operations of the graph that is being built, a list."""
    if tf.executing_eagerly():
        return []
    return tf.compat.v1.get_default_graph().get_operations()


def among(operations, kinds):
    """Names of operations of some kinds, a list.

    Args:
      operations: Of the graph that is being built; what they call counts.
      kinds: Names of kinds of operations, a set.
    """
    nodes = [operation.node_def for operation in operations]
    library = None
    found, seen = [], set()
    while nodes:
        node = nodes.pop()
        if node.op in kinds:
            found.append(node.name)
        called = set(function_graphs.functions_of(node)) - seen
        if called and library is None:
            graph = tf.compat.v1.get_default_graph().as_graph_def()
            library = {f.signature.name: f for f in graph.library.function}
        seen |= called
        for name in called:
            nodes += library[name].node_def
    return found
