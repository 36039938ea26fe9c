"""A batch cut into micro-batches, and what each of them counts.

The gradient of a batch's mean loss is the mean of the gradients of its
micro-batches, each weighted by its share of the examples; unweighted, it would
be wrong as soon as their sizes differ.
"""

import inspect

from keras import tree
import tensorflow as tf

from tfdist import private_keras


class MicroBatches:
    """A batch cut along its first axis.

    Sizes differ by one example at most, larger ones come first, and the order
    of the examples is kept. If there are fewer examples than micro-batches,
    the last of these are *empty*: they are given some example (no layer and no
    statistics have to get along with none), which counts nothing.

    Args:
      size: Number of examples, at least 1; an int, or a scalar integer tensor
        where it is known only when the step runs.
      count: Number of micro-batches, M.

    Attributes:
      sizes: Examples that count in each micro-batch, M ints or scalars.
      may_be_empty: Whether there may be empty ones.
    """

    def __init__(self, size, count):
        self._size = size
        least, rest = size // count, size % count
        units = range(count)
        if isinstance(size, int):
            self.sizes = [least + (unit < rest) for unit in units]
            starts = [unit * least + min(unit, rest) for unit in units]
            self.may_be_empty = size < count
            lower, upper = max, min
        else:
            self.sizes = [
                least + tf.cast(unit < rest, least.dtype) for unit in units
            ]
            starts = [unit * least + tf.minimum(unit, rest) for unit in units]
            self.may_be_empty = count > 1
            lower, upper = tf.maximum, tf.minimum
        if self.may_be_empty:
            starts = [upper(start, size - 1) for start in starts]
        self._ranges = [
            (start, start + lower(length, 1))
            for start, length in zip(starts, self.sizes, strict=True)
        ]

    @property
    def count(self):
        """Number of micro-batches, M."""
        return len(self.sizes)

    def part(self, data, unit):
        """Returns a micro-batch's part of a batch.

        Args:
          data: A structure of tensors of shape (examples, ...), or None.
          unit: The number of the micro-batch.

        Returns:
          The same structure with (at least 1, ...) examples.
        """
        if self.count == 1:
            return data
        return _sliced(data, slice(*self._ranges[unit]))

    def counted(self, data, unit):
        """Of a micro-batch's results, those of examples that count.

        Args:
          data: A structure of tensors of shape (at least 1, ...).
          unit: The number of the micro-batch.
        """
        if not self.may_be_empty:
            return data
        return _sliced(data, slice(self.sizes[unit]))

    def share(self, unit, dtype):
        """The part of the examples that is in a micro-batch, a scalar."""
        share = tf.cast(self.sizes[unit], "float64") / tf.cast(
            self._size, "float64"
        )
        return tf.cast(share, dtype)


def _sliced(data, examples):
    return tree.map_structure(
        lambda leaf: None if leaf is None else leaf[examples], data
    )


def inputs_of(model, x):
    """The tensors of a model's inputs, which can be cut.

    Args:
      model: A sequential or functional model.
      x: Inputs in any structure that it takes.

    Raises:
      ValueError: One is sparse or ragged, or is None.
    """
    for tensor in filter(_is_composite, tree.flatten(x)):
        raise _not_dense(tensor)
    inputs = private_keras.flat_inputs(model, x)
    if any(tensor is None for tensor in inputs):
        raise ValueError(
            f"Argument `x` must have all inputs of model {model.name!r}, which "
            "is a pipeline: one that is optional cannot be None. Received: "
            f"x={x!r}"
        )
    return inputs


def batch_size(data):
    """Number of examples of a batch.

    Args:
      data: A structure of tensors of shape (examples, ...), with Nones.

    Returns:
      An int, or a scalar int32 tensor where it is known only in the step,
      which then fails (`tf.errors.InvalidArgumentError`) if tensors differ.

    Raises:
      ValueError: A tensor is sparse, ragged or a scalar, or they differ.
    """
    tensors = [leaf for leaf in tree.flatten(data) if leaf is not None]
    for tensor in tensors:
        if not tf.is_tensor(tensor) or _is_composite(tensor):
            raise _not_dense(tensor)
        if tensor.shape.rank == 0:
            raise ValueError(
                "Arguments `x`, `y` and `sample_weight` of a pipeline must "
                "have a batch dimension, along which they are cut. Received: "
                f"{tensor!r}"
            )
    known = {tensor.shape[0] for tensor in tensors if tensor.shape.rank}
    if None not in known and all(t.shape.rank for t in tensors):
        if len(known) > 1:
            raise ValueError(
                "Arguments `x`, `y` and `sample_weight` must have the same "
                f"number of examples. Received: {sorted(known)}"
            )
        return known.pop()
    size = tf.shape(tensors[0])[0]
    checks = [
        tf.debugging.assert_equal(
            tf.shape(tensor)[0],
            size,
            "x, y and sample_weight must have the same number of examples.",
        )
        for tensor in tensors[1:]
    ]
    with tf.control_dependencies([check for check in checks if check]):
        return tf.identity(size)


def _is_composite(tensor):
    return isinstance(tensor, (tf.RaggedTensor, tf.SparseTensor))


def _not_dense(tensor):
    return ValueError(
        "Arguments `x`, `y` and `sample_weight` of a pipeline must be "
        "dense tensors, which are cut into micro-batches. Received: "
        f"{tensor!r}"
    )


def is_stock(model, method):
    """Whether a model's method of this name is Keras's own."""
    for cls in inspect.getmro(type(model)):
        placed = cls.__module__.startswith(
            ("tfdist.placement.", "tfdist.pipeline.")
        )
        if method in vars(cls) and not placed:
            return cls.__module__.partition(".")[0] == "keras"
    return False
