"""Variables for what is in flight from one training step to the next.

A pipeline without flushes is never empty: between two steps each stage has
micro-batches on their way, with what their backwards will need. A
`tf.function` keeps nothing from one call to the next but variables. So what
is in flight is loaded from variables at a step's start and stored at its end.

To load and to store is to hand over a reference; nothing is copied as long as
it stays on its device. A stashed version of weights costs memory only once
the weights are updated, when TensorFlow sees that somebody else still refers
to the old value.
"""

import tensorflow as tf

from tfdist import private_tensorflow
from tfdist.pipeline import stages
from tfdist.placement import devices


class Staging:
    """Tensors that wait, under keys, for the next step.

    Attributes:
      slots: A dict from (key, number of the tensor) to its `tf.Variable`, of
        no particular shape. What was never stored has no elements, and is 0
        if it is a scalar.
    """

    def __init__(self):
        self.slots = {}
        with tf.init_scope(), tf.device("CPU:0"):
            self._end = private_tensorflow.hidden_variable(tf.int32.max)

    def load(self, key, specs, device):
        """Loads what was stored under a key.

        Args:
          key: Any hashable; what is stored under it always has the same
            number of tensors and the same dtypes.
          specs: A `tf.TensorSpec` for each tensor.
          device: The full name of the device on which they wait.

        Returns:
          A list of tensors.
        """
        tensors = []
        for number, spec in enumerate(specs):
            slot = self._slot(key, number, spec, device)
            tensor = slot.read_value()
            if not tf.executing_eagerly():
                # No lie if nothing was stored: nobody looks at it then.
                tensor.set_shape(spec.shape)
            tensors.append(tensor)
        return tensors

    def store(self, key, tensors, specs, device):
        """Keeps a list of tensors under a key; see `load`."""
        for number, (tensor, spec) in enumerate(
            zip(tensors, specs, strict=True)
        ):
            slot = self._slot(key, number, spec, device)
            if not spec.shape.is_fully_defined():
                # TensorFlow's graph optimizer takes what a variable is given
                # in a graph for the shape that it has had when it was read
                # in the same graph. A batch may be smaller than the one
                # before it; so nothing must be known about the size.
                tensor = tensor[: self._end]
            slot.assign(tensor)

    def clear(self):
        """Lets go of all that is stored, and of its memory."""
        for slot in self.slots.values():
            slot.assign(_nothing(slot.dtype, slot.shape))

    def _slot(self, key, number, like, device):
        found = self.slots.get((key, number))
        if found is not None and found.dtype == like.dtype:
            return found
        # Counts are looked at even if they were never stored.
        shape = tf.TensorShape([] if like.shape.rank == 0 else None)
        with tf.init_scope(), tf.device(waiting_place(device, like.dtype)):
            self.slots[key, number] = private_tensorflow.hidden_variable(
                _nothing(like.dtype, shape), shape=shape
            )
        return self.slots[key, number]


def _nothing(dtype, shape):
    return tf.zeros([] if shape.rank == 0 else [0], dtype)


def waiting_place(device, dtype):
    """Place where a tensor for a device waits: there, if it is large or can.

    Integers wait on the processor. It needs the counts of examples, which say
    what a tick does; GPUs have no variables of int32 and of strings at all.

    Args:
      device: A full name of a device.
      dtype: A `tf.DType`.

    Returns:
      A full name: `device`, or the processor of the same task.
    """
    return device if stages.has_gradient(dtype) else devices.cpu_of(device)
