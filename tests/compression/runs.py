"""Codecs run over vectors, with tensors of TensorFlow made NumPy's."""

import numpy as np
import tensorflow as tf

from tfdist.compression import base


class Run:
    """A codec and its state, traced once.

    Attributes:
        state: name -> array.
    """

    def __init__(self, codec, size, dtype=tf.float32):
        self.codec = codec
        self.size = size
        self.dtype = dtype
        self.state = codec.state(size, dtype)
        self._encode = tf.function(codec.encode, autograph=False)
        self._decode = tf.function(
            lambda *message: codec.decode(base.Message(*message), size),
            input_signature=[
                tf.TensorSpec([] if number == 0 else [None], kind)
                for number, kind in enumerate(base.message_dtypes(dtype))
            ],
            autograph=False,
        )

    def encode(self, vector):
        """Encodes a vector; the state moves on. Returns the message."""
        message, self.state = self._encode(
            tf.constant(vector, self.dtype), self.state
        )
        return message

    def decode(self, message):
        """The decoded vector, an array."""
        return self._decode(*message).numpy()

    def send(self, vector):
        """What is decoded of an encoded vector, an array."""
        return self.decode(self.encode(vector))

    def state_of(self, name):
        return self.state[name].numpy()


def through_a_queue(message, dtype=tf.float32):
    """The message as it is after a queue, whose tensors have no shapes."""
    queue = tf.queue.FIFOQueue(1, base.message_dtypes(dtype))
    queue.enqueue(list(message))
    return base.Message(*queue.dequeue())


def kind_of(message):
    return int(message.kind)


def vectors(size, count, seed=0, dtype=np.float32):
    """Vectors whose elements have scales of their own."""
    rng = np.random.default_rng(seed)
    scales = np.exp(rng.normal(size=size))
    return (rng.normal(size=(count, size)) * scales).astype(dtype)


def same(one, other):
    """Asserts that two arrays have the same type, shape and bits."""
    one, other = np.asarray(one), np.asarray(other)
    assert one.dtype == other.dtype
    np.testing.assert_array_equal(one, other)
