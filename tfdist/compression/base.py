"""The base of codecs: state, encode, decode into a variable, bytes."""

import abc
from collections.abc import Callable
import inspect
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tfdist import checks
from tfdist import comparable

NOTHING, DENSE = 0, 1
"""Kinds of messages that all codecs have; a codec's own begin at `OWN`."""
OWN = 2

NOISE = "noise"
"""Name in the state of what random numbers follow from, a scalar int64."""
# Of one worker: it counts on from there, and no worker reaches the next one.
_MOST_MESSAGES = 1 << 40

State = dict[str, tf.Tensor]
"""Name -> tensor; shapes and dtypes never change. It may be empty."""


class Message(NamedTuple):
    """An encoded vector: three tensors, of the same dtypes for every codec.

    So one `tf.queue.FIFOQueue` takes the messages of all of them; see
    `message_dtypes`. With the size of the vector it is all that decoding
    needs: thresholds, scales and counts are in it.

    Attributes:
      kind: Scalar int32: `NOTHING`, `DENSE`, or a number of the codec's.
      values: `[m]`, of the vector's dtype. Of `DENSE` the vector itself.
      data: `[b]` uint8.
    """

    kind: tf.Tensor
    values: tf.Tensor
    data: tf.Tensor


def message_dtypes(dtype: tf.DType) -> list[tf.DType]:
    """Returns the dtypes of a message's tensors, for a queue.

    Args:
      dtype: The vector's.
    """
    return [tf.int32, tf.as_dtype(dtype), tf.uint8]


class Codec(comparable.Comparable, abc.ABC):
    """Encodes one flat vector of float32 or float64 as a short message.

    ```python
    state = codec.state(size, tf.float32)
    message, state = codec.encode(vector, state)
    codec.decode_into(variable, message, scale=-1.0)
    ```

    Whatever the caller passes is what is encoded, kept as a residual and
    decoded: a codec knows of no learning rate, weight decay or momentum of the
    optimizer's. Pass gradients, and a rate that changes scales what waits in
    the residual as well; pass updates, which have rate, decay and momentum in
    them once, and the residual keeps the scale that it was made at.

    A vector with NaN or Inf in it, or so large that encoding it overflows,
    makes a message of kind `NOTHING`, of which nothing is decoded, and leaves
    the state as it was: all of the update is left out, as `nonfinite="drop"`
    does. `is_nothing` tells.

    A vector of fewer than `dense_below` elements travels as it is.

    The functions build TensorFlow operations, within a `tf.function` or
    eagerly. They contain functions compiled by XLA, one for each size, and
    operations whose shapes depend on values: the function around them is not
    to be compiled by XLA itself.

    Attributes:
      dense_below: Elements; 0 to encode vectors of any size.
    """

    dense_below = 1024

    def __repr__(self):
        default = inspect.signature(type(self).__init__).parameters
        settings = ", ".join(
            f"{name}={value!r}"
            for name, value in self.get_config().items()
            if value != default[name].default
        )
        return f"{type(self).__name__}({settings})"

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments that make an equal codec."""
        names = list(inspect.signature(type(self).__init__).parameters)[1:]
        return {name: getattr(self, name) for name in names}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Codec":
        """Makes a codec of what `get_config` returned."""
        return cls(**config)

    def state(
        self, size: int, dtype: tf.DType = tf.float32, worker: int = 0
    ) -> State:
        """Returns the state before the first message.

        A caller keeps it in variables, of which a checkpoint is made.

        Args:
          size: Elements of the vector.
          dtype: The vector's, float32 or float64.
          worker: Number of the sender: noise is another on each.
        """
        dtype = tf.as_dtype(dtype)
        if dtype not in (tf.float32, tf.float64):
            raise ValueError(
                checks.refusal("dtype", "float32 or float64", dtype.name)
            )
        # Indices have 31 bits.
        if not checks.is_count(size, 1) or size >= 2**31:
            raise ValueError(
                checks.refusal("size", "an integer of [1, 2^31)", size)
            )
        state = {} if self._is_dense(size) else self._state(int(size), dtype)
        if NOISE in state:
            state[NOISE] += worker * _MOST_MESSAGES
        return state

    def encode(self, vector: tf.Tensor, state: State) -> tuple[Message, State]:
        """Encodes a vector, with what the state kept back of those before.

        Args:
          vector: `[size]`, float32 or float64, of a static size.
          state: What `state` or the last call returned.

        Returns:
          The `Message`, and the state for the next call.
        """
        if self._is_dense(vector.shape[0]):
            message, new, finite = dense(vector), state, all_finite(vector)
        else:
            message, new, finite = self._encode(vector, state)
        return tf.cond(
            finite,
            lambda: (message, new),
            lambda: (nothing(vector.dtype), state),
        )

    def decode_into(
        self,
        variable: tf.Variable,
        message: Message,
        scale: tf.Tensor | float = 1.0,
    ) -> None:
        """Adds `scale` times the decoded vector to a variable, in place.

        Sparse messages touch only the elements that they have.

        Args:
          variable: `[size]`, of the vector's dtype.
          message: A `Message` of a codec that is equal to this one.
          scale: Number, or scalar tensor of that dtype.
        """
        size, dtype = variable.shape[0], variable.dtype
        scale = tf.cast(scale, dtype)

        def add(decoded):
            if isinstance(decoded, tf.IndexedSlices):
                tf.raw_ops.ResourceScatterAdd(
                    resource=variable.handle,
                    indices=decoded.indices,
                    updates=scale * decoded.values,
                )
            else:
                variable.assign_add(scale * decoded)
            return scale

        self._switch(message, size, add, lambda: scale)

    def decode(self, message: Message, size: int) -> tf.Tensor:
        """Returns the decoded vector, `[size]`.

        Args:
          message: A `Message` of a codec that is equal to this one.
          size: Elements of the vector, static.
        """

        def spread(decoded):
            if isinstance(decoded, tf.IndexedSlices):
                decoded = tf.scatter_nd(
                    decoded.indices[:, None], decoded.values, [size]
                )
            return tf.ensure_shape(decoded, [size])

        zeros = tf.zeros([size], message.values.dtype)
        return self._switch(message, size, spread, lambda: zeros)

    def bytes(self, message: Message) -> tf.Tensor:
        """Returns the bytes of a message's tensors, a scalar int64 tensor."""
        vectors = message.values, message.data
        return message.kind.dtype.size + sum(
            _length(_of_any_size(vector)) * vector.dtype.size
            for vector in vectors
        )

    def _is_dense(self, size):
        return size < self.dense_below

    def _switch(self, message, size, use, otherwise):
        """Calls `use` with what is decoded by the message's kind."""
        message = Message(
            tf.ensure_shape(message.kind, []),
            _of_any_size(message.values),
            _of_any_size(message.data),
        )
        decoders = [lambda message, size: message.values]
        if not self._is_dense(size):
            decoders += self._decoders()

        def branch(decoder):
            return lambda: use(decoder(message, size))

        branches = [otherwise, *map(branch, decoders)]
        tf.debugging.assert_less(
            message.kind,
            len(branches),
            f"Argument `message` must be one that an equal of {self!r} made.",
        )
        return tf.switch_case(message.kind, branches)

    @abc.abstractmethod
    def _state(self, size: int, dtype: tf.DType) -> State:
        """Returns what `state` does, for a vector that is encoded."""

    @abc.abstractmethod
    def _encode(
        self, vector: tf.Tensor, state: State
    ) -> tuple[Message, State, tf.Tensor]:
        """Returns message, new state, and whether all of it is finite."""

    @abc.abstractmethod
    def _decoders(
        self,
    ) -> list[Callable[[Message, int], tf.Tensor | tf.IndexedSlices]]:
        """Returns the decoders of kinds `OWN`, `OWN + 1` and so on.

        Each is called with a message and the size of the vector, and returns
        the vector, or its elements as `tf.IndexedSlices`.
        """


