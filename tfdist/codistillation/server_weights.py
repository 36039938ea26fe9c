"""Weights from the parameter servers of another cluster, by their layout."""

import concurrent.futures
import contextlib
import math

import numpy as np
import tensorflow as tf

from tfdist.codistillation import quantization
from tfdist.codistillation.server_session import ServerSession

# Protocol buffers hold less than 2 GiB.
_MOST_BYTES_AT_ONCE = 2**29


class ServerWeights:
    """Reads the weights of one group.

    Args:
      servers: List of the group's `Server`s, in the order of tasks.
      layout: What its strategy's `layout` says.
      dtype: What weights travel in, one of `quantization.DTYPES`.

    Raises:
      KeyError, TypeError, ValueError, IndexError: `layout` is malformed.
    """

    def __init__(self, servers, layout, dtype):
        self._parts = [_Part(s, layout["updates"]) for s in servers]
        self._dtypes = [
            tf.as_dtype(v["dtype"]).as_numpy_dtype for v in layout["variables"]
        ]
        for task, name, of_clock in layout["clocks"]:
            self._parts[task].add_clock(name, of_clock)
        # By variable: for each piece its server and its number there.
        self._places = [
            [
                self._parts[task].add_piece(
                    name,
                    variable["shape"]
                    if rows is None
                    else [rows, *variable["shape"][1:]],
                    variable["dtype"],
                    dtype,
                )
                for task, name, rows in variable["pieces"]
            ]
            for variable in layout["variables"]
        ]

    @contextlib.contextmanager
    def opened(self, deadline):
        """Scope of one conversation with all servers at once.

        Args:
          deadline: The `Deadline` of all of it.

        Returns:
          A `Conversation`, for the scope.
        """
        with contextlib.ExitStack() as stack:
            for part in self._parts:
                part.session = stack.enter_context(
                    ServerSession(part.server, part.graph, deadline)
                )
            # Left first: no session ends while it is in use.
            pool = stack.enter_context(
                concurrent.futures.ThreadPoolExecutor(len(self._parts))
            )
            yield Conversation(pool, self._parts, self._places, self._dtypes)


class Conversation:
    """Requests to all servers while sessions with them are open.

    Attributes:
      bytes_received: Bytes of the weights that came, as they travelled.
    """

    def __init__(self, pool, parts, places, dtypes):
        self._pool = pool
        self._parts = parts
        self._places = places
        self._dtypes = dtypes
        self.bytes_received = 0

    def counts(self):
        """Progress of the group.

        Returns:
          Updates that the servers have applied, and steps made: ints.

        Raises:
          PeerUnavailableError: A server does not say.
        """
        found = list(self._pool.map(_Part.read_counts, self._parts))
        updates = max(updates for updates, _ in found)
        return updates, max((c for _, cs in found for c in cs), default=updates)

    def weights(self):
        """The weights.

        Returns:
          A list of `np.ndarray`, None for what servers do not have.

        Raises:
          PeerUnavailableError: A server does not give them.
        """
        came = dict(
            zip(
                self._parts,
                self._pool.map(_Part.read_pieces, self._parts),
                strict=True,
            )
        )
        self.bytes_received += sum(
            array.nbytes
            for pieces in came.values()
            for p in pieces
            for array in p
        )
        return [
            self._whole(
                [part.restored(came[part], number) for part, number in places],
                dtype,
            )
            for places, dtype in zip(self._places, self._dtypes, strict=True)
        ]

    def _whole(self, pieces, dtype):
        if not pieces:
            return None
        whole = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        # As in `weights.snapshot`.
        is_bfloat16 = dtype == tf.bfloat16.as_numpy_dtype
        return whole.astype(np.float32) if is_bfloat16 else whole


class _Part:
    """One server's part of the weights, in a graph of its own."""

    def __init__(self, server, updates):
        self.server = server
        self.graph = tf.Graph()
        self.session = None
        self._pieces = []
        self._clocks = []
        self._updates = self._read(updates, [], tf.int64)

    def _read(self, name, shape, dtype):
        with self.graph.as_default(), self.server.device():
            handle = tf.raw_ops.VarHandleOp(
                dtype=dtype, shape=shape, shared_name=name
            )
            value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)
        value.set_shape(shape)
        return value

    def add_clock(self, name, dtype):
        self._clocks.append(self._read(name, [], tf.as_dtype(dtype)))

    def add_piece(self, name, shape, dtype, travels_in):
        """Adds a variable, or a piece of one; returns its place."""
        dtype = tf.as_dtype(dtype)
        value = self._read(name, shape, dtype)
        with self.graph.as_default(), self.server.device():
            tensors = quantise(value, travels_in)
        size = math.prod(shape) * dtype.size
        self._pieces.append((tensors, tuple(shape), dtype, size))
        return self, len(self._pieces) - 1

    def read_counts(self):
        updates, clocks = self.session.run(
            (self._updates, self._clocks), "a count of updates"
        )
        return int(updates), [int(clock) for clock in clocks]

    def read_pieces(self):
        """Reads the pieces as they are sent: tuples of arrays, a list."""
        came, batch, size = [], [], 0
        for tensors, _, _, its_size in self._pieces:
            if batch and size + its_size > _MOST_BYTES_AT_ONCE:
                came += self.session.run(batch, "weights")
                batch, size = [], 0
            batch.append(tuple(tensors))
            size += its_size
        return came + self.session.run(batch, "weights") if batch else came

    def restored(self, came, number):
        """A piece as an array of its shape and dtype."""
        _, shape, dtype, _ = self._pieces[number]
        return restore(came[number], shape, dtype.as_numpy_dtype)


def quantise(value, travels_in):
    """Builds what `quantization.quantise` computes.

    Args:
      value: A tensor whose shape is known.
      travels_in: One of `quantization.DTYPES`.

    Returns:
      List of tensors that travel, for `restore`.
    """
    dtype = value.dtype.as_numpy_dtype
    if travels_in == "float32" or not quantization.is_quantised(
        value.shape, dtype
    ):
        return [value]
    zero = tf.zeros([], value.dtype)
    magnitude = tf.abs(value)
    if travels_in == "float16":
        # One of the two is empty: a graph gives always the same tensors.
        largest = tf.maximum(tf.reduce_max(magnitude), zero)
        is_half = largest < quantization.LARGEST_HALF
        flat = tf.reshape(value, [-1])
        end = tf.where(is_half, tf.size(flat), 0)
        return [tf.cast(flat[:end], tf.float16), flat[end:]]
    axes = list(range(value.shape.rank - 1))
    largest = tf.maximum(tf.reduce_max(magnitude, axis=axes), zero)
    scale = tf.cast(largest / quantization.LEVELS, tf.float32)
    divisor = tf.where(scale > 0, scale, tf.ones_like(scale))
    rounded = tf.raw_ops.Rint(x=value / tf.cast(divisor, value.dtype))
    return [tf.cast(rounded, tf.int8), scale]


def restore(came, shape, dtype):
    """The weights that `quantise` was given, nearly.

    Args:
      came: Tuple of arrays, the values of what it returned.
      shape: Tuple of ints.
      dtype: Their NumPy dtype.

    Returns:
      An `np.ndarray`.
    """
    first, *others = came
    if first.dtype == np.float16 and others:
        came = (first if first.size else others[0],)
    return quantization.restore(came, dtype).reshape(shape)
