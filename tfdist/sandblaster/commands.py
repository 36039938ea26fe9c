"""The vocabulary of operations on vectors that are cut over several shards.

The coordinator of Sandblaster never holds a vector: it sends commands "drawn
from a small set of operations (dot product, scaling, coefficient-wise addition,
multiplication) that can be performed by each parameter server shard
independently" (Dean et al. 2012, section 4.2). Only scalars come back. A
vector is known by its name; the rows of a matrix are vectors, too, and several
of them are used at once.

Scalars are float64 whatever the vectors are, and so are all sums.
"""

from collections.abc import Sequence
import dataclasses

import numpy as np
import tensorflow as tf

# Fields that are not part of a traced program.
_NUMBERS = ("factor", "index", "coefficients")


@dataclasses.dataclass(frozen=True)
class Command:
    """A base: what each shard does with its piece.

    Names of vectors are part of the traced program, `numbers` are not: a
    program is traced once for all of their values.

    Attributes:
      reduction: "sum" or "max", of what the shards return.
    """

    reduction = "sum"

    @property
    def key(self):
        """The command without its numbers, hashable."""
        values = vars(self).items()
        names = tuple(one for one in values if one[0] not in _NUMBERS)
        return type(self).__name__, names, len(self.numbers)

    @property
    def numbers(self) -> tuple[float, ...]:
        """The scalars that are sent with it."""
        return ()

    def build(self, piece, numbers):
        """Builds the command on one shard, in its device's scope.

        Args:
          piece: What the shard holds: `read(name)` gives a tensor, of shape
            `(n,)` or `(rows, n)`, and `write(name, value)` replaces it;
            `read_row` and `write_row` do so for one row of a matrix.
          numbers: List of scalar float64 tensors, those of `numbers`.

        Returns:
          A float64 vector of this shard's part of the result; None where the
          command has none.
        """
        raise NotImplementedError

    def result(self, values):
        """Returns the result.

        Args:
          values: A float64 array, the shards' parts after the reduction.
        """
        return float(values[0])


@dataclasses.dataclass(frozen=True)
class Dot(Command):
    """The dot product of two vectors, a float."""

    left: str
    right: str

    def build(self, piece, numbers):
        left = tf.cast(piece.read(self.left), tf.float64)
        right = tf.cast(piece.read(self.right), tf.float64)
        return tf.reduce_sum(left * right)[None]


@dataclasses.dataclass(frozen=True)
class Norm(Command):
    """The Euclidean norm of a vector, a float."""

    vector: str

    def build(self, piece, numbers):
        return Dot(self.vector, self.vector).build(piece, numbers)

    def result(self, values):
        return float(values[0]) ** 0.5


@dataclasses.dataclass(frozen=True)
class MaxNorm(Command):
    """The largest absolute value of a vector's elements, a float."""

    vector: str
    reduction = "max"

    def build(self, piece, numbers):
        values = tf.abs(tf.cast(piece.read(self.vector), tf.float64))
        # A shard may have no element.
        return tf.reduce_max(tf.concat([values, [0.0]], 0))[None]


@dataclasses.dataclass(frozen=True)
class Copy(Command):
    """`target = source`."""

    target: str
    source: str

    def build(self, piece, numbers):
        piece.write(self.target, piece.read(self.source))


@dataclasses.dataclass(frozen=True)
class Scale(Command):
    """`target *= factor`."""

    target: str
    factor: float

    @property
    def numbers(self):
        return (self.factor,)

    def build(self, piece, numbers):
        value = piece.read(self.target)
        piece.write(self.target, value * tf.cast(numbers[0], value.dtype))


@dataclasses.dataclass(frozen=True)
class Axpy(Command):
    """`target += factor * source`."""

    target: str
    factor: float
    source: str

    @property
    def numbers(self):
        return (self.factor,)

    def build(self, piece, numbers):
        source = piece.read(self.source)
        change = source * tf.cast(numbers[0], source.dtype)
        piece.write(self.target, piece.read(self.target) + change)


@dataclasses.dataclass(frozen=True)
class SetRow(Command):
    """Row `index` of the matrix `rows` becomes the vector `source`."""

    rows: str
    index: int
    source: str

    @property
    def numbers(self):
        return (float(self.index),)

    def build(self, piece, numbers):
        piece.write_row(
            self.rows, tf.cast(numbers[0], tf.int64), piece.read(self.source)
        )


@dataclasses.dataclass(frozen=True)
class RowDots(Command):
    """The dot products of all rows of a matrix with some vectors.

    A float64 array of a row for each vector.
    """

    rows: str
    vectors: tuple[str, ...]

    def build(self, piece, numbers):
        vectors = [
            tf.cast(piece.read(vector), tf.float64) for vector in self.vectors
        ]
        parts = []
        # Row by row: all of them in float64 would double what a shard holds.
        for k in range(piece.shape(self.rows)[0]):
            with tf.control_dependencies(parts[-1:]):
                row = tf.cast(piece.read_row(self.rows, k), tf.float64)
                dots = [tf.reduce_sum(row * vector) for vector in vectors]
                parts.append(tf.stack(dots))
        return tf.concat(parts, 0)

    def result(self, values):
        return np.reshape(values, [-1, len(self.vectors)]).T


@dataclasses.dataclass(frozen=True)
class Combine(Command):
    """`target = coefficients @ rows`.

    A row whose coefficient is 0 is left out, whatever it holds.
    """

    target: str
    rows: str
    coefficients: Sequence[float]

    @property
    def numbers(self):
        return tuple(map(float, self.coefficients))

    def build(self, piece, numbers):
        total = tf.zeros([piece.size], piece.dtype)
        # In the order of rows, wherever the vector is cut.
        for k, number in enumerate(numbers):
            with tf.control_dependencies([total]):
                row = piece.read_row(self.rows, k)
                factor = tf.cast(number, piece.dtype)
                total += tf.math.multiply_no_nan(row, factor)
        piece.write(self.target, total)
