"""Values of resources on servers, which may hold none yet, or none any more.

A server that was started again has lost all that no snapshot has. Functions
build graphs.
"""

import tensorflow as tf


def build_read_or(handle, default, shape=None):
    """Builds the reading of a resource, on its device alone.

    A reading under a lock must not depend on the worker, which may die.

    Args:
      handle: The resource.
      default: Array of the resource's type, or str, to read where it has no
        value.
      shape: Shape that its value must have, a list; default: that of `default`.

    Returns:
      A tensor on the resource's device.
    """
    device = handle.device
    with tf.device(device):
        default = tf.constant(default)
        known = tf.raw_ops.VarIsInitializedOp(resource=handle)

    def read():
        with tf.device(device):
            value = tf.raw_ops.ReadVariableOp(
                resource=handle, dtype=default.dtype
            )
            return tf.ensure_shape(value, shape or default.shape)

    with tf.device(device):
        return tf.cond(known, read, lambda: default)


def build_put_if_missing(handle, value):
    """Builds: a resource gets a value if it has none.

    Args:
      handle: The resource.
      value: Tensor on its device, or callable that builds one.

    Returns:
      Whether it had none, a scalar bool tensor.
    """
    device = handle.device

    def put():
        with tf.device(device):
            tf.raw_ops.AssignVariableOp(
                resource=handle, value=value() if callable(value) else value
            )
        return True

    with tf.device(device):
        known = tf.raw_ops.VarIsInitializedOp(resource=handle)
    return tf.cond(known, lambda: False, put)
