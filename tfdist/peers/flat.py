"""A lane's variables as flat vectors, one for each dtype."""

import dataclasses

import tensorflow as tf

# Less than 2 GiB, which no message of TensorFlow's has, with room for a header.
_MOST_BYTES = 2**31 - 2**20


@dataclasses.dataclass(frozen=True)
class FlatGroup:
    """Variables that travel as one vector.

    Attributes:
      dtype: The vector's: float64 of variables of float64, else float32.
      places: Numbers of the variables in the lane, a tuple.
      shapes: Their static shapes.
    """

    dtype: tf.DType
    places: tuple
    shapes: tuple

    @property
    def sizes(self):
        """Elements of each variable, a list."""
        return [shape.num_elements() for shape in self.shapes]

    @property
    def size(self):
        """Elements of the vector."""
        return sum(self.sizes)

    def vector(self, tensors):
        """Builds the vector.

        Args:
          tensors: One for each variable of the group.
        """
        flat = [tf.reshape(tf.cast(t, self.dtype), [-1]) for t in tensors]
        return flat[0] if len(flat) == 1 else tf.concat(flat, 0)

    def tensors(self, vector, dtypes):
        """Builds the tensors that a vector is made of.

        Args:
          vector: `[size]`.
          dtypes: Of the variables.
        """
        parts = tf.split(vector, self.sizes)
        return [
            tf.cast(tf.reshape(part, shape), dtype)
            for part, shape, dtype in zip(
                parts, self.shapes, dtypes, strict=True
            )
        ]


def groups(variables, strategy):
    """The groups of a list of variables, a list of `FlatGroup`.

    Args:
      variables: TensorFlow variables of floating-point types.
      strategy: Name of the strategy, for an error.

    Raises:
      NotImplementedError: One is of another type, or a group is too long.
    """
    found = {}
    for place, variable in enumerate(variables):
        if not variable.dtype.is_floating:
            raise NotImplementedError(
                f"{strategy} trains floating-point variables alone. "
                f"Received: {variable.name!r} of {variable.dtype.name}."
            )
        dtype = tf.float64 if variable.dtype == tf.float64 else tf.float32
        found.setdefault(dtype, []).append(place)
    made = [
        FlatGroup(
            dtype,
            tuple(places),
            tuple(variables[place].shape for place in places),
        )
        for dtype, places in found.items()
    ]
    for group in made:
        if group.size * group.dtype.size > _MOST_BYTES:
            raise NotImplementedError(
                f"{strategy} sends all that an optimizer trains as one "
                f"message of {group.dtype.name}, which must have less than "
                f"2 GiB. Received: {len(group.places)} variables with "
                f"{group.size} elements, "
                f"{group.size * group.dtype.size / 2**30:.3g} GiB."
            )
    return made
