"""Routes: which rows of a table each server is asked for.

The gradient of a look-up is of the same ids, so its push takes the route of the
look-up: a table that is looked up once in a step is sent the ids once.
"""

import dataclasses

import tensorflow as tf

# Key of the graphs' collections of routes.
_ROUTES = "tfdist/routes"
_KEEP_VALUES = ("Identity", "StopGradient")


@dataclasses.dataclass(frozen=True)
class Route:
    """Rows, or ids of a dynamic table, by server; tensors on the worker.

    Attributes:
      asked: By server, int64 `(n_k,)`, in the order of the whole.
      places: By server, their positions in the whole, int32 `(n_k,)`; None if
        there is one server.
    """

    asked: list
    places: list | None

    def part(self, server, values):
        """Builds the part of values that belongs to a server.

        Args:
          server: Its number.
          values: `(n, ...)`.

        Returns:
          `(n_k, ...)`.
        """
        if self.places is None:
            return values
        return tf.gather(values, self.places[server])

    def join(self, parts, width):
        """Builds the whole again.

        Args:
          parts: By server, `(n_k, width)`.
          width: int.

        Returns:
          A tensor `(n, width)`.
        """
        if self.places is None:
            return parts[0]
        whole = tf.dynamic_stitch(self.places, parts)
        return tf.reshape(whole, [-1, width])


def summed(values, where, number):
    """Builds the sums of rows with one id.

    Floats of 16 bits are added up as 32: a sum of 256 ones in bfloat16 stays
    at 256, however many more there are.

    Args:
      values: `(n, ...)`.
      where: Numbers of the sums that they belong to, `(n,)`.
      number: Of the sums.

    Returns:
      `(number, ...)`, of the type of `values`.
    """
    wide = tf.float32 if values.dtype.size < 4 else values.dtype
    sums = tf.math.unsorted_segment_sum(tf.cast(values, wide), where, number)
    return tf.cast(sums, values.dtype)


@dataclasses.dataclass(frozen=True)
class _Known:
    """The route of ids that a graph has.

    Attributes:
      places: See `of_ids`.
      graph: The graph.
      name: Of the ids' tensor.
      route: The `Route`.
    """

    places: object
    graph: tf.Graph
    name: str
    route: Route


def build(server, asked, num_servers):
    """Builds the `Route` of what is asked of each server.

    Args:
      server: Number of the server of each, int64 `(n,)`.
      asked: int64 `(n,)`.
      num_servers: int.
    """
    if num_servers == 1:
        return Route([asked], None)
    server = tf.cast(server, tf.int32)
    numbers = tf.range(tf.size(asked))
    return Route(
        tf.dynamic_partition(asked, server, num_servers),
        tf.dynamic_partition(numbers, server, num_servers),
    )


def of_ids(places, ids):
    """Builds the `Route` of ids, or returns the one that the graph has.

    Args:
      places: The `Partitions` of the table; or the `RowIndex`, where servers
        are asked for ids.
      ids: Integers `(n,)`.
    """
    graph = tf.compat.v1.get_default_graph()
    name = origin(ids).name
    # Branches have the same collection as the graph around them.
    collection = graph.get_collection_ref(_ROUTES)
    for one in collection:
        if (one.places, one.graph, one.name) == (places, graph, name):
            return one.route
    route = build(*places.place(tf.cast(ids, tf.int64)), places.num_servers)
    if ids.graph is graph:
        collection.append(_Known(places, graph, name, route))
    return route


def origin(tensor):
    """Returns the tensor of the same graph that has the same values."""
    while tensor.op.type in _KEEP_VALUES:
        tensor = tensor.op.inputs[0]
    return tensor