def nothing(dtype: tf.DType) -> Message:
    """Returns a message of which nothing is decoded."""
    empty = tf.zeros([0], dtype), tf.zeros([0], tf.uint8)
    return Message(tf.constant(NOTHING), *empty)


def is_nothing(message: Message) -> tf.Tensor:
    """Returns whether nothing is decoded of a message, a scalar bool."""
    return tf.equal(message.kind, NOTHING)


def dense(vector: tf.Tensor) -> Message:
    """Returns the message that is the vector itself."""
    return Message(tf.constant(DENSE), vector, tf.zeros([0], tf.uint8))


def _of_any_size(vector):
    """Forgets a static size: all branches are traced, and one of them fits."""
    return tf.raw_ops.PlaceholderWithDefault(
        input=vector, shape=tf.TensorShape([None])
    )


# Not inlined: where a graph decodes the message as well, TensorFlow's constant
# folding takes the length that one branch of `_switch` asks for to be that of
# every message.
@tf.function(autograph=False, experimental_attributes={"_noinline": True})
def _length(vector):
    return tf.size(vector, tf.int64)


def as_bytes(tensor: tf.Tensor) -> tf.Tensor:
    """Returns a tensor's bytes, `[b]` uint8, without a copy."""
    if tensor.dtype.size > 1 or tensor.dtype != tf.uint8:
        tensor = tf.bitcast(tensor, tf.uint8)
    return tf.reshape(tensor, [-1])


def from_bytes(data: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Returns the vector whose `as_bytes` is `data`."""
    if dtype.size > 1:
        data = tf.reshape(data, [-1, dtype.size])
    return tf.bitcast(data, dtype)


def all_finite(vector: tf.Tensor) -> tf.Tensor:
    """Returns whether no element is NaN or Inf, a scalar bool."""
    # A sum is much faster, and finite only if all elements are.
    return tf.cond(
        tf.math.is_finite(tf.reduce_sum(vector)),
        lambda: tf.constant(True),
        lambda: tf.reduce_all(tf.math.is_finite(vector)),
    )
