"""Routes: which rows of a table each server is asked for.

A training step sends its ids to the servers once. The gradient is of the rows
that were looked up, so its push takes the route of the look-up.
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


@dataclasses.dataclass(frozen=True)
class _Known:
    """The route of ids that a graph has; `name` is that of their tensor."""

    name: str
    graph: tf.Graph
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


def of_ids(place, ids, num_servers):
    """Builds the `Route` of ids, or returns the one that their graph has.

    Args:
      place: Callable of int64 ids: for each, numbers of the server and of what
        it is asked for.
      ids: Integers `(n,)`.
      num_servers: int.
    """
    name = origin(ids).name
    known = ids.graph.get_collection_ref(_ROUTES)
    for one in known:
        # The graph of a branch begins with what the one around it knows.
        if one.name == name and one.graph is ids.graph:
            return one.route
    route = build(*place(tf.cast(ids, tf.int64)), num_servers)
    known.append(_Known(name, ids.graph, route))
    return route


def origin(tensor):
    """Returns the tensor of the same graph that has the same values."""
    while tensor.op.type in _KEEP_VALUES:
        tensor = tensor.op.inputs[0]
    return tensor
