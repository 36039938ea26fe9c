"""Named vectors that are cut over servers, and batches of commands on them."""

import numpy as np
import tensorflow as tf

from tfdist import private_tensorflow
from tfdist.sandblaster import fence as fence_lib


def cut(number, shards):
    """Returns how many elements each shard has, a list of ints.

    Args:
      number: Elements of the vectors.
      shards: Number of shards; those before may have one element more.
    """
    return [number // shards + (k < number % shards) for k in range(shards)]


def traced(build, *signature):
    """Returns a concrete function.

    TensorFlow would warn of many functions that are each traced once.

    Args:
      build: Callable of tensors that builds it.
      *signature: Their `tf.TensorSpec`.
    """
    function = tf.function(build, input_signature=signature, autograph=False)
    return function.get_concrete_function()


class Shards:
    """Vectors of one length and dtype, each cut in the same way.

    Whoever constructs it with the same arguments has the same vectors: they
    are resources of the devices, found by their names. A vector exists once it
    was written; matrices of zeros are made by `create`.

    Args:
      namespace: Prefix of the resources' names.
      number: Elements of a vector.
      dtype: Of the vectors, float32 or float64.
      devices: List of the devices of the shards, in order.
      here: This process's device.
      rows: Dict of the name of a matrix to its number of rows, each a vector.
      fence: The `Fence` of these devices: only the coordinator changes vectors.
    """

    def __init__(self, namespace, number, dtype, devices, here, rows, fence):
        self.fence = fence
        self.number = number
        self.dtype = tf.as_dtype(dtype)
        self.devices = tuple(devices)
        self.sizes = cut(number, len(self.devices))
        self.namespace = namespace
        self._here = here
        self._rows = dict(rows)
        self._programs = {}
        self._loads = {}
        self._fetches = {}

    def run(self, commands):
        """Runs commands on all shards, in order: one round trip.

        Args:
          commands: List of `Command`.

        Returns:
          A list of the results of those commands that have one.

        Raises:
          tf.errors.OpError: A server is gone, or lacks a vector.
        """
        key = tuple(command.key for command in commands)
        if key not in self._programs:
            self._programs[key] = self._trace(commands)
        program, lengths = self._programs[key]
        numbers = [n for command in commands for n in command.numbers]
        parts = program(tf.constant(numbers, tf.float64), self._term()).numpy()
        results, begin = [], 0
        for command, length in zip(commands, lengths, strict=True):
            if length:
                own = parts[:, begin : begin + length]
                results.append(command.result(_reduced(own, command)))
                begin += length
        return results

    def load(self, name, vector):
        """Replaces a vector, or a matrix, by one of this process.

        Args:
          name: Its name.
          vector: Tensor `(number,)`, or `(rows, number)`.
        """
        if name not in self._loads:

            def write(vector, term):
                with tf.device(self._here):
                    pieces = tf.split(vector, self.sizes, -1)
                for piece, value in zip(self.pieces(), pieces, strict=True):
                    with tf.device(piece.device):
                        sent = tf.identity(value)
                        with piece.guarded(term, sent):
                            piece.write(name, sent)

            spec = tf.TensorSpec(self.shape(name), self.dtype)
            self._loads[name] = traced(write, spec, fence_lib.TERM)
        self._loads[name](tf.cast(vector, self.dtype), self._term())

    def fetch(self, name):
        """Returns a vector or a matrix, a tensor of this process."""
        if name not in self._fetches:

            def read():
                values = []
                for piece in self.pieces():
                    with tf.device(piece.device):
                        values.append(tf.identity(piece.read(name)))
                with tf.device(self._here):
                    return tf.concat(values, -1)

            self._fetches[name] = traced(read)
        return self._fetches[name]()

    def shape(self, name):
        """Returns the shape of a vector or a matrix, a tuple of ints."""
        rows = self._rows.get(name)
        return (self.number,) if rows is None else (rows, self.number)

    def create(self):
        """Makes all matrices, of zeros."""

        def fill(term):
            for piece in self.pieces():
                with tf.device(piece.device), piece.guarded(term):
                    for name in self._rows:
                        piece.write(
                            name, tf.zeros(piece.shape(name), self.dtype)
                        )

        traced(fill, fence_lib.TERM)(self._term())

    def _term(self):
        return tf.constant(self.fence.term, tf.int64)

    def pieces(self):
        """Returns a `ShardScope` for each shard, in the graph being built."""
        return [
            ShardScope(self, k, device, size, self._rows)
            for k, (device, size) in enumerate(
                zip(self.devices, self.sizes, strict=True)
            )
        ]

    def _trace(self, commands):
        """Traces a program.

        Returns:
          A concrete function of the numbers and the term, which returns a
          float64 matrix of a row for each shard, and the list of each command's
          columns in it.
        """
        lengths = []

        def program(numbers, term):
            parts = []
            for piece in self.pieces():
                with tf.device(piece.device):
                    sent = tf.identity(numbers)
                    with piece.guarded(term, sent):
                        own = tf.unstack(sent)
                        parts.append(_build(commands, piece, own, lengths))
            # No eager tensor may live on a server.
            with tf.device(self._here):
                return tf.stack(parts)

        number = sum(len(command.numbers) for command in commands)
        function = traced(
            program, tf.TensorSpec([number], tf.float64), fence_lib.TERM
        )
        return function, lengths[: len(commands)]


class ShardScope:
    """One shard in the graph that is being built: its vectors and matrices.

    Args:
      shards: The `Shards`.
      number: Of the shard.
      device: The shard's.
      size: Elements of its piece of a vector.
      rows: Dict of the name of a matrix to its number of rows.
    """

    def __init__(self, shards, number, device, size, rows):
        self.device = device
        self.size = size
        self.dtype = shards.dtype
        self._fence = shards.fence
        self._number = number
        self._namespace = f"{shards.namespace}/{number}"
        self._rows = rows
        # One handle for each name: TensorFlow keeps the order of what has a
        # handle in common.
        self._handles = {}

    def guarded(self, term, *arrived):
        """Scope of what is built to change the shard; see `Fence.guarded`."""
        return self._fence.guarded(self._number, term, *arrived)

    def shape(self, name):
        """Returns the shape of a vector's or matrix's piece."""
        rows = self._rows.get(name)
        return [self.size] if rows is None else [rows, self.size]

    def read(self, name):
        """Builds the value of a vector or matrix."""
        value = tf.raw_ops.ReadVariableOp(
            resource=self._handle(name), dtype=self.dtype
        )
        value.set_shape(self.shape(name))
        return value

    def write(self, name, value):
        """Builds: a vector or matrix gets a value."""
        tf.raw_ops.AssignVariableOp(resource=self._handle(name), value=value)

    def read_row(self, name, index):
        """Builds the value of a row of a matrix, whose number is an int."""
        row = tf.raw_ops.ResourceGather(
            resource=self._handle(name), indices=index, dtype=self.dtype
        )
        row.set_shape([self.size])
        return row

    def write_row(self, name, index, value):
        """Builds: a row of a matrix gets a value."""
        tf.raw_ops.ResourceScatterUpdate(
            resource=self._handle(name), indices=index, updates=value
        )

    def _handle(self, name):
        if name not in self._handles:
            self._handles[name] = tf.raw_ops.VarHandleOp(
                dtype=self.dtype,
                shape=self.shape(name),
                shared_name=f"{self._namespace}/{name}",
            )
            # Or the handles of one shard would wait for another shard's.
            private_tensorflow.run_independently(self._handles[name].op)
        return self._handles[name]


def _build(commands, piece, numbers, lengths):
    """Builds a program on one shard.

    Args:
      commands: List of `Command`.
      piece: The `ShardScope`.
      numbers: List of scalar float64 tensors, those of all commands.
      lengths: List to which the number of each command's scalars is added.

    Returns:
      A float64 vector of the results' parts.
    """
    parts, begin = [tf.zeros([0], tf.float64)], 0
    for command in commands:
        end = begin + len(command.numbers)
        part = command.build(piece, numbers[begin:end])
        begin = end
        lengths.append(0 if part is None else int(part.shape[0]))
        if part is not None:
            parts.append(part)
    return tf.concat(parts, 0)


def _reduced(parts, command):
    """The sum or maximum over shards, in their order.

    Args:
      parts: Float64 array `(shards, scalars)`.
      command: The `Command`.
    """
    if command.reduction == "max":
        return np.max(parts, axis=0)
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total
